//! The programs as operators use them.

mod benches;
mod bundle;
mod code;
mod commit;
mod completion;
mod configuration;
mod daemons_help;
mod day_two;
mod dependency_directions;
mod dev_command;
mod dry_runs;
mod module_cycles;
mod modules;
mod multi_call;
mod operator;
mod operator_each_member;
mod seeded_bugs;
mod settings;
mod source_sizes;
mod spans;
