//! What the daemons and the command-line tools share to read configuration files.

pub mod nearest;
