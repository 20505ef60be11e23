//! The fault families that a run selects by name.
//!
//! Absent: their faults ([`crate::nemesis`]). A fleet prepares for the families of its run, and knows no fault.

/// A family of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Family {
    /// No faults
    None,
    /// Every family except those that run only by name: `rolling`, `membership`, `lease` and `upgrade`
    All,
    /// Cut links
    Partition,
    /// SIGKILL, and a start later
    Kill,
    /// SIGSTOP for longer than election and lease time
    Pause,
    /// SIGKILL, and loss of everything that was not fsynced
    Power,
    /// Wall clocks that jump an hour forward or backward
    Clock,
    /// Slow, failing or full disks
    Disk,
    /// A bit flip in a file of one member while it is down
    Bitflip,
    /// Members that stay away until they need a snapshot
    Snapshot,
    /// Latency between members, up to the limit of their profile and beyond
    Latency,
    /// A rolling restart with SIGTERM, as an operator would do it
    Rolling,
    /// Members that join, leave, and are replaced
    Membership,
    /// Followers that restart within the lease of a leader that is cut off, with long leases
    Lease,
    /// Members upgraded from an earlier build to this one, and a raise of the cluster version
    Upgrade,
}

impl Family {
    pub(crate) const EACH: [Family; 13] = [
        Family::Partition,
        Family::Kill,
        Family::Pause,
        Family::Power,
        Family::Clock,
        Family::Disk,
        Family::Bitflip,
        Family::Snapshot,
        Family::Latency,
        Family::Rolling,
        Family::Membership,
        Family::Lease,
        Family::Upgrade,
    ];

    /// The families that these names stand for, each once.
    pub fn expanded(named: &[Family]) -> Vec<Family> {
        let all = named.contains(&Family::All);
        let selected = |family: &Family| all && family.is_mixed() || named.contains(family);
        Self::EACH.into_iter().filter(selected).collect()
    }

    /// Whether the family can be mixed with others in one short run. An operator's operations take too long for that,
    /// and long leases would change the effects of the other faults.
    pub fn is_mixed(self) -> bool {
        !matches!(self, Family::Rolling | Family::Membership | Family::Lease | Family::Upgrade)
    }

    /// These names as the command line accepts them; for an empty list, the name for no faults.
    pub fn listed(names: &[String]) -> String {
        if names.is_empty() { Family::None.name() } else { names.join(",") }
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
