//! Creates a run, or finds the run that has the same spec.
//!
//! *Invariant:* a repeated creation finds the run that the first one made.

use crate::batch::run::{Run, RunHead, RunState};
use crate::batch::spec::RunSpec;
use crate::kernel::limits;
use crate::kernel::names;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
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
        if self.runs.len() >= limits::RUNS_MAX {
            return Err(Rejection::Limit { what: "runs".into(), max: limits::RUNS_MAX as u64 });
        }
        self.admit_run(&key.0)?;
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
fn check_folder(name: &str, folder: &str) -> Result<(), Rejection> {
    match folder.strip_prefix(name).and_then(|rest| rest.strip_prefix('/')) {
        Some(own) => names::check_name("folder's", own),
        None => Err(Rejection::Invalid(format!("the folder has to be {name}/ and a name"))),
    }
}
