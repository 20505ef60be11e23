//! Applies one log entry: it takes a command, changes the state, and returns the replies.
//!
//! *Invariant:* a rejected operation changed nothing. An operation depends on the other operations of its command
//! only through their effect on the state.

use crate::kernel::codec;
use crate::kernel::id::{Attempt, BatchFence, BatchNo, CoordEpoch, RunNo, SessionId};
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::command::{Body, Command, Op, OpKind, Scope, ScopedOp};
use crate::machine::event::EventKind;
use crate::machine::ledger::{EntryId, Ledger, UnknownCommand};
use crate::machine::seeded::{Bug, seeded};
use crate::machine::version_gate::{check_kind, check_version};

/// An operation's log position, and the ids that it may still make.
pub(crate) struct Context {
    entry: EntryId,
    op: u32,
    grants: u32,
    pub(crate) wall_ms: u64,
    /// The session whose request the operation is.
    pub(crate) caller: Option<SessionId>,
}

impl Context {
    /// A change outside of the log's operations, or the first operation of an entry.
    pub(crate) fn outside(entry: EntryId, wall_ms: u64) -> Self {
        Self { entry, op: 0, grants: 0, wall_ms, caller: None }
    }

    /// The id of the session that this operation opens.
    pub(crate) fn session(&self) -> SessionId {
        SessionId::at(self.entry.index, self.op)
    }

    /// The number of the batch that this operation creates.
    pub(crate) fn batch(&self) -> BatchNo {
        BatchNo::at(self.entry.index, self.op)
    }

    /// The fence of the work that this operation assigns.
    pub(crate) fn batch_fence(&self) -> BatchFence {
        BatchFence::at(self.entry.index, self.op)
    }

    /// The log index of the command.
    pub(crate) fn index(&self) -> u64 {
        self.entry.index
    }

    /// The next attempt of this command, while it has any left.
    pub(crate) fn attempt(&mut self) -> Option<Attempt> {
        if self.grants == limits::GRANTS_PER_COMMAND_MAX {
            return None;
        }
        self.grants += 1;
        Some(Attempt::at(self.entry.index, self.grants - 1))
    }
}

impl Command {
    /// The bytes that go into the log.
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads the bytes of a log entry; `None` if this version does not know them.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        codec::decode(bytes)
    }
}

impl Ledger {
    /// Applies one entry and returns a reply for each of its operations, or a single one for a
    /// command that has none.
    ///
    /// # Errors
    /// [`UnknownCommand`] if the entry cannot be read: the member must stop.
    pub fn apply(&mut self, entry: EntryId, bytes: &[u8]) -> Result<Vec<Reply>, UnknownCommand> {
        let command = Command::decode(bytes).ok_or(UnknownCommand { index: entry.index })?;
        Ok(self.apply_decoded(entry, command, bytes))
    }

    /// The same, for a caller that has decoded the bytes of the entry already.
    pub fn apply_decoded(&mut self, entry: EntryId, command: Command, bytes: &[u8]) -> Vec<Reply> {
        debug_assert!(entry.index > self.meta.applied.index, "entries come in order");
        let replies = self.execute(entry, command);
        self.settle_indexes();
        self.note(entry);
        self.extend_chain(entry, bytes, &replies);
        replies
    }

    /// Records an entry that is no command: a blank one, or a change of membership.
    pub fn note(&mut self, entry: EntryId) {
        self.meta.applied = entry;
        self.meta_dirty = true;
    }

    fn execute(&mut self, entry: EntryId, command: Command) -> Vec<Reply> {
        let ops = command.body.ops().count().max(1);
        if let Err(why) = self.admit(entry, &command) {
            return vec![Reply::Rejected(why); ops];
        }
        self.meta.advance_clock(command.at);
        let mut ctx = Context::outside(entry, command.wall_ms);
        match command.body {
            Body::OpenEpoch => {
                self.emit(&ctx, EventKind::EpochOpened { epoch: command.epoch });
                vec![self.open_epoch(command.epoch)]
            }
            Body::Tick => {
                self.tick(&ctx);
                self.settle_turns();
                vec![Reply::Ok]
            }
            Body::DigestAt => {
                self.digest_request = Some(entry.index);
                vec![Reply::Ok]
            }
            Body::SetVersion(version) => {
                let (before, was_fair) = (self.meta.version, self.is_fair());
                self.meta.version = before.max(version);
                self.convert_image(before);
                self.reindex_stores(before);
                self.separate_sessions(&ctx, before);
                self.join_trainings(before);
                if self.is_fair() && !was_fair {
                    self.begin_fair_sharing();
                }
                vec![Reply::Ok]
            }
            Body::Ops(ops) => self.run_ops(&mut ctx, ops.into_iter().map(ScopedOp::from)),
            Body::ScopedOps(ops) => self.run_ops(&mut ctx, ops.into_iter()),
        }
    }

    fn run_ops(
        &mut self,
        ctx: &mut Context,
        ops: impl ExactSizeIterator<Item = ScopedOp>,
    ) -> Vec<Reply> {
        let mut replies = Vec::with_capacity(ops.len());
        for ScopedOp { scope, op } in ops {
            replies.push(self.run_op(ctx, &scope, op));
            self.settle_turns();
            ctx.op += 1;
        }
        replies
    }

    /// Refuses a command of a leader that has not opened the present epoch, and a command that advances the clock too
    /// far.
    fn admit(&self, entry: EntryId, command: &Command) -> Result<(), Rejection> {
        let opens = command.body == Body::OpenEpoch && command.epoch.0 == entry.term;
        let CoordEpoch(open) = self.meta.epoch;
        // A new cluster has epoch 0 until a leader opens an epoch.
        let stale = open == 0 || command.epoch.0 != open || command.epoch.0 != entry.term;
        if !opens && stale && !seeded(Bug::EpochUnchecked) {
            return Err(Rejection::EpochStale { got: command.epoch.0, open });
        }
        let step_ms = command.at.0.saturating_sub(self.meta.clock.0);
        if step_ms > limits::CLOCK_STEP_MAX_MS {
            return Err(Rejection::ClockStep { step_ms });
        }
        if command.body.ops().count() > limits::OPS_PER_COMMAND_MAX {
            let max = limits::OPS_PER_COMMAND_MAX as u64;
            return Err(Rejection::Limit { what: "operations in a command".into(), max });
        }
        check_kind(&command.body, self.meta.version)
    }

    fn run_op(&mut self, ctx: &mut Context, scope: &Scope, op: Op) -> Reply {
        ctx.caller = op.request.map(|request| request.session);
        let Some(request) = op.request else {
            return self.run_kind(ctx, scope, op.kind).unwrap_or_else(Reply::Rejected);
        };
        match self.clients.recall(request, self.meta.clock) {
            Err(why) => Reply::Rejected(why),
            Ok(Some(reply)) => reply,
            Ok(None) => {
                let reply = self.run_kind(ctx, scope, op.kind).unwrap_or_else(Reply::Rejected);
                self.clients.remember(request, reply.clone(), self.meta.version);
                reply
            }
        }
    }

    fn run_kind(
        &mut self,
        ctx: &mut Context,
        scope: &Scope,
        kind: OpKind,
    ) -> Result<Reply, Rejection> {
        check_version(&kind, self.meta.version)?;
        self.check_scope(scope, &kind)?;
        if kind.is_bounded() {
            self.settle_indexes();
        }
        kind.apply(self, ctx)
    }

    /// Whether the ledger would accept the operation now from a caller of this scope, or the rejection. Changes nothing.
    /// `None`: an operation of this kind has no dry run.
    ///
    /// Call it between two commands: quotas are compared with sums that a command leaves up to date. The answer is as
    /// of the ledger's present time, which may lag behind the leader's clock.
    pub fn dry_run(&self, scope: &Scope, kind: &OpKind) -> Option<Result<(), Rejection>> {
        if let Err(low) = check_version(kind, self.meta.version) {
            return Some(Err(low));
        }
        let checked = kind.dry_run(self)?;
        Some(self.check_scope(scope, kind).and(checked))
    }

    /// The run with that number, if it exists.
    pub(crate) fn run_mut(&mut self, no: RunNo) -> Result<&mut crate::batch::run::Run, Rejection> {
        self.runs.get_mut(&no).ok_or(Rejection::RunUnknown)
    }
}
