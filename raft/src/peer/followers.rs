//! Owns: what the other members promise this one as their leader, as their answers say it.
//!
//! Invariant: a promise counts from when the answered heartbeat was sent, never from when its answer came.
//! Absent: what this leader does with the promises; see `lease`.

use std::collections::BTreeMap;
use std::time::Instant;

use parking_lot::RwLock;

/// The promises of the other members to this one as their leader, from their answers to its heartbeats.
///
/// openraft's clock is too generous: on the log stream it credits an answer to every message already sent that ends at
/// the same index, received or not. Heartbeats are answered one by one.
#[derive(Default)]
pub(crate) struct Followers(pub(crate) RwLock<BTreeMap<u64, Follower>>);

#[derive(Clone, Copy, Default)]
pub(crate) struct Follower {
    promise_ms: u32,
    /// The term of the last heartbeat that was answered, and when that was sent.
    pub(crate) heartbeat: Option<(u64, Instant)>,
}

impl Followers {
    /// Records the promise that a member announces in each of its answers.
    pub(crate) fn record_promise(&self, member: u64, promise_ms: u32) {
        if self.0.read().get(&member).is_none_or(|known| known.promise_ms != promise_ms) {
            self.0.write().entry(member).or_default().promise_ms = promise_ms;
        }
    }

    /// A heartbeat of this term, which was sent no earlier than at `sent`, was answered.
    pub(crate) fn answered(&self, member: u64, term: u64, sent: Instant) {
        let mut followers = self.0.write();
        let heartbeat = &mut followers.entry(member).or_default().heartbeat;
        if heartbeat.is_none_or(|known| known < (term, sent)) {
            *heartbeat = Some((term, sent));
        }
    }

    /// Whether a member has promised this term's leader at least `promise_ms`, since `since`.
    pub(crate) fn promised(&self, member: u64, term: u64, promise_ms: u32, since: Instant) -> bool {
        let known = self.0.read().get(&member).copied().unwrap_or_default();
        let fresh = known.heartbeat.is_some_and(|(of, sent)| of == term && sent > since);
        fresh && known.promise_ms >= promise_ms
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_member_is_counted_on_for_what_it_has_promised_this_term_s_leader() {
        let (followers, sent) = (Followers::default(), Instant::now());
        let since = sent - Duration::from_millis(1);
        assert!(!followers.promised(2, 7, 250, since), "it was never heard");
        followers.record_promise(2, 250);
        assert!(!followers.promised(2, 7, 250, since), "it has answered no heartbeat");
        followers.answered(2, 7, sent);
        assert!(followers.promised(2, 7, 250, since));
        assert!(!followers.promised(2, 7, 250, sent), "too old");
        assert!(!followers.promised(2, 8, 250, since), "another leader");
        assert!(!followers.promised(2, 7, 251, since), "less");
        followers.answered(2, 6, sent + Duration::from_secs(1));
        assert!(followers.promised(2, 7, 250, since), "what is late changes nothing");
        followers.record_promise(2, 0);
        assert!(!followers.promised(2, 7, 250, since), "a build that does not promise");
    }
}
