//! The configuration of a client, and the limits of one call.
//!
//! *Invariant:* configured endpoints are only seeds. Once the client has seen a member list, it calls the members on
//! that list, and the seeds in addition.
//!
//! Absent: reading flags, environment and files; programs do that.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::channel::ChannelOptions;
use crate::endpoint::DialMap;
use crate::tls::Security;

/// Receives texts that say what a client is waiting for.
pub type OnWait = Arc<dyn Fn(&str) + Send + Sync>;

/// The configuration of a [`super::Client`].
#[derive(Clone)]
pub struct ClientConfig {
    /// Seeds, each `host:port`. At least one, unless the members file names members.
    pub endpoints: Vec<String>,
    /// Certificates, or plaintext.
    pub security: Security,
    /// Dials members at other addresses than their own.
    pub dial_map: DialMap,
    /// How long a call keeps trying.
    pub timeout: Duration,
    /// The last member list and epoch seen: read at the start, replaced whenever they change.
    pub members_file: Option<PathBuf>,
    /// Follow a cluster that was restored from the one in the members file, as if there were no file. For programs
    /// that keep no other data of a cluster; for others the change is an error.
    pub follow_restored: bool,
    /// End a call if some members refuse the caller's certificate and the others cannot be reached. For commands,
    /// whose user must hear of the refusal. Other programs keep trying, because members differ in which certificates
    /// they accept while an authority is replaced.
    pub end_where_refused: bool,
    /// Receives, at most once a second, what a call is waiting for.
    pub on_wait: Option<OnWait>,
    /// How connections are made.
    pub channel: ChannelOptions,
}

impl ClientConfig {
    /// A configuration with defaults for the other fields.
    pub fn new(endpoints: Vec<String>, security: Security) -> Self {
        ClientConfig {
            endpoints,
            security,
            dial_map: DialMap::default(),
            timeout: Duration::from_secs(30),
            members_file: None,
            follow_restored: false,
            end_where_refused: false,
            on_wait: None,
            channel: ChannelOptions::default(),
        }
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("endpoints", &self.endpoints)
            .field("dial_map", &self.dial_map)
            .field("timeout", &self.timeout)
            .field("members_file", &self.members_file)
            .finish_non_exhaustive()
    }
}

/// Limits of one call.
#[derive(Debug, Clone, Copy)]
pub struct CallOptions {
    /// Limit of one attempt at one member.
    pub attempt_timeout: Duration,
    /// Limit of the call with all its attempts. `None`: the client's.
    pub timeout: Option<Duration>,
    /// The call changes nothing, so a lost answer leaves nothing in doubt.
    pub read: bool,
}

impl Default for CallOptions {
    fn default() -> Self {
        CallOptions { attempt_timeout: Duration::from_secs(5), timeout: None, read: false }
    }
}

impl CallOptions {
    /// A call that changes nothing.
    pub fn read() -> Self {
        CallOptions { read: true, ..CallOptions::default() }
    }

    /// Sets the limit of one attempt.
    pub fn attempt_timeout(mut self, limit: Duration) -> Self {
        self.attempt_timeout = limit;
        self
    }

    /// Sets the limit of the whole call.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }
}
