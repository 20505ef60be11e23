//! Compares the ledger with a model that is too simple to be wrong: a vector of rows for each run, each row with its
//! state, no ranges, no indexes, no counters.
//!
//! After every command it checks: identical replies, the same state of every row, the same counts; the invariants;
//! and that a ledger that was loaded from the image stays equal to the one that was not, in chain and digest. At all
//! times: what was once accepted for a row stays. Before a command, a dry run of its first operation answers as that
//! operation would, and changes nothing.

#[path = "model/actions.rs"]
mod actions;
#[path = "model/api_keys.rs"]
mod api_keys;
#[path = "model/batches.rs"]
mod batches;
#[path = "model/bisection.rs"]
mod bisection;
#[path = "model/commands.rs"]
mod commands;
#[path = "model/compare.rs"]
mod compare;
#[path = "model/cordons.rs"]
mod cordons;
#[path = "model/deaths.rs"]
mod deaths;
#[path = "model/events.rs"]
mod events;
#[path = "model/fairness.rs"]
mod fairness;
#[path = "model/files.rs"]
mod files;
#[path = "model/job_acts.rs"]
mod job_acts;
#[path = "model/jobs.rs"]
mod jobs;
#[path = "model/lifecycle.rs"]
mod lifecycle;
#[path = "model/meanings.rs"]
mod meanings;
#[path = "model/members.rs"]
mod members;
#[path = "model/naive.rs"]
mod naive;
#[path = "model/namespaces.rs"]
mod namespaces;
#[path = "model/outcomes.rs"]
mod outcomes;
#[path = "model/quotas.rs"]
mod quotas;
#[path = "model/revocations.rs"]
mod revocations;
#[path = "model/rows.rs"]
mod rows;
#[path = "model/runs.rs"]
mod runs;
#[path = "model/schedule.rs"]
mod schedule;
#[path = "model/speculative_attempts.rs"]
mod speculative_attempts;
#[path = "model/stealing.rs"]
mod stealing;
#[path = "model/stores.rs"]
mod stores;
#[path = "model/stories.rs"]
mod stories;
#[path = "model/tokens.rs"]
mod tokens;
#[path = "model/trainings.rs"]
mod trainings;
#[path = "model/trainings_acts.rs"]
mod trainings_acts;
#[path = "model/workers.rs"]
mod workers;

use actions::{Act, Step};
use naive::Model;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseResult, TestRunner};
use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo};
use rollout_ledger::{
    Body, Command, EntryId, Ledger, Op, Rejection, Reply, Scope, ScopedOp, digest_records,
};
use std::collections::BTreeMap;

struct Pair {
    model: Model,
    ledger: Ledger,
    /// Drained from `ledger`.
    image: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Loaded from the image, and applying since.
    loaded: Ledger,
    /// What was ever accepted: the blob and the row in it, by run and row.
    accepted: BTreeMap<(u32, usize), ([u8; 32], u32)>,
    /// The knowledge of a reader of events.
    told: events::EventState,
    /// How often what happened, for a test of the stories themselves.
    events: BTreeMap<String, u64>,
    /// The same of commands.
    commands: commands::Commands,
}

impl Pair {
    fn new() -> Self {
        let ledger = Ledger::new([1; 16]);
        let loaded = ledger.clone();
        let (model, image, accepted, told, events, commands) = Default::default();
        Self { model, ledger, image, loaded, accepted, told, events, commands }
    }

    fn step(&mut self, step: &Step) -> TestCaseResult {
        match step {
            Step::Reload => self.reload(),
            Step::Ops(acts) => {
                let ops: Vec<Op> = acts.iter().map(|a| a.op(&self.model)).collect();
                self.apply(self.model.epoch, self.model.epoch, 0, self.in_scopes(ops))
            }
            Step::Tick(after_ms) => {
                self.apply(self.model.epoch, self.model.epoch, *after_ms, Body::Tick)
            }
            Step::OpenEpoch => {
                let term = self.model.epoch + 1;
                self.apply(term, term, 0, Body::OpenEpoch)
            }
            Step::Stale(act) => {
                let ops = vec![act.op(&self.model)];
                self.apply(self.model.epoch - 1, self.model.epoch - 1, 0, Body::Ops(ops))
            }
            Step::Digest { stale } => {
                let epoch = self.model.epoch - u64::from(*stale);
                self.apply(epoch, epoch, 0, Body::DigestAt)?;
                let asked = (!stale).then_some(self.model.index);
                for ledger in [&mut self.ledger, &mut self.loaded] {
                    prop_assert_eq!(ledger.take_digest_request(), asked);
                }
                Ok(())
            }
            Step::Version(version) => {
                let body = Body::SetVersion(*version);
                self.apply(self.model.epoch, self.model.epoch, 0, body)
            }
        }
    }

    fn apply(&mut self, epoch: u64, term: u64, after_ms: u64, body: Body) -> TestCaseResult {
        let entry = EntryId { index: self.model.index + 1, term };
        let at = LedgerMs(self.model.clock + after_ms);
        let command = Command { epoch: CoordEpoch(epoch), at, wall_ms: at.0, body };
        self.check_dry_run(entry, &command)?;
        let bytes = command.encode();
        let replies = self.ledger.apply(entry, &bytes).expect("known");
        let expected = self.model.apply(entry, &command);
        prop_assert_eq!(&replies, &expected, "the model answers otherwise to {:?}", &command.body);
        self.commands.count(&command.body, &replies);
        let again = self.loaded.apply(entry, &bytes).expect("known");
        prop_assert_eq!(&replies, &again, "a loaded ledger answers otherwise");
        let happened = self.ledger.take_events();
        prop_assert_eq!(
            &happened,
            &self.loaded.take_events(),
            "a loaded ledger makes other events"
        );
        members::same_events(&happened, &mut self.model)?;
        self.told.hear(&happened, entry.index)?;
        for event in replies.iter().flat_map(events_of).chain(self.model.events.drain(..)) {
            *self.events.entry(event).or_default() += 1;
        }
        self.check()
    }

    /// The operations as those of callers of several scopes, now and then where the version knows scopes.
    fn in_scopes(&self, ops: Vec<Op>) -> Body {
        let index = self.model.index;
        if self.model.version < 4 || !index.is_multiple_of(4) {
            return Body::Ops(ops);
        }
        let scope = |at: usize| match (index / 4 + at as u64) % 5 {
            0 => Scope::All,
            1 => Scope::Namespaces(vec!["team".into()]),
            _ => Scope::Namespaces(vec!["default".into(), "other".into()]),
        };
        let scoped = ops.into_iter().enumerate().map(|(at, op)| ScopedOp { scope: scope(at), op });
        Body::scoped(scoped.collect())
    }

    /// Compares the dry run of the first operation with its execution by a copy of the ledger.
    fn check_dry_run(&mut self, entry: EntryId, command: &Command) -> TestCaseResult {
        // A stale command is rejected whole.
        let first = command.body.ops().next().filter(|_| command.epoch == self.ledger.epoch());
        let Some(op) = first else { return Ok(()) };
        let scope = match &command.body {
            Body::ScopedOps(ops) => ops[0].scope.clone(),
            _ => Scope::All,
        };
        let before = self.ledger.state_digest();
        let dry = self.ledger.dry_run(&scope, &op.kind);
        let again = self.loaded.dry_run(&scope, &op.kind);
        prop_assert_eq!(&dry, &again, "a loaded ledger answers otherwise");
        if !commands::has_dry_run(&op.kind) {
            let none = matches!(dry, None | Some(Err(Rejection::VersionLow { .. })));
            prop_assert!(none, "{:?} has a dry run, which DRY_RUNS lacks", &op.kind);
            return Ok(());
        }
        let scoped = ScopedOp { scope, op: op.kind.clone().into() };
        let alone = Command { body: Body::scoped(vec![scoped]), ..command.clone() };
        let mut copy = self.ledger.clone();
        let replies = copy.apply(entry, &alone.encode()).expect("known");
        let real = match &replies[..] {
            [Reply::Rejected(why)] => Err(why.clone()),
            _ => Ok(()),
        };
        let event = if real.is_ok() { "dry run granted" } else { "dry run refused" };
        prop_assert_eq!(dry, Some(real), "a dry run of {:?} answers otherwise", &op.kind);
        prop_assert_eq!(self.ledger.state_digest(), before, "a dry run changes something");
        *self.events.entry(event.to_owned()).or_default() += 1;
        Ok(())
    }

    fn check(&mut self) -> TestCaseResult {
        for ledger in [&self.ledger, &self.loaded] {
            ledger.check_invariants().map_err(TestCaseError::fail)?;
        }
        prop_assert_eq!(self.ledger.chain(), self.loaded.chain());
        prop_assert_eq!(self.ledger.state_digest(), self.loaded.state_digest());
        compare::same(&self.ledger, &self.model)?;
        compare::conserved(&self.ledger)?;
        self.told.same(&self.ledger)?;
        for (no, run) in (1u32..).zip(&self.model.runs) {
            for (row, state) in run.rows.iter().enumerate() {
                let now = state.result();
                let before = self.accepted.get(&(no, row)).copied();
                prop_assert!(before.is_none() || before == now, "row {row} of {no} was undone");
                if let Some(result) = now {
                    self.accepted.insert((no, row), result);
                }
            }
        }
        Ok(())
    }

    /// A cluster can be restored from the end of any story: decided rows do not change, no worker or client holds
    /// anything any more, and restoring through the image gives the same result.
    fn restore(&self) -> TestCaseResult {
        let mut image = BTreeMap::new();
        self.ledger.for_each_record(|key, value| drop(image.insert(key.to_vec(), value.to_vec())));
        let loaded = Ledger::load(image).expect("what is there loads").restored([2; 16], 7);
        let restored = self.ledger.clone().restored([2; 16], 7);
        restored.check_invariants().map_err(TestCaseError::fail)?;
        prop_assert_eq!(restored.state_digest(), loaded.state_digest());
        prop_assert_eq!(restored.ancestors(), &[[1; 16]][..]);
        prop_assert_eq!((restored.epoch().0, restored.applied().index), (0, self.model.index));
        for no in (1..).take(self.model.runs.len()).map(RunNo) {
            let (before, after) = (self.ledger.run_view(no), restored.run_view(no));
            prop_assert_eq!(before.is_some(), after.is_some());
            let (Some(before), Some(after)) = (before, after) else { continue };
            let (old, new) = (before.counts, after.counts);
            prop_assert_eq!(
                (old.done, old.failed, old.waiting),
                (new.done, new.failed, new.waiting)
            );
            prop_assert_eq!((before.pending + old.running, 0), (after.pending, new.running));
        }
        prop_assert!(restored.worker_sessions().is_empty());
        prop_assert!(tokens::restored_has_none(&restored));
        prop_assert!(batches::restored_has_no_owner(&restored));
        prop_assert!(api_keys::restored_has_none(&restored));
        prop_assert_eq!(restored.revocations(), self.ledger.revocations());
        prop_assert!(restored.members().seen.is_empty());
        prop_assert_eq!(restored.settings(), self.ledger.settings());
        Ok(())
    }

    fn reload(&mut self) -> TestCaseResult {
        let delta = self.ledger.drain_dirty();
        for prefix in delta.delete_prefixes {
            self.image.retain(|key, _| !key.starts_with(&prefix));
        }
        delta.deletes.iter().for_each(|key| {
            self.image.remove(key);
        });
        self.image.extend(delta.puts);
        self.loaded = Ledger::load(self.image.clone()).expect("what was drained loads");
        prop_assert_eq!(digest_records(&self.image), self.ledger.state_digest());
        self.check()
    }
}

/// A reply without its numbers.
fn events_of(reply: &Reply) -> Vec<String> {
    let word = |what: &dyn std::fmt::Debug| {
        let text = format!("{what:?}");
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    };
    match reply {
        Reply::Rejected(Rejection::Job(why)) => vec![word(why), "refused about a job".to_owned()],
        Reply::Rejected(Rejection::OpenAi(why)) => vec![word(why)],
        Reply::Rejected(why) => vec![word(why)],
        Reply::Granted(grants) => vec![format!("granted of {} runs", grants.len())],
        Reply::Stolen { granted, .. } => vec![format!("stolen of {} runs", granted.len())],
        Reply::Registered { resumed, dropped, .. } => {
            vec![format!("resumed {resumed}, dropped {}", !dropped.is_empty())]
        }
        Reply::Taken { refused } if refused.is_empty() => vec!["taken".to_owned()],
        Reply::Won { .. } => vec!["won".to_owned()],
        Reply::Taken { refused } => refused.iter().map(|r| word(&r.why)).collect(),
        other => vec![word(other)],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_does_what_the_model_does(steps in stories::story()) {
        play(&steps)?;
    }
}

fn play(steps: &[Step]) -> Result<Pair, TestCaseError> {
    let mut pair = Pair::new();
    pair.step(&Step::OpenEpoch)?;
    // One by one: an act names what those before it made.
    for act in Act::beginning() {
        pair.step(&Step::Ops(vec![act]))?;
    }
    for step in steps {
        pair.step(step)?;
    }
    pair.restore()?;
    Ok(pair)
}

#[test]
fn random_stories_reach_what_matters() {
    let mut runner = TestRunner::deterministic();
    let mut events: BTreeMap<String, u64> = BTreeMap::new();
    let mut commands = commands::Commands::default();
    let random =
        (0..4000).map(|_| stories::story().new_tree(&mut runner).expect("a story").current());
    for story in std::iter::once(stories::set_rules()).chain(random) {
        let pair = play(&story).expect("as the model");
        pair.events.into_iter().for_each(|(event, n)| *events.entry(event).or_default() += n);
        commands.unite(pair.commands);
    }
    let never = commands.never_granted();
    assert!(never.is_empty(), "no story reaches {never:?}; all: {commands:#?}");
    let wanted = [
        ("taken", 500),
        ("AttemptStale", 200),
        ("AlreadyDecided", 50),
        ("RunEnded", 20),
        ("EpochStale", 50),
        ("PullStale", 20),
        ("WorkerNotReady", 50),
        ("WorkerNameTaken", 10),
        ("RequestForgotten", 10),
        ("SpecConflict", 5),
        ("SegmentConflict", 50),
        ("InputMismatch", 10),
        ("granted of 0 runs", 50),
        ("granted of 1 runs", 300),
        ("granted of 2 runs", 50),
        ("granted of 3 runs", 1),
        ("resumed true, dropped true", 10),
        ("resumed false, dropped true", 10),
        ("late result accepted", 20),
        ("late result beside a live lease", 2),
        ("completion repeated", 20),
        ("pull repeated", 20),
        ("pull of lost rows", 5),
        ("lease adopted", 50),
        ("lease adopted by a new session", 20),
        ("attempt timed out", 20),
        ("run's deadline passed", 1),
        ("row gave up", 10),
        ("stolen of 0 runs", 20),
        ("stolen of 1 runs", 30),
        ("stolen row not taken", 50),
        ("rows duplicated", 50),
        ("duplicate won", 10),
        ("duplicate lost", 10),
        ("one of two failed", 5),
        ("one of two given up", 1),
        ("engine died", 100),
        ("engine died in a trial", 10),
        ("trial granted", 20),
        ("a run joins with the time of others", 20),
        ("slot empties itself", 20),
        ("trial adopted", 1),
        ("row is poison", 1),
        ("slot cordoned", 1),
        ("slot cordoned for failures", 1),
        ("slot cleared", 1),
        ("trial granted to a cordoned slot", 1),
        ("cordon lifted by a trial", 1),
        ("death told again", 20),
        ("may have ended its worker unheard", 20),
        ("rows tried again", 1),
        ("run hopeless", 20),
        ("store refuses one worker", 20),
        ("a row is for another worker", 20),
        ("another worker fits a row that several slots failed", 1),
        ("another slot fits a row that several slots failed", 1),
        ("no other slot fits a row that several slots failed", 1),
        ("run finished", 2),
        ("canary passed", 5),
        ("canary failed", 2),
        ("run sealed", 2),
        ("told of an end", 1),
        ("OverQuota", 5),
        ("token used", 20),
        ("token used again", 5),
        ("TokenRefused", 20),
        ("ApiKeyConflict", 5),
        ("ApiKeyUnknown", 5),
        ("API key expired", 5),
        ("file created", 20),
        ("file deleted", 5),
        ("batch found", 20),
        ("segments repeated", 5),
        ("batch started", 50),
        ("batch cancelled", 5),
        ("batch completed", 5),
        ("batch expired", 5),
        ("BatchFenceStale", 50),
        ("upload completed", 5),
        ("FileConflict", 20),
        ("FileInUse", 5),
        ("UploadEnded", 20),
        ("ContentStale", 20),
        ("revoked", 20),
        ("RevocationWider", 5),
        ("AuthorRevoked", 5),
        ("VersionLow", 20),
        ("leader changed", 20),
        ("member started", 20),
        ("member started after a stop", 5),
        ("member started without notice", 5),
        ("member stopped", 20),
        ("member unreachable", 20),
        ("member reachable", 5),
        ("member said what is known", 20),
        ("setting changed", 20),
        ("dry run granted", 500),
        ("dry run refused", 100),
        ("run forgotten", 1),
        ("RunActive", 20),
        ("rows carried", 50),
        ("store used", 200),
        ("compared and set", 10),
        ("compared and not set", 10),
        ("popped", 10),
        ("no number", 5),
        ("store dropped", 5),
        ("round completed", 100),
        ("round ended", 50),
        ("came late", 50),
        ("one too many", 10),
        ("last call over", 20),
        ("join timed out", 20),
        ("lost", 100),
        ("left", 50),
        ("RendezvousClosed", 10),
        ("RendezvousConflict", 5),
        ("barrier opened", 50),
        ("barrier failed", 20),
        ("barrier shrunk", 5),
        ("barrier timed out", 20),
        ("arrived again", 20),
        ("arrival void", 5),
        ("generation begins anew", 1),
        ("arrival at what an earlier process arrived at", 1),
        ("gone from a round before its barrier", 1),
        ("BarrierConflict", 5),
        ("NotOfBarrier", 20),
        ("BarrierGeneration", 10),
        ("Joined", 50),
        ("Shard", 100),
        ("NoShard", 10),
        ("ShardEnded", 50),
        ("Checkpoint", 30),
        ("Reported", 20),
        ("checkpoint complete", 5),
        ("checkpoint complete with parts of shards", 1),
        ("epoch sealed", 1),
        ("recovered from a checkpoint", 5),
        ("recovered with work undone", 2),
        ("lineage torn", 10),
        ("lineage deserted", 3),
        ("trainer lost", 10),
        ("trainer lost with nothing but its part of a checkpoint", 1),
        ("trainer lost and gone on without", 2),
        ("dataset refused", 2),
        ("refused about a job", 200),
    ];
    for (event, at_least) in wanted {
        let times = events.get(event).copied().unwrap_or(0);
        assert!(times >= at_least, "{event} happened {times} times; all: {events:#?}");
    }
}
