//! Creates a run, or finds the run that has the same spec.
//!
//! *Invariant:* a repeated creation finds the run that the first one made.

use crate::batch::close_input::digest_of;
use crate::batch::run::{Run, RunHead, RunState};
use crate::batch::segment::Segment;
use crate::batch::spec::RunSpec;
use crate::kernel::id::{LedgerMs, RunNo, SegmentNo};
use crate::kernel::limits;
use crate::kernel::names;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::SegmentDecl;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Creates a run, or finds the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateRun {
    /// Namespace, which must exist.
    pub namespace: String,
    /// Name within it.
    pub name: String,
    /// The spec.
    pub spec: Box<RunSpec>,
    /// The folder of its objects if this creates it: its name with a unique suffix.
    pub folder: String,
}

impl Operation for CreateRun {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = true;

    fn cost(&self) -> Cost {
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.namespace)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.create_run(ctx, (self.namespace, self.name), *self.spec, self.folder)
    }
}

impl Ledger {
    fn create_run(
        &mut self,
        ctx: &Context,
        (namespace, name): (String, String),
        spec: RunSpec,
        folder: String,
    ) -> Result<Reply, Rejection> {
        names::check_name("run's", &name)?;
        check_folder(&name, &folder)?;
        spec.check()?;
        if !self.namespaces.contains_key(&namespace) {
            return Err(Rejection::NamespaceUnknown(namespace));
        }
        let spec_digest = spec.digest();
        let key = (namespace, name);
        if let Some(run) = self.runs.by_name(&key).and_then(|no| self.runs.get(&no)) {
            return match run.head.spec_digest == spec_digest {
                _ if run.head.state == RunState::Deleting => Err(Rejection::RunDeleting),
                true => Ok(run_reply(run, false)),
                false => Err(Rejection::SpecConflict),
            };
        }
        if self.awaits_run(&key.0, &key.1) {
            return Err(Rejection::SpecConflict);
        }
        self.check_room_for_run(&key.0)?;
        let no = self.meta.next_run();
        let (namespace, name) = key;
        let head = RunHead {
            namespace,
            name,
            spec,
            spec_digest,
            created_wall_ms: ctx.wall_ms,
            folder,
            created_at: self.meta.clock(),
            ..RunHead::default()
        };
        let run = Run { no, head, ..Run::default() };
        let reply = run_reply(&run, true);
        self.runs.add(run);
        self.refresh_active(no);
        self.emit(ctx, EventKind::RunCreated { run: no });
        Ok(reply)
    }
}

/// A run that is created with its whole input.
pub(crate) struct WholeRun {
    /// Its namespace and name.
    pub(crate) name: (String, String),
    pub(crate) folder: String,
    /// When its deadline begins to count.
    pub(crate) created_at: LedgerMs,
    pub(crate) segments: Vec<SegmentDecl>,
    /// The expected number of rows, at least 1.
    pub(crate) rows: u64,
    /// The expected blake3 over the segments' digests in order.
    pub(crate) digest: [u8; 32],
}

impl Ledger {
    /// Refuses one more run if there are too many.
    fn check_room_for_run(&self, namespace: &str) -> Result<(), Rejection> {
        if self.runs.len() >= limits::RUNS_MAX {
            return Err(Rejection::Limit { what: "runs".into(), max: limits::RUNS_MAX as u64 });
        }
        self.admit_run(namespace)
    }

    /// Creates a run with its whole input, closed. The caller has checked the quota of pending rows.
    ///
    /// # Errors
    /// If its name is taken, there is no room for it, or its input differs from what is expected.
    pub(crate) fn create_whole_run(
        &mut self,
        ctx: &Context,
        spec: RunSpec,
        whole: WholeRun,
    ) -> Result<RunNo, Rejection> {
        let (namespace, name) = &whole.name;
        names::check_name("run's", name)?;
        spec.check()?;
        if self.runs.by_name(&whole.name).is_some() {
            return Err(Rejection::SpecConflict);
        }
        self.check_room_for_run(namespace)?;
        let (mut segments, mut rows) = (Vec::with_capacity(whole.segments.len()), 0);
        for decl in whole.segments {
            let mut segment = Segment::new(rows, decl.rows, decl.blob);
            // Runs with their whole input came later than split records.
            segment.split = true;
            segments.push(segment);
            rows += u64::from(decl.rows);
        }
        let input_digest = digest_of(&segments);
        if rows != whole.rows || input_digest != whole.digest {
            return Err(Rejection::InputMismatch { rows });
        }
        let no = self.meta.next_run();
        let (namespace, name) = whole.name;
        let head = RunHead {
            namespace,
            name,
            spec_digest: spec.digest(),
            spec,
            created_wall_ms: ctx.wall_ms,
            folder: whole.folder,
            created_at: whole.created_at,
            rows,
            input_closed: true,
            input_digest,
            ..RunHead::default()
        };
        let numbers = (0..segments.len() as u32).map(SegmentNo);
        self.runs.add(Run { no, head, segments, ..Run::default() });
        self.runs.mark_segments(no, numbers);
        self.refresh_active(no);
        self.emit(ctx, EventKind::RunCreated { run: no });
        Ok(no)
    }
}

pub(super) fn run_reply(run: &Run, created: bool) -> Reply {
    Reply::Run {
        run: run.no,
        created,
        segments: run.segment_count(),
        rows: run.head.rows,
        input_closed: run.head.input_closed,
        folder: run.head.folder.clone(),
    }
}

/// A run's objects are below its name.
pub(crate) fn check_folder(name: &str, folder: &str) -> Result<(), Rejection> {
    match folder.strip_prefix(name).and_then(|rest| rest.strip_prefix('/')) {
        Some(own) => names::check_name("folder's", own),
        None => Err(Rejection::Invalid(format!("the folder has to be {name}/ and a name"))),
    }
}
