//! Checks the invariants of jobs, and that their indexes agree with them.
//!
//! Absent: the invariants of a barrier and of a rendezvous, which their own files check.

use super::{Job, Jobs};
use crate::kernel::counts::Counts;
use crate::kernel::limits;

impl Job {
    fn check(&self) -> Result<(), String> {
        for (name, participant) in &self.head.participants {
            if participant.decl.name != *name {
                return Err(format!("{name} is found as another"));
            }
        }
        let mut holders = self.access.names();
        if let Some(name) = holders.find(|name| !self.head.participants.contains_key(*name)) {
            return Err(format!("the holder of {name} is kept, who takes no part"));
        }
        if self.head.departures.len() > limits::DEPARTURES_MAX {
            return Err("too many departures".into());
        }
        self.check_rendezvous()?;
        for (name, barrier) in &self.barriers {
            barrier.check().map_err(|why| format!("barrier {name}: {why}"))?;
        }
        match self.due == self.next_due() {
            true => Ok(()),
            false => Err(format!("due at {:?}, not {:?}", self.next_due(), self.due)),
        }
    }
}

impl Jobs {
    /// Checks the invariants of jobs.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (mut incarnations, mut times) = (0, 0);
        for (no, job) in &self.table.jobs {
            job.check().map_err(|why| format!("job {no}: {why}"))?;
            if self.names.get(&job.head.name) != Some(no) {
                return Err(format!("job {no} is not found by its name"));
            }
            for (name, participant) in &job.head.participants {
                incarnations += 1;
                let found = self.incarnations.get(&participant.incarnation);
                if found.is_none_or(|(at, called)| (at, called) != (no, name)) {
                    return Err(format!("job {no}: {name} is not found by its ticket"));
                }
            }
            if let Some(due) = job.due {
                times += 1;
                if !self.times.contains(&(due, *no)) {
                    return Err(format!("the index of jobs' times lacks {no}"));
                }
            }
        }
        let counted = self.names.keys().map(|name| name.namespace.as_str());
        if counted.collect::<Counts>() != self.of_namespace {
            return Err("the counts of jobs by namespace differ".into());
        }
        let sizes = (self.names.len(), self.incarnations.len(), self.times.len());
        match sizes == (self.table.jobs.len(), incarnations, times) {
            true => Ok(()),
            false => Err(format!("indices of {} jobs differ: {sizes:?}", self.table.jobs.len())),
        }
    }
}
