//! Two ledgers that apply the same entries, the image that one of them drains into, and the names that a story uses.

use super::args::{self, Args, Parsed};
use super::{ops, rejections, show};
use rollout_ledger::id::{CoordEpoch, LedgerMs, SessionId};
use rollout_ledger::{Body, Command, EntryId, Ledger, Reply, Scope, ScopedOp, digest_records, op};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct World {
    pub(crate) ledger: Ledger,
    twin: Ledger,
    image: BTreeMap<Vec<u8>, Vec<u8>>,
    index: u64,
    term: u64,
    epoch: u64,
    clock: u64,
    workers: BTreeMap<String, SessionId>,
    clients: BTreeMap<String, SessionId>,
    incarnations: BTreeMap<String, SessionId>,
    /// The names of the refusals that were answers.
    pub(crate) refused: BTreeSet<&'static str>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            ledger: Ledger::new([7; 16]),
            twin: Ledger::new([7; 16]),
            image: BTreeMap::new(),
            index: 0,
            term: 0,
            epoch: 0,
            clock: 0,
            workers: BTreeMap::new(),
            clients: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            refused: BTreeSet::new(),
        }
    }

    /// Runs a block of input: a directive alone on its line, or operations that share one log entry.
    pub(crate) fn block(&mut self, input: &[&str]) -> Parsed<String> {
        let (&first, rest) = input.split_first().ok_or("nothing before ----")?;
        let mut args = Args::parse(first)?;
        let answer = match args.name.as_str() {
            // Example: entry epoch=1 term=2 at=5000, before operations: an envelope that is off.
            "entry" => {
                let epoch = args.number("epoch", self.epoch)?;
                let term = args.number("term", self.term)?;
                let at = args.number("at", self.clock)?;
                args.finish()?;
                return self.operations((epoch, term, at), &Scope::All, rest);
            }
            // Example: scope namespaces=team,own, before operations of a caller that may use only these
            "scope" => {
                let scope = Scope::Namespaces(args.list("namespaces"));
                args.finish()?;
                return self.operations((self.epoch, self.term, self.clock), &scope, rest);
            }
            // Example: open-epoch term=2
            "open-epoch" => {
                self.term = args.number("term", self.term + 1)?;
                self.epoch = self.term;
                self.apply(self.epoch, self.term, self.clock, Body::OpenEpoch)
            }
            // Example: tick at=1000
            "tick" => {
                self.clock = args.number("at", self.clock)?;
                self.apply(self.epoch, self.term, self.clock, Body::Tick)
            }
            // Example: version to=2
            "version" => {
                let body = Body::SetVersion(args.number("to", 1)?);
                self.apply(self.epoch, self.term, self.clock, body)
            }
            "state" => show::state(&self.ledger),
            "image" => self.reload()?,
            // Example: restore cluster=8, on three members from one file
            "restore" => self.restore(args.number("cluster", 8)?),
            // Example: deadline
            "deadline" => match self.ledger.next_deadline() {
                Some(at) => format!("at {at}"),
                None => "none".into(),
            },
            // Example: forgettable ttl=1000 retention=5000
            "forgettable" => {
                let (ttl, keep) = (args.number("ttl", 0)?, args.number("retention", 0)?);
                let due = self.ledger.forgettable(self.ledger.clock(), ttl, keep);
                let (seal, sweep, delete) = (due.seal, due.sweep, due.delete);
                format!("seal {seal:?} sweep {sweep:?} delete {delete:?} forget {:?}", due.forget)
            }
            // Example: notices
            // The recorded stories have the type's first name.
            "notices" => {
                format!("{:?}", self.ledger.webhooks_due()).replace("DueWebhook", "DueNotice")
            }
            // Every join token.
            "tokens" => show::tokens(&self.ledger),
            // The files of the namespace `default`.
            "files" => super::file_ops::files(&self.ledger),
            // The batches of the namespace `default`, and the work for them.
            "batches" => super::batch_ops::batches(&self.ledger),
            // Every valid API key.
            "keys" => show::api_keys(&self.ledger),
            // Every revocation of certificates.
            "revocations" => show::revocations(&self.ledger),
            // Every member that was seen.
            "members" => show::members(&self.ledger),
            // Every setting of the cluster.
            "settings" => show::settings(&self.ledger),
            // Example: blocked run=chat
            "blocked" => match self.ledger.blocked(ops::run(self, &args.text("run")?)?) {
                text if text.is_empty() => "not blocked".into(),
                text => text,
            },
            // Example: failures run=chat
            "failures" => show::failures(&self.ledger, ops::run(self, &args.text("run")?)?),
            // Example: items run=chat state=waiting from=3 max=10
            "items" => {
                let run = ops::run(self, &args.text("run")?)?;
                let state = show::item_state(&args.text("state")?)?;
                let (from, max) = (args.number("from", 0)?, args.number("max", 10)?);
                show::items(&self.ledger, &self.ledger.items(run, state, from, max))
            }
            // Example: item run=chat row=3
            "item" => {
                let run = ops::run(self, &args.text("run")?)?;
                let item = self.ledger.item(run, args.number("row", 0)?);
                show::items(&self.ledger, item.as_slice())
            }
            // Example: work worker=w1 slot=0
            "work" => match self.ledger.has_work_for(ops::slot(self, &mut args)?) {
                true => "there is work".into(),
                false => "there is none".into(),
            },
            // Example: lost held=chat:3.0:0-7; of what has ended there: ended=chat:3.0:0-7
            "lost" => {
                let held = ops::held(self, &args.text_or("held", ""))?;
                let ended = ops::held(self, &args.text_or("ended", ""))?;
                let held = held.iter().filter_map(|held| self.ledger.lost_of(held));
                let lost = held.chain(ended.iter().filter_map(|h| self.ledger.lost_of_ended(h)));
                let lost: Vec<String> = lost.map(|h| show::held(&h)).collect();
                if lost.is_empty() { "nothing".into() } else { lost.join("; ") }
            }
            _ => {
                let envelope = (self.epoch, self.term, self.clock);
                return self.operations(envelope, &Scope::All, input);
            }
        };
        args.finish()?;
        Ok(answer)
    }

    pub(crate) fn session(&self, worker: &str) -> Parsed<SessionId> {
        self.workers.get(worker).copied().ok_or_else(|| format!("no worker {worker}"))
    }

    pub(crate) fn client(&self, name: &str) -> Parsed<SessionId> {
        match self.clients.get(name) {
            Some(session) => Ok(*session),
            None => args::stamp(name).map(SessionId),
        }
    }

    pub(crate) fn incarnation(&self, trainer: &str) -> Parsed<SessionId> {
        self.incarnations.get(trainer).copied().ok_or_else(|| format!("no trainer {trainer}"))
    }

    fn operations(
        &mut self,
        (epoch, term, at): (u64, u64, u64),
        scope: &Scope,
        lines: &[&str],
    ) -> Parsed<String> {
        // A line may name an object that an earlier line creates, so each line is read against the ledger after the
        // earlier lines.
        let before = self.ledger.clone();
        let mut ops: Vec<ScopedOp> = Vec::new();
        for line in lines {
            ops.push(ScopedOp { scope: scope.clone(), op: ops::op(self, line)? });
            self.ledger = before.clone();
            let entry = EntryId { index: self.index + 1, term };
            let body = Body::scoped(ops.clone());
            let command = command(epoch, at, body);
            let replies = self.ledger.apply(entry, &command.encode()).expect("known");
            self.remember(&command.body, &replies);
        }
        self.ledger = before;
        Ok(self.apply(epoch, term, at, Body::scoped(ops)))
    }

    fn apply(&mut self, epoch: u64, term: u64, at: u64, body: Body) -> String {
        self.index += 1;
        let entry = EntryId { index: self.index, term };
        let command = command(epoch, at, body);
        let bytes = command.encode();
        assert_eq!(Command::decode(&bytes).as_ref(), Some(&command), "encoding loses nothing");
        let replies = self.ledger.apply(entry, &bytes).expect("known");
        let again = self.twin.apply(entry, &bytes).expect("known");
        assert_eq!(replies, again, "the twin answers the same");
        self.check();
        self.refused.extend(replies.iter().flat_map(rejections::of));
        self.remember(&command.body, &replies);
        let events = self.ledger.take_events();
        assert_eq!(events, self.twin.take_events(), "the twin makes other events");
        let replies = replies.iter().map(show::reply);
        let lines: Vec<String> =
            replies.chain(events.iter().map(|e| show::event(&self.ledger, e))).collect();
        lines.join("\n")
    }

    fn check(&self) {
        for ledger in [&self.ledger, &self.twin] {
            ledger.check_invariants().unwrap_or_else(|broken| {
                panic!("after entry {}: {broken}\n{}", self.index, show::state(ledger))
            });
        }
        assert_eq!(self.ledger.chain(), self.twin.chain(), "the chains part");
        assert_eq!(self.ledger.state_digest(), self.twin.state_digest(), "the states part");
    }

    fn remember(&mut self, body: &Body, replies: &[Reply]) {
        use rollout_ledger::OpKind::{OpenClient, Register, Trainer};
        use rollout_ledger::TrainerOp::{Join, Recover};
        for (op, reply) in body.ops().zip(replies) {
            match (&op.kind, reply) {
                (Register(r), Reply::Registered { session, .. }) => {
                    self.workers.insert(r.name.clone(), *session);
                }
                (OpenClient(op::OpenClient { name, .. }), Reply::ClientOpened { session }) => {
                    self.clients.insert(name.clone(), *session);
                }
                (
                    Trainer(Join { trainer, .. } | Recover { trainer, .. }),
                    Reply::Joined { incarnation, .. },
                ) => {
                    self.incarnations.insert(trainer.name.clone(), *incarnation);
                }
                _ => {}
            }
        }
    }

    /// Continues as a new cluster, with a twin that was restored from the image.
    fn restore(&mut self, cluster: u64) -> String {
        let id = [cluster as u8; 16];
        let mut image = BTreeMap::new();
        self.ledger.for_each_record(|key, value| drop(image.insert(key.to_vec(), value.to_vec())));
        self.ledger = self.ledger.clone().restored(id, self.clock);
        self.twin = Ledger::load(image).expect("the image loads").restored(id, self.clock);
        (self.term, self.epoch) = (0, 0);
        self.image.clear();
        self.ledger.for_each_record(|key, value| {
            self.image.insert(key.to_vec(), value.to_vec());
        });
        self.check();
        format!(
            "a cluster that descends from {}, at {:?}",
            self.ledger.ancestors().len(),
            self.ledger.applied()
        )
    }

    /// Writes the changes into the image and continues with a twin that is loaded from it.
    fn reload(&mut self) -> Parsed<String> {
        let delta = self.ledger.drain_dirty();
        let changed = delta.puts.len();
        for prefix in delta.delete_prefixes {
            self.image.retain(|key, _| !key.starts_with(&prefix));
        }
        for key in delta.deletes {
            self.image.remove(&key);
        }
        self.image.extend(delta.puts);
        self.twin = Ledger::load(self.image.clone()).map_err(|e| e.to_string())?;
        assert_eq!(digest_records(&self.image), self.ledger.state_digest(), "the image differs");
        self.check();
        Ok(format!("{changed} records written, {} in all: the same state", self.image.len()))
    }
}

fn command(epoch: u64, at: u64, body: Body) -> Command {
    let wall_ms = 1_700_000_000_000 + at;
    Command { epoch: CoordEpoch(epoch), at: LedgerMs(at), wall_ms, body }
}
