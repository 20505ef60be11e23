//! Reports on stderr that a command waits for the cluster.
//!
//! Invariant: one message per outage, and only after it has lasted a while: an ordinary election is not worth a
//! message.
//! Absent: what the command waits for; the client knows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollout_proto::OnWait;

use crate::stdio::print_note;

/// The earliest time after the start of a wait at which the client reports it.
const TOLD_AFTER: Duration = Duration::from_millis(600);
/// A wait of this length is reported.
const LONG: Duration = Duration::from_secs(2);
/// The client reports a wait about every second, so after this pause the report is about another wait.
const PAUSE: Duration = Duration::from_secs(10);

struct Wait {
    since: Instant,
    last: Instant,
    reported: bool,
}

/// One line on stderr for each longer wait.
pub(super) fn on_stderr() -> OnWait {
    let wait = Mutex::new(None);
    Arc::new(move |what| {
        if is_news(&mut wait.lock(), Instant::now()) {
            print_note(format_args!("waiting: {what}"));
        }
    })
}

/// Whether to print this report.
fn is_news(wait: &mut Option<Wait>, now: Instant) -> bool {
    let same = wait.take().filter(|wait| now.saturating_duration_since(wait.last) < PAUSE);
    let mut this = same.unwrap_or(Wait { since: now, last: now, reported: false });
    this.last = now;
    let news = !this.reported && now.saturating_duration_since(this.since) + TOLD_AFTER >= LONG;
    this.reported |= news;
    *wait = Some(this);
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_wait_is_reported_and_only_once() {
        let (mut wait, start) = (None, Instant::now());
        let mut at = |ms| is_news(&mut wait, start + Duration::from_millis(ms));
        assert_eq!([600, 1600, 2600, 3600].map(&mut at), [false, false, true, false]);
        // An hour later it is another wait, which is over soon.
        assert_eq!([3_600_000, 3_601_000].map(&mut at), [false, false]);
        assert_eq!([3_700_000, 3_701_500, 3_703_000].map(&mut at), [false, true, false]);
    }
}
