//! A watchdog that aborts a deposed leader which cannot close its streams.
//!
//! *Invariant:* a leader that learns that it no longer leads has closed its streams within [`FENCE_WITHIN`]. If its
//! runtime is stuck, so that it cannot learn that, the process aborts within the same time. The watchdog is a thread of
//! its own and takes no lock, so that nothing that is stuck can stop it.
//!
//! Absent: the lease. If the runtime is stuck while consensus keeps the lease, this member serves no requests either,
//! and another one should lead.

use std::process::abort;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long closing everything may take. With the watchdog's own step the process is gone within the 5 s on which
/// workers and the operator's guide rely.
const FENCE_WITHIN: Duration = Duration::from_millis(4500);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The most time that one check counts: a process that was suspended as a whole is not stuck.
const LOOK_COUNTS_MAX: Duration = Duration::from_millis(200);
/// [`State::fencing_since_ms`] of a member that does not fence itself.
const NEVER: u64 = u64::MAX;

/// Tells the watchdog whether this member leads, and whether fencing is in progress.
#[derive(Clone)]
pub(crate) struct Fence(Arc<State>);

struct State {
    started: Instant,
    leads: AtomicBool,
    /// When leadership was lost without streams being closed yet, in milliseconds after `started`.
    fencing_since_ms: AtomicU64,
    /// Increases while the runtime runs.
    pulse: AtomicU64,
}

impl Fence {
    /// Starts the watchdog, and the pulse of the runtime from which this is called.
    pub(crate) fn start() -> std::io::Result<Self> {
        let state = Arc::new(State {
            started: Instant::now(),
            leads: AtomicBool::new(false),
            fencing_since_ms: AtomicU64::new(NEVER),
            pulse: AtomicU64::new(0),
        });
        let watched = state.clone();
        std::thread::Builder::new().name("fence".into()).spawn(move || watched.watch())?;
        let beating = state.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                beating.pulse.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(Self(state))
    }

    /// Records that an epoch is open here.
    pub(crate) fn leads(&self) {
        self.0.leads.store(true, Ordering::Release);
    }

    /// Records that leadership is lost, which starts the time limit.
    pub(crate) fn begin(&self) {
        let now = self.0.started.elapsed().as_millis() as u64;
        let since = &self.0.fencing_since_ms;
        let _ = since.compare_exchange(NEVER, now, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Records that everything is closed.
    pub(crate) fn done(&self) {
        self.0.leads.store(false, Ordering::Release);
        self.0.fencing_since_ms.store(NEVER, Ordering::Release);
    }
}

impl State {
    fn watch(&self) -> ! {
        let (mut pulse, mut still, mut looked) = (0, Duration::ZERO, Instant::now());
        loop {
            std::thread::sleep(LOOK_EVERY);
            let since = self.fencing_since_ms.load(Ordering::Acquire);
            let now = self.started.elapsed().as_millis() as u64;
            if now.saturating_sub(since) > FENCE_WITHIN.as_millis() as u64 {
                die("error: a deposed leader did not close its streams in time: abort\n");
            }
            let seen = self.pulse.load(Ordering::Relaxed);
            let looked_before = std::mem::replace(&mut looked, Instant::now());
            if seen != pulse || !self.leads.load(Ordering::Acquire) {
                (pulse, still) = (seen, Duration::ZERO);
                continue;
            }
            still += looked.duration_since(looked_before).min(LOOK_COUNTS_MAX);
            if still > FENCE_WITHIN {
                die("error: the runtime of a leader stands still: abort\n");
            }
        }
    }
}

/// Ends the process after a message on standard error. Bypasses the lock of standard error, which a stuck thread may
/// hold.
fn die(last_words: &str) -> ! {
    // SAFETY: the bytes live for the call, and write(2) may be called with any descriptor.
    unsafe { libc::write(libc::STDERR_FILENO, last_words.as_ptr().cast(), last_words.len()) };
    abort()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};
    use std::time::{SystemTime, UNIX_EPOCH};

    /// The variable that selects the scenario in a child process.
    const ARM: &str = "ROLLOUT_TEST_FENCE_ARM";
    /// The child prints this before the time at which it starts.
    const BEGUN: &str = "begun at ";
    /// Longer than the watchdog waits, including its steps.
    const BEYOND: Duration = Duration::from_millis(5500);

    /// Runs this test program again with one scenario. Returns how it ended, and how long after its start.
    fn played(arm: &str) -> (ExitStatus, Duration) {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([
            "--ignored",
            "--exact",
            "--nocapture",
            "leader::fence::tests::in_a_process_of_its_own",
        ]);
        let out = command.env(ARM, arm).output().expect("it starts");
        let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
        let begun = stdout.split(BEGUN).nth(1).and_then(|rest| rest.split_whitespace().next());
        let begun: u64 = begun.and_then(|ms| ms.parse().ok()).unwrap_or_else(|| panic!("{stdout}"));
        (out.status, Duration::from_millis(wall_ms().saturating_sub(begun)))
    }

    fn wall_ms() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        since.as_millis() as u64
    }

    #[test]
    #[ignore = "the other tests start it, each in a process of its own"]
    fn in_a_process_of_its_own() {
        let arm = std::env::var(ARM).expect("another test says which arm");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let fence = Fence::start().expect("a watchdog");
            fence.leads();
            println!("{BEGUN}{}", wall_ms());
            match arm.as_str() {
                // The runtime runs, but closing never ends.
                "hangs" => {
                    fence.begin();
                    std::future::pending::<()>().await;
                }
                // Closes just in time, and again at the next epoch.
                "in time" => {
                    for _ in 0..2 {
                        fence.leads();
                        fence.begin();
                        tokio::time::sleep(FENCE_WITHIN - Duration::from_millis(700)).await;
                        fence.done();
                    }
                    tokio::time::sleep(BEYOND).await;
                }
                // It was never deposed.
                "leads on" => tokio::time::sleep(BEYOND).await,
                other => panic!("no arm {other}"),
            }
        });
    }

    #[test]
    fn a_leader_whose_closing_hangs_is_aborted_within_5_s() {
        let (status, took) = played("hangs");
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
        assert!((FENCE_WITHIN..Duration::from_secs(5)).contains(&took), "{took:?}");
    }

    #[test]
    fn a_leader_that_closes_everything_in_time_lives_on_and_so_does_one_that_still_leads() {
        let played = ["in time", "leads on"].map(|arm| std::thread::spawn(move || played(arm)));
        for arm in played {
            let (status, took) = arm.join().expect("played");
            assert!(status.success(), "{status}");
            assert!(took > BEYOND, "{took:?}");
        }
    }
}
