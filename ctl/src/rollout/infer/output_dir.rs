//! Owns: the output directory of a batch file: its owner, and the run that a command without a name means there.
//!
//! Invariant: rows are declared only for a run that `run-id` names, and a name that never became a run never replaces
//! one that did.
//! Absent: the rules of who may write there (`export::owner`).

use rollout_batch::export::owner::{BatchFile, Claim};
use rollout_batch::submission::config::BatchConfig;
use rollout_batch::submission::error::BatchError;
use rollout_batch::submission::name::{self, RUN_ID_FILE};
use rollout_batch::submission::revision::{self, Family};

use super::super::error::CommandError;
use super::Batch;
use crate::rollout::cli::BatchArgs;
use crate::stdio::to_stderr;

/// The run's name, and whether it was generated here, not given or remembered.
pub(super) struct RunName {
    pub(super) name: String,
    pub(super) generated: bool,
}

impl RunName {
    /// `--resume`, else `--name`, else the file's, else that of the output directory, else a new one.
    pub(super) fn find(args: &BatchArgs, config: &BatchConfig) -> Result<Self, CommandError> {
        let chosen = |name| Ok(Self { name, generated: false });
        if let Some(given) = args.resume.clone().or(args.name.clone()) {
            name::check(&given).map_err(CommandError::Usage)?;
            return chosen(given);
        }
        if let Some(named) = &config.run.name {
            return chosen(named.clone());
        }
        match remembered(config)? {
            Some(name) => chosen(name),
            None => Ok(Self { name: name::generate(), generated: true }),
        }
    }
}

/// A batch file's claim to its output directory.
pub(super) fn claim(
    args: &BatchArgs,
    config: &BatchConfig,
    namespace: Option<String>,
    run: String,
) -> Claim {
    let (path, base) = (args.batch_file(), config.dir.clone());
    Claim {
        dir: config.output.dir.clone(),
        layout: config.layout(),
        namespace,
        run,
        batch: Some(BatchFile { path, input: config.input.glob.list(), base }),
        overwrite: args.overwrite,
    }
}

impl Batch<'_> {
    pub(super) fn claim(&self) -> Claim {
        claim(self.args, &self.config, Some(self.namespace.clone()), self.name())
    }

    /// Runs before anything is uploaded. It reserves the directory for this batch file and stores a generated name
    /// there, so that several commands that begin at once all mean one run.
    pub(super) fn reserve(&self) -> Result<(), CommandError> {
        self.args.write_batch_file()?;
        let claim = self.claim_for(Claim::reserve)?;
        if self.args.resume.is_some() {
            return Ok(());
        }
        let there = match remembered(&self.config)? {
            Some(there) => there,
            None => name::propose(&claim.dir, &claim.run).map_err(|source| self.failed(source))?,
        };
        if self.generated {
            *self.name.lock() = there;
        }
        Ok(())
    }

    /// Refuses a directory that may not hold this batch file's output, before any work is done for it.
    pub(super) fn check_place(&self) -> Result<(), BatchError> {
        self.claim_for(Claim::check).map(drop)
    }

    /// The claim for which a step succeeds. Another command with this batch file may have named its run in the
    /// directory after this one generated a name: then this command means that run.
    fn claim_for(
        &self,
        step: impl Fn(&Claim) -> Result<(), BatchError>,
    ) -> Result<Claim, BatchError> {
        loop {
            let claim = self.claim();
            match step(&claim) {
                Ok(()) => return Ok(claim),
                Err(BatchError::OutputTaken { .. }) if self.generated && self.adopt_name()? => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the name that the directory remembers. True if it differs.
    fn adopt_name(&self) -> Result<bool, BatchError> {
        let Some(there) = remembered(&self.config)? else { return Ok(false) };
        let mut name = self.name.lock();
        let is_another = *name != there;
        *name = there;
        Ok(is_another)
    }

    /// Runs once the cluster has the run, and before any of its rows are declared.
    pub(super) fn settle(&self) -> Result<(), BatchError> {
        let claim = self.claim();
        claim.check()?;
        name::settle(&claim.dir, &claim.run).map_err(|source| self.failed(source))?;
        claim.settle()
    }

    /// If the run of the directory is gone, prints that, which explains why all rows run again.
    pub(super) fn note_if_gone(&self, family: &Family) {
        if family.latest().is_none() && self.claim().had_run() {
            let name = self.name();
            self.progress.note(&format!("run {name} no longer exists; submitting a new one"));
        }
    }

    /// After a failure: prints which run a command without a name means, if it is another one.
    pub(super) fn print_named_run(&self) {
        let Ok(Some(there)) = remembered(&self.config) else { return };
        if revision::split(&there).0 != revision::split(&self.name()).0 {
            let path = self.config.output.dir.join(RUN_ID_FILE);
            to_stderr(&format!("{} still names run {there}\n", path.display()));
        }
    }

    fn failed(&self, source: std::io::Error) -> BatchError {
        BatchError::Output { path: self.config.output.dir.clone(), source }
    }
}

fn remembered(config: &BatchConfig) -> Result<Option<String>, BatchError> {
    let dir = &config.output.dir;
    name::remembered(dir)
        .map_err(|source| BatchError::Output { path: dir.join(RUN_ID_FILE), source })
}
