//! When a member's own certificate and its intermediate CA's certificate expire, for status, alarms and metrics.
//!
//! *Invariant:* all three use one rule, [`Validity::renewal_unix`], so that a certificate with a lifetime of one day
//! does not always count as about to expire.
//! Absent: workers' certificates, which their own metrics report, and the authority's.

use crate::enrollment::CertificateIssuer;
use rollout_proto::ServerTls;
use rollout_proto::pki::{RENEWAL_WITHIN_S, Validity};

/// When a certificate expires, and from when on it counts as about to expire, in Unix seconds; 0 without a
/// certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateTimes {
    pub(crate) expires: u64,
    pub(crate) renewal: u64,
}

impl CertificateTimes {
    /// The times of the certificate that this member presents.
    pub(crate) fn of_member(tls: &ServerTls) -> Self {
        Self::of(tls.validity())
    }

    /// The times of the intermediate CA's certificate. Once that has expired, no certificate is issued or renewed, and
    /// all enrolled workers and clients are shut out as their certificates expire.
    pub(crate) fn of_issuer(issuer: Option<&CertificateIssuer>) -> Self {
        Self::of(issuer.map(CertificateIssuer::validity))
    }

    fn of(validity: Option<Validity>) -> Self {
        let unix = |at: i64| u64::try_from(at).unwrap_or(0);
        validity.map_or_else(Self::default, |validity| Self {
            expires: unix(validity.not_after_unix),
            renewal: unix(validity.renewal_unix(RENEWAL_WITHIN_S)),
        })
    }

    /// Whether it is about to expire, and whether it has expired, by the thresholds of `rolloutctl alarm list`.
    pub(crate) fn alarms(self, now_unix: u64) -> [bool; 2] {
        let dated = self.expires > 0;
        let expired = dated && self.expires <= now_unix;
        [dated && !expired && self.renewal < now_unix, expired]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn times(from_day: i64, to_day: i64) -> CertificateTimes {
        CertificateTimes::of(Some(Validity {
            not_before_unix: from_day * DAY,
            not_after_unix: to_day * DAY,
        }))
    }

    #[test]
    fn a_yearly_certificate_alarms_two_weeks_ahead_and_a_daily_one_eight_hours() {
        let at = |times: CertificateTimes, seconds: i64| times.alarms(seconds.unsigned_abs());
        let year = times(100, 465);
        assert_eq!(at(year, 451 * DAY), [false, false]);
        assert_eq!(at(year, 451 * DAY + 1), [true, false]);
        assert_eq!(at(year, 465 * DAY), [false, true]);
        let day = times(100, 101);
        assert_eq!(at(day, 100 * DAY + 16 * 3600), [false, false]);
        assert_eq!(at(day, 100 * DAY + 16 * 3600 + 1), [true, false]);
        assert_eq!(CertificateTimes::of(None).alarms(100), [false, false], "there is none");
    }
}
