//! Checks that a leader accepts a worker's result, if that is the first thing the worker says of its row and the
//! leader hears the worker.
//!
//! *Invariant:* a violation is a proof. The row was granted to this session only, in the same epoch; the worker said
//! nothing else of the attempt; the exchange with the result went out once; and the leader heard the worker from
//! before the grant until the refusal was answered. Then no other worker may have taken the row, and refusing its
//! result is wrong.
//!
//! Absent: rows that may run twice at a time, which another worker may have finished. No grant of theirs is recorded
//! as exclusive.

use super::{Grant, SignsOfLife, TOLD_MAX};
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use std::collections::BTreeMap;

/// The attempt that the operation is about.
fn attempt(operation: &Operation) -> Option<u64> {
    let Value::List(input) = &operation.input else { return None };
    let Some(Value::Int(attempt)) = input.first() else { return None };
    u64::try_from(*attempt).ok()
}

/// The session that sent it; its request is `session/number`.
fn session(operation: &Operation) -> Option<u64> {
    operation.request.as_deref()?.split_once('/')?.0.parse().ok()
}

/// Every result of a rightful holder that was refused.
pub(super) fn broken(
    signs: &SignsOfLife,
    grants: &BTreeMap<&str, Vec<Grant<'_>>>,
    operations: &[Operation],
) -> Vec<String> {
    let mut results: BTreeMap<(&str, u64), Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        if let ("complete" | "fail" | "nack" | "yield", Some(key), Some(attempt)) =
            (&*operation.f, operation.key.as_deref(), attempt(operation))
        {
            results.entry((key, attempt)).or_default().push(operation);
        }
    }
    let mut found = Vec::new();
    for grant in grants.values().flatten() {
        let Some([only]) = results.get(&(grant.key, grant.attempt)).map(Vec::as_slice) else {
            continue;
        };
        let Outcome::Answered { value: Value::Bool(false), at, line, position: Some(position) } =
            &only.outcome
        else {
            continue;
        };
        let rightful = &*only.f == "complete"
            && session(only) == Some(grant.session)
            && position.epoch == Some(grant.epoch)
            && !position.repeated;
        if rightful && signs.throughout(grant, *at) {
            found.push(format!(
                "item {}: the result of session {} under attempt {} was not taken, which was heard all the time and \
                 had said nothing else of it (lines {} and {line})",
                grant.key, grant.session, grant.attempt, only.line
            ));
        }
    }
    found.truncate(TOLD_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::super::broken;
    use super::*;
    use crate::events::{Event, EventKind};
    use crate::formats::ReportedPosition;
    use crate::history::LogPosition;

    const MS: u64 = 1_000_000;

    /// A worker that is heard except during `silence`, gets a row at 3 s, and reports this about it; all of its
    /// results are refused.
    fn problems(silence: std::ops::Range<u64>, says: &[(&str, u64, bool)]) -> Vec<String> {
        let event = |ms: u64, what| Event { time_ns: ms * MS, what };
        let (session, epoch) = (7, 2);
        let observer = "w1".to_owned();
        let registered =
            EventKind::Registered { observer, session, from_epoch: 2, epoch, clean: true };
        let mut events = vec![event(1, registered)];
        for ms in (10..9000).step_by(200).filter(|ms| !silence.contains(ms)) {
            events.push(event(ms + 5, EventKind::Beat { session, epoch, sent_ns: ms * MS }));
        }
        let (key, attempt) = ("1/0".to_owned(), 4);
        let grant = EventKind::Granted { session, key, attempt, epoch, asked_ns: 3000 * MS };
        events.push(event(3009, grant));
        events.sort_by_key(|event| event.time_ns);
        let operation = |(nth, (f, epoch, repeated)): (u64, &(&str, u64, bool))| {
            let at = LogPosition { index: 50 + nth, position: 0 };
            let position = Some(ReportedPosition { at, epoch: Some(*epoch), repeated: *repeated });
            let (called_at, line) = ((5000 + nth) * MS, 1 + 2 * nth);
            let at = called_at + 9 * MS;
            let outcome =
                Outcome::Answered { value: Value::Bool(false), at, line: line + 1, position };
            let input = Value::List(vec![Value::Int(4), Value::text("p")]);
            let (key, request) = (Some("1/0".into()), Some(format!("7/{nth}").into()));
            Operation { process: 1, f: (*f).into(), key, request, input, called_at, line, outcome }
        };
        let operations: Vec<Operation> = (0..).zip(says).map(operation).collect();
        broken(&events, &operations)
    }

    #[test]
    fn the_first_result_of_a_live_worker_is_accepted() {
        let wrong = problems(0..0, &[("complete", 2, false)]);
        assert!(wrong.len() == 1 && wrong[0].contains("(lines 1 and 2)"), "{wrong:?}");
        assert_eq!(problems(4000..5500, &[("complete", 2, false)]).len(), 1, "an allowed silence");
        for (why, silence, says) in [
            ("it was silent", 3000..5200, vec![("complete", 2, false)]),
            ("it was silent just before", 1000..3200, vec![("complete", 2, false)]),
            ("another leader says so", 0..0, vec![("complete", 3, false)]),
            ("a copy went out before", 0..0, vec![("complete", 2, true)]),
            ("it was given up before", 0..0, vec![("yield", 2, false), ("complete", 2, false)]),
            ("a failure may be late", 0..0, vec![("fail", 2, false)]),
        ] {
            assert_eq!(problems(silence, &says), Vec::<String>::new(), "{why}");
        }
    }
}
