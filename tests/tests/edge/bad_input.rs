//! Bad input gets an error that names the place and says what to do, and nothing is lost.

mod objects;
mod outputs;
mod records;
mod refused_commands;
mod setup;
