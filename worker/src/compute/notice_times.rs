//! Owns: how much of a cloud's notice a drain may use.
//!
//! Invariant: a drain gets at least [`LEAST`] and at most the provider's budget, whatever the clock says.
//! Absent: clocks. The code that read the notice supplies the time.

use std::time::Duration;

use time::OffsetDateTime;

/// A machine past its announced end is still running: a clock is wrong, or it ends right now.
const LEAST: Duration = Duration::from_secs(2);

/// How long a provider's notice is, and how much of it a drain may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct NoticeTimes {
    /// From the first notice to the machine's end.
    pub(super) lead: Duration,
    /// The part of it that a drain may take.
    pub(super) budget: Duration,
}

/// A spot instance's interruption.
pub(super) const AWS: NoticeTimes =
    NoticeTimes { lead: Duration::from_secs(120), budget: Duration::from_secs(60) };
/// A spot or preemptible instance's preemption.
pub(super) const GCP: NoticeTimes =
    NoticeTimes { lead: Duration::from_secs(30), budget: Duration::from_secs(15) };
/// Maintenance that ends an instance. Machines with GPUs get an hour of notice, others a minute; the answer does not
/// say which.
pub(super) const GCP_MAINTENANCE: NoticeTimes =
    NoticeTimes { lead: Duration::from_secs(60), budget: Duration::from_secs(30) };

/// A spot machine's eviction.
pub(super) const AZURE: NoticeTimes =
    NoticeTimes { lead: Duration::from_secs(30), budget: Duration::from_secs(15) };
/// A reboot, a move to another host, or an announced deletion: five to fifteen minutes.
pub(super) const AZURE_MAINTENANCE: NoticeTimes =
    NoticeTimes { lead: Duration::from_secs(600), budget: Duration::from_secs(300) };

impl NoticeTimes {
    /// How long a drain may take if the machine ends at `end`, by the clock that shows `now`: the budget's share of
    /// the remaining time.
    pub(super) fn within(&self, end: OffsetDateTime, now: OffsetDateTime) -> Duration {
        let left = Duration::try_from(end - now).unwrap_or(Duration::ZERO).min(self.lead);
        let share = self.budget.as_secs_f64() / self.lead.as_secs_f64();
        left.mul_f64(share).clamp(LEAST, self.budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_gets_its_share_of_the_remaining_time_whatever_the_clock_says() {
        let now = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let hour = Duration::from_secs(3600);
        let within = |end| AWS.within(end, now).as_millis();
        assert_eq!(within(now + Duration::from_secs(120)), 60_000);
        assert_eq!(within(now + Duration::from_secs(80)), 40_000);
        assert_eq!(within(now + hour), 60_000, "a clock that is an hour late");
        assert_eq!(within(now - hour), 2000, "a clock that is an hour early");
        assert_eq!(within(now + Duration::from_millis(10)), 2000);
        assert_eq!(within(time::PrimitiveDateTime::MAX.assume_utc()), 60_000);
        assert_eq!(within(time::PrimitiveDateTime::MIN.assume_utc()), 2000);
    }
}
