//! What bad input gets: a sentence that names the place and says what to do, and nothing lost.

mod objects;
mod outputs;
mod records;
mod refused;
mod setup;
