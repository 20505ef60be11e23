//! When each process of a training job was last heard, in the leader's memory: its participants, and its trainers.
//!
//! *Invariant:* a process is lost only if it was silent for its whole keep-alive time under this leader. For a process
//! that this leader has not heard yet, silence begins when the leader first sees it: for existing processes, at the
//! opening of the epoch. Silence is measured in ledger time, which stands still while no quorum answers, because then no
//! process can be heard.
//!
//! A look for silent processes costs as much as those whose time is over, not as much as all: it happens several times
//! a second, and messages wait for it. A message moves no deadline; the look that finds a deadline over moves it. Only
//! a change of the jobs makes the leader read all processes again.

use parking_lot::Mutex;
use rollout_ledger::Ledger;
use rollout_ledger::id::{LedgerMs, SessionId};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// All processes are read again at most this often. Shards that trainers claim are changes too.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Since when a process is silent.
#[derive(Clone, Copy)]
struct SilenceStart {
    at: LedgerMs,
    /// When it was last heard, if ever.
    last_message: Option<Instant>,
}

/// How long a process may be silent.
#[derive(Clone, Copy)]
struct SilenceLimit {
    keep_alive_ms: u64,
    /// Its deadline: it is not lost before. Messages since the deadline was set do not count yet.
    deadline: LedgerMs,
}

struct Process {
    since: SilenceStart,
    /// `None` until the process is among those that were read.
    limit: Option<SilenceLimit>,
    /// The last reading that had it.
    reading: u64,
}

/// The state of the ledger in which processes were read. Another state may have other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobsState {
    jobs: u64,
    trainings: u64,
    /// It decides whether the leader tracks trainers.
    version: u32,
}

impl JobsState {
    pub(crate) fn of(ledger: &Ledger) -> Self {
        let (jobs, trainings) = (ledger.job_changes(), ledger.training_changes());
        Self { jobs, trainings, version: ledger.version() }
    }
}

#[derive(Default)]
struct KeepAliveState {
    processes: HashMap<SessionId, Process>,
    /// Those of all processes that were read.
    deadlines: BTreeSet<(LedgerMs, SessionId)>,
    /// The last reading, and when it was.
    read: Option<(JobsState, LedgerMs)>,
    readings: u64,
}

/// When each process was heard, by its incarnation: no participant and no trainer share one.
#[derive(Default)]
pub(crate) struct KeepAlives(Mutex<KeepAliveState>);

/// A process that was silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SilentProcess {
    pub(crate) incarnation: SessionId,
    /// How long it was silent, including time that did not count; `None` if this leader has never heard it.
    pub(crate) silent_ms: Option<u64>,
}

impl SilenceLimit {
    fn from(since: SilenceStart, keep_alive_ms: u64) -> Self {
        let deadline = LedgerMs(since.at.0.saturating_add(keep_alive_ms));
        Self { keep_alive_ms, deadline }
    }
}

impl KeepAlives {
    /// Records a message of a process.
    pub(crate) fn record_message(&self, incarnation: SessionId, now: LedgerMs) {
        let since = SilenceStart { at: now, last_message: Some(Instant::now()) };
        let mut known = self.0.lock();
        let new = || Process { since, limit: None, reading: 0 };
        known.processes.entry(incarnation).or_insert_with(new).since = since;
    }

    /// How long a process has been silent, as far as this leader knows.
    pub(crate) fn silence(&self, incarnation: SessionId, now: LedgerMs) -> Duration {
        let known = self.0.lock();
        known.processes.get(&incarnation).map_or(Duration::ZERO, |one| now.since(one.since.at))
    }

    /// Whether all processes must be read again. Before that, a new process is not lost, and one that is gone may be
    /// reported as silent.
    pub(crate) fn is_behind(&self, state: JobsState, now: LedgerMs) -> bool {
        let read = self.0.lock().read;
        read.is_none_or(|(read, at)| read != state && now.since(at) >= READ_EVERY)
    }

    /// Takes all processes of that state, each once, with the milliseconds that it may be silent. Forgets all others.
    pub(crate) fn read(&self, all: &[(SessionId, u64)], state: JobsState, now: LedgerMs) {
        let mut known = self.0.lock();
        let KeepAliveState { processes, deadlines, read, readings } = &mut *known;
        *read = Some((state, now));
        *readings += 1;
        for &(incarnation, keep_alive_ms) in all {
            let since = SilenceStart { at: now, last_message: None };
            let new = || Process { since, limit: None, reading: 0 };
            let process = processes.entry(incarnation).or_insert_with(new);
            process.reading = *readings;
            if process.limit.is_none_or(|limit| limit.keep_alive_ms != keep_alive_ms) {
                let limit = SilenceLimit::from(process.since, keep_alive_ms);
                if let Some(before) = process.limit.replace(limit) {
                    deadlines.remove(&(before.deadline, incarnation));
                }
                deadlines.insert((limit.deadline, incarnation));
            }
        }
        if processes.len() > all.len() {
            processes.retain(|incarnation, process| {
                let stays = process.reading == *readings;
                if !stays && let Some(limit) = process.limit {
                    deadlines.remove(&(limit.deadline, *incarnation));
                }
                stays
            });
        }
    }

    /// The processes that were silent for too long, among those that were read last.
    pub(crate) fn silent(&self, now: LedgerMs) -> Vec<SilentProcess> {
        let mut known = self.0.lock();
        let KeepAliveState { processes, deadlines, .. } = &mut *known;
        let over = (now, SessionId(u64::MAX));
        let over: Vec<SessionId> = deadlines.range(..=over).map(|&(_, of)| of).collect();
        let mut silent = Vec::new();
        for incarnation in over {
            let Some(process) = processes.get_mut(&incarnation) else { continue };
            let Some(before) = process.limit else { continue };
            let limit = SilenceLimit::from(process.since, before.keep_alive_ms);
            if limit.deadline <= now {
                let last_message = process.since.last_message;
                let silent_ms = last_message.map(|at| at.elapsed().as_millis() as u64);
                silent.push(SilentProcess { incarnation, silent_ms });
            } else {
                // It was heard meanwhile.
                process.limit = Some(limit);
                deadlines.remove(&(before.deadline, incarnation));
                deadlines.insert((limit.deadline, incarnation));
            }
        }
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ms: u64) -> LedgerMs {
        LedgerMs(1000 + ms)
    }

    /// The state after so many changes.
    fn state(jobs: u64) -> JobsState {
        JobsState { jobs, trainings: 7, version: 4 }
    }

    #[test]
    fn a_process_that_was_never_heard_has_its_full_keep_alive_time() {
        let keep_alives = KeepAlives::default();
        let (one, two) = ([(SessionId(1), 100)], [(SessionId(1), 100), (SessionId(2), 100)]);
        keep_alives.read(&one, state(1), after(0));
        assert!(keep_alives.silent(after(0)).is_empty());
        // Another process joins, and has not been heard yet.
        keep_alives.read(&two, state(2), after(99));
        assert!(keep_alives.silent(after(99)).is_empty());
        let lost = keep_alives.silent(after(100));
        assert_eq!(lost, [SilentProcess { incarnation: SessionId(1), silent_ms: None }]);
        keep_alives.record_message(SessionId(1), after(110));
        keep_alives.read(&one, state(3), after(120));
        assert!(keep_alives.silent(after(209)).is_empty());
        let lost = keep_alives.silent(after(260));
        assert_eq!(lost.len(), 1, "{lost:?}");
        // The wall clock says when it was heard, which was just now.
        assert!(lost[0].silent_ms.is_some_and(|ms| ms < 60_000), "{lost:?}");
        assert_eq!(keep_alives.silent(after(261)).len(), 1, "until the ledger has lost it");
        assert_eq!(keep_alives.silence(SessionId(1), after(260)), Duration::from_millis(150));
        assert_eq!(keep_alives.silence(SessionId(2), after(260)), Duration::ZERO, "forgotten");
    }

    #[test]
    fn all_processes_are_read_only_after_a_change_and_at_most_once_a_second() {
        let keep_alives = KeepAlives::default();
        assert!(keep_alives.is_behind(state(1), after(0)), "at the opening of the epoch");
        keep_alives.read(&[], state(1), after(0));
        assert!(!keep_alives.is_behind(state(1), after(3_600_000)), "nothing has changed");
        assert!(!keep_alives.is_behind(state(2), after(999)));
        assert!(keep_alives.is_behind(state(2), after(1000)));
        let raised = JobsState { version: 5, ..state(1) };
        assert!(keep_alives.is_behind(raised, after(1000)), "the leader may track trainers now");
    }

    #[test]
    fn a_message_moves_no_deadline_and_what_is_gone_leaves_nothing() {
        let keep_alives = KeepAlives::default();
        let deadlines = || -> Vec<_> { keep_alives.0.lock().deadlines.iter().copied().collect() };
        let [one, two] = [1, 2].map(SessionId);
        // It was heard before it was read.
        keep_alives.record_message(two, after(0));
        keep_alives.read(&[(one, 100), (two, 300)], state(1), after(50));
        let before = [(after(150), one), (after(300), two)];
        assert_eq!(deadlines(), before);
        (51..=149).for_each(|ms| keep_alives.record_message(one, after(ms)));
        assert!(keep_alives.silent(after(149)).is_empty());
        assert_eq!(deadlines(), before);
        assert!(keep_alives.silent(after(150)).is_empty());
        assert_eq!(deadlines(), [(after(249), one), (after(300), two)]);
        // It joins again, with another time.
        keep_alives.read(&[(one, 400), (two, 300)], state(2), after(151));
        assert_eq!(deadlines(), [(after(300), two), (after(549), one)]);
        keep_alives.read(&[(one, 400)], state(3), after(152));
        assert_eq!(deadlines(), [(after(549), one)]);
        assert_eq!(keep_alives.0.lock().processes.len(), 1);
    }
}
