//! `rolloutctl`, for operators: `rolloutctl <noun> <verb> [NAME] [flags]`.
//!
//! Invariant: one file per verb, named after the verb; data goes to stdout, messages to stderr, and the exit code
//! gives the kind of failure (see [`exit`]). Deliberately absent: hex IDs on the command line; everything has a name.

mod alarm;
mod audit;
#[cfg(feature = "fuzzing")]
pub(crate) use audit::fuzzed as audit_breaks;
mod barrier;
mod cert;
mod checkpoint;
mod choose;
mod cli;
pub mod cluster;
mod completion;
mod config;
mod consent;
mod context;
mod dataset;
mod doctor;
mod dry_run;
mod each;
mod errors;
mod events;
mod exit;
mod flags;
mod item;
mod job;
mod leader;
mod member;
mod namespace;
mod read;
mod rendezvous;
mod request;
mod run;
mod shard;
mod snapshot;

pub mod status;
mod storage;
mod talk;
mod token;
mod top;
mod unconfirmed;
mod version;
mod watch;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use rollout_proto::trace::{self, TraceContext};

use self::cli::{
    AlarmVerb, AuditVerb, BarrierVerb, BenchVerb, CertVerb, CheckpointVerb, Cli, ClusterVerb,
    Command, ConfigVerb, ContextVerb, DatasetVerb, ErrorsVerb, ItemVerb, JobVerb, LeaderVerb,
    MemberVerb, NamespaceVerb, RendezvousVerb, RunVerb, ShardVerb, SnapshotVerb, StorageVerb,
    TokenVerb, WorkerVerb,
};
use self::consent::Consent;
pub use self::exit::Failure;
use crate::bench;
use crate::completer;
use crate::say::to_stderr;

/// Parses the command line, runs it, and returns the exit code. `version` is what `--version` prints.
pub fn main(version: &'static str) -> ExitCode {
    if completer::answered(Cli::command) {
        return ExitCode::SUCCESS;
    }
    let cli = parse(version);
    let paint = cli.talk.begin();
    let mut builder = match cli.command {
        // The only command with work for several cores; a load generator must not use them.
        Command::Bench { verb: BenchVerb::Submit(_) } => {
            tokio::runtime::Builder::new_multi_thread()
        }
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let traced = TraceContext::of_env();
    let result = builder.enable_all().build().map_err(anyhow::Error::from).and_then(|runtime| {
        let ended = runtime.block_on(trace::within(traced, obey(cli)));
        // A DNS query may continue for minutes after its limit, and its result is not needed.
        runtime.shutdown_background();
        ended
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            to_stderr(&paint.error(exit::explain(&error)));
            tracing::info!(trace_id = traced.trace_id(), "the command failed");
            ExitCode::from(exit::code(&error))
        }
    }
}

/// The command line of this process. A help text shows the flags that its command accepts.
fn parse(version: &'static str) -> Cli {
    let mut command = flags::command().version(version);
    let matches = command.get_matches_mut();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Runs the command once, repeatedly, or as a dry run.
async fn obey(cli: Cli) -> anyhow::Result<()> {
    if cli.request_id.is_some() && !request::has_number(&cli.command) {
        let text = "--request-id is for commands that print one when their outcome is unknown; \
                    this one may be repeated as it is";
        return Err(Failure::usage(text).into());
    }
    match (cli.watch, cli.dry_run) {
        (None, false) => Box::pin(dispatch(cli)).await,
        (None, true) => Box::pin(dry_run::show(cli)).await,
        (Some(every), _) => watch::repeat(cli, every).await,
    }
}

async fn dispatch(cli: Cli) -> anyhow::Result<()> {
    let (connect, format, again) = (&cli.connect, cli.output, cli.request_id);
    let yes = if cli.yes { Consent::Given } else { Consent::Wanted };
    match cli.command {
        Command::Status => status::run(connect, format).await,
        Command::Top(args) => top::run(connect, args, &cli.talk).await,
        Command::Doctor(args) => doctor::run(connect, format, args).await,
        Command::Run { verb } => match verb {
            RunVerb::List(args) => run::list::run(connect, format, args).await,
            RunVerb::Describe(args) => run::describe::run(connect, format, args).await,
            RunVerb::Watch(args) => run::watch::run(connect, format, args).await,
            RunVerb::Cancel(args) => run::cancel::run(connect, format, args, again).await,
            RunVerb::Pause(args) => run::pause::run(connect, format, args, again).await,
            RunVerb::Resume(args) => run::resume::run(connect, format, args, again).await,
            RunVerb::Retry(args) => run::retry::run(connect, format, args, again).await,
            RunVerb::Delete(args) => run::delete::run(connect, format, args, again, yes).await,
        },
        Command::Item { verb } => match verb {
            ItemVerb::List(args) => item::list::run(connect, format, args).await,
            ItemVerb::Describe(args) => item::describe::run(connect, format, args).await,
            ItemVerb::Retry(args) => item::retry::run(connect, format, args, again).await,
        },
        Command::Worker { verb } => match verb {
            WorkerVerb::List(args) => worker::list::run(connect, format, args).await,
            WorkerVerb::Describe(args) => worker::describe::run(connect, format, args).await,
            WorkerVerb::Cordon(args) => worker::cordon::run(connect, format, args, again).await,
            WorkerVerb::Drain(args) => worker::drain::run(connect, format, args, again).await,
            WorkerVerb::Uncordon(args) => worker::uncordon::run(connect, format, args, again).await,
        },
        Command::Namespace { verb } => match verb {
            NamespaceVerb::List(args) => namespace::list::run(connect, format, args).await,
            NamespaceVerb::Describe(args) => namespace::describe::run(connect, format, args).await,
            NamespaceVerb::SetQuota(args) => {
                namespace::set_quota::run(connect, format, args, again).await
            }
        },
        Command::Rendezvous { verb } => match verb {
            RendezvousVerb::List(args) => rendezvous::list::run(connect, format, args).await,
            RendezvousVerb::Describe(args) => {
                rendezvous::describe::run(connect, format, args).await
            }
            RendezvousVerb::Close(args) => {
                rendezvous::close::run(connect, format, args, again).await
            }
        },
        Command::Barrier { verb } => match verb {
            BarrierVerb::List(args) => barrier::list::run(connect, format, args).await,
            BarrierVerb::Describe(args) => barrier::describe::run(connect, format, args).await,
            BarrierVerb::Abort(args) => barrier::abort::run(connect, format, args, again).await,
        },
        Command::Dataset { verb } => match verb {
            DatasetVerb::List(args) => dataset::list::run(connect, format, args).await,
            DatasetVerb::Describe(args) => dataset::describe::run(connect, format, args).await,
            DatasetVerb::Create(args) => dataset::create::run(connect, format, args, again).await,
            DatasetVerb::Delete(args) => {
                dataset::delete::run(connect, format, args, again, yes).await
            }
        },
        Command::Job { verb } => match verb {
            JobVerb::List(args) => shard::list::run(connect, format, args).await,
            JobVerb::Delete(args) => job::delete::run(connect, format, args, again, yes).await,
        },
        Command::Shard { verb } => match verb {
            ShardVerb::List(args) => shard::list::run(connect, format, args).await,
            ShardVerb::Describe(args) => shard::describe::run(connect, format, args).await,
        },
        Command::Checkpoint { verb } => match verb {
            CheckpointVerb::List(args) => checkpoint::list::run(connect, format, args).await,
            CheckpointVerb::Describe(args) => {
                checkpoint::describe::run(connect, format, args).await
            }
            CheckpointVerb::Abort(args) => {
                checkpoint::abort::run(connect, format, args, again).await
            }
            CheckpointVerb::Label(args) => {
                checkpoint::label::run(connect, format, args, again).await
            }
            CheckpointVerb::Prune(args) => {
                checkpoint::prune::run(connect, format, args, again, false).await
            }
            CheckpointVerb::Verify(args) => checkpoint::verify::run(connect, format, args).await,
        },
        Command::Cluster { verb } => match verb {
            ClusterVerb::Status => status::run(connect, format).await,
            ClusterVerb::Verify(args) => cluster::verify::run(connect, format, args).await,
            ClusterVerb::Bootstrap(args) => cluster::bootstrap::run(connect, format, args).await,
            ClusterVerb::Upgrade(args) => {
                cluster::upgrade::run(connect, format, args, yes, false).await
            }
            ClusterVerb::Settings => cluster::settings::run(connect, format).await,
            ClusterVerb::Set(args) => cluster::set::run(connect, format, args, again).await,
        },
        Command::Member { verb } => match verb {
            MemberVerb::List(args) => member::list::run(connect, format, args).await,
            MemberVerb::Describe(args) => member::describe::run(connect, format, args).await,
            MemberVerb::Add(args) => member::add::run(connect, format, args).await,
            MemberVerb::Promote(args) => member::promote::run(connect, format, args).await,
            MemberVerb::Remove(args) => member::remove::run(connect, format, args, yes).await,
            MemberVerb::Replace(args) => member::replace::run(connect, format, args).await,
            MemberVerb::Update(args) => member::update::run(connect, format, args).await,
        },
        Command::Leader { verb } => match verb {
            LeaderVerb::Show => leader::show::run(connect, format).await,
            LeaderVerb::Transfer(args) => leader::transfer::run(connect, format, args).await,
        },
        Command::Storage { verb } => match verb {
            StorageVerb::Stats => storage::stats::run(connect, format).await,
        },
        Command::Alarm { verb } => match verb {
            AlarmVerb::List(args) => alarm::list::run(connect, format, args).await,
        },
        Command::Audit { verb: AuditVerb::Verify(args) } => audit::verify::run(format, &args),
        Command::Snapshot { verb } => match verb {
            SnapshotVerb::Save(args) => snapshot::save::run(connect, format, args).await,
            SnapshotVerb::Verify(args) => snapshot::verify::run(format, &args),
            SnapshotVerb::Restore(args) => snapshot::restore::run(format, &args),
        },
        Command::Cert { verb } => match verb {
            CertVerb::InitCa(args) => cert::init_ca::run(format, &args),
            CertVerb::InitIssuer(args) => cert::init_issuer::run(format, &args),
            CertVerb::Issue(args) => cert::issue::run(format, &args),
            CertVerb::Enrol(args) => cert::enrol::enrol(connect, format, args).await,
            CertVerb::Renew => cert::enrol::renew(connect, format).await,
            CertVerb::Inspect(args) => cert::inspect::run(format, args).await,
            CertVerb::Status(args) => cert::status::run(connect, format, args).await,
            CertVerb::Revoke(args) => cert::revoke::revoke(connect, format, args, again).await,
            CertVerb::Unrevoke(args) => cert::revoke::unrevoke(connect, format, args, again).await,
            CertVerb::Revocations(args) => cert::revocations::run(connect, format, args).await,
        },
        Command::Token { verb } => match verb {
            TokenVerb::Create(args) => token::create::run(connect, format, args).await,
            TokenVerb::List(args) => token::list::run(connect, format, args).await,
            TokenVerb::Revoke(args) => token::revoke::run(connect, format, args, again).await,
        },
        Command::Bench { verb } => match verb {
            BenchVerb::Fsync(args) => bench::disk::run(format, &args),
            BenchVerb::Apply(args) => bench::apply::run(format, &args),
            BenchVerb::Ledger(args) => bench::ledger::run(connect, format, args).await,
            BenchVerb::Failover(args) => bench::failover::run(connect, format, args).await,
            BenchVerb::Handover(args) => bench::handover::run(connect, format, args).await,
            BenchVerb::Submit(args) => bench::submit::run(connect, format, args).await,
            BenchVerb::Rendezvous(args) => bench::rendezvous::run(connect, format, args).await,
            BenchVerb::Store(args) => bench::store::run(connect, format, args).await,
            BenchVerb::Fleet(args) => Box::pin(bench::fleet::run(connect, format, *args)).await,
            BenchVerb::FleetPart => bench::fleet::part::run().await,
        },
        Command::Events(args) => events::run(connect, format, args).await,
        Command::Config { verb } => match verb {
            ConfigVerb::View(args) => config::view::run(format, args),
            ConfigVerb::Default(args) => config::default::run(format, &args),
            ConfigVerb::Validate(args) => config::validate::run(format, args),
            ConfigVerb::Schema(args) => config::schema::run(&args),
        },
        Command::Context { verb } => match verb {
            ContextVerb::List(args) => context::list(format, &args),
            ContextVerb::Show { name } => context::show(format, name.as_deref()),
            ContextVerb::Use(args) => context::choose(format, &args),
            ContextVerb::Add(args) => context::add(format, connect, &args),
            ContextVerb::Remove(args) => context::remove(format, &args),
        },
        Command::Errors { verb } => match verb {
            ErrorsVerb::List(args) => errors::list(format, &args),
            ErrorsVerb::Explain { code } => errors::explain(format, &code),
        },
        Command::Completion(args) => completion::completion(&args),
        Command::Man(args) => completion::man(&args),
        Command::Version => version::run(format),
    }
}
