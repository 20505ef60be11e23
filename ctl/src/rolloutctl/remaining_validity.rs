//! The remaining validity of a certificate that a member reports: its own, and that of its intermediate CA.
//!
//! Invariant: the reporting member decides whether it is about to expire, in proportion to the certificate's whole
//! life, so one that is valid for a day is not always about to expire. Absent: local certificates, see
//! [`Validity`].
//!
//! [`Validity`]: rollout_proto::pki::Validity

use rollout_proto::pki::RENEWAL_WITHIN_S;

/// The remaining validity of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rolloutctl) struct RemainingValidity {
    /// Seconds until it expires.
    pub(in crate::rolloutctl) seconds: i64,
    /// Seconds until it counts as about to expire, which is at most two weeks earlier.
    pub(in crate::rolloutctl) renewal_seconds: i64,
}

/// The status of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rolloutctl) enum Stage {
    /// No action is needed.
    Good,
    /// It should be renewed.
    Due,
    /// It has expired.
    Ended,
}

impl RemainingValidity {
    /// The remaining validity at `now_unix`, all in seconds of Unix time; `None` if there is no certificate, which
    /// members report as one that expires at 0. Older members do not report when it is about to expire: for theirs
    /// that is two weeks before the end.
    pub(in crate::rolloutctl) fn of(
        expires_unix: u64,
        renewal_unix: u64,
        now_unix: u64,
    ) -> Option<Self> {
        if expires_unix == 0 {
            return None;
        }
        let until = |unix: u64| unix.cast_signed().saturating_sub(now_unix.cast_signed());
        let seconds = until(expires_unix);
        let renewal_seconds = match renewal_unix {
            0 => seconds.saturating_sub(RENEWAL_WITHIN_S),
            renewal => until(renewal),
        };
        Some(Self { seconds, renewal_seconds })
    }

    /// Its status if at least `within_s` seconds should remain. The last third of its life always suffices. A third of
    /// more than two weeks is reported as two weeks; then only `within_s` counts.
    pub(in crate::rolloutctl) fn stage(self, within_s: i64) -> Stage {
        // In i128, which does not saturate. With two calls of `i64::saturating_sub`, optimized builds of rustc 1.95
        // treated an older member's certificate as good until it expired; the last test below fails then.
        let margin_s = i128::from(self.seconds) - i128::from(self.renewal_seconds);
        let within_s = i128::from(within_s);
        let ahead_s = match margin_s < i128::from(RENEWAL_WITHIN_S) {
            true => margin_s.min(within_s),
            false => within_s,
        };
        match i128::from(self.seconds) {
            ..=0 => Stage::Ended,
            seconds if seconds < ahead_s => Stage::Due,
            _ => Stage::Good,
        }
    }
}

/// The remaining time in whole days, or in hours if it is under two days.
pub(in crate::rolloutctl) fn days_or_hours(seconds_left: i64) -> String {
    match seconds_left {
        0..172_800 => format!("{}h", seconds_left / 3_600),
        _ => format!("{}d", seconds_left.div_euclid(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use rollout_proto::pki::Validity;

    use super::*;

    const HOUR: i64 = 3_600;
    const DAY: i64 = 86_400;
    const FROM: i64 = 20_000 * DAY;

    /// A member's report about a certificate of that life, when that much of it has passed.
    fn remaining(life_s: i64, gone_s: i64) -> RemainingValidity {
        let validity = Validity { not_before_unix: FROM, not_after_unix: FROM + life_s };
        let unix = |at: i64| u64::try_from(at).unwrap();
        let renewal = validity.renewal_unix(RENEWAL_WITHIN_S);
        RemainingValidity::of(unix(FROM + life_s), unix(renewal), unix(FROM + gone_s)).unwrap()
    }

    #[test]
    fn one_of_a_day_is_good_for_16_hours_and_one_of_a_year_until_14_days_before_its_end() {
        for (life_s, gone_s, stage) in [
            (DAY, 0, Stage::Good),
            (DAY, 16 * HOUR, Stage::Good),
            (DAY, 16 * HOUR + 1, Stage::Due),
            (DAY, DAY, Stage::Ended),
            (365 * DAY, 351 * DAY, Stage::Good),
            (365 * DAY, 351 * DAY + 1, Stage::Due),
            (365 * DAY, 365 * DAY, Stage::Ended),
        ] {
            let left = remaining(life_s, gone_s);
            assert_eq!(left.stage(RENEWAL_WITHIN_S), stage, "{gone_s} s of {life_s} s: {left:?}");
        }
    }

    #[test]
    fn the_wanted_validity_is_bounded_by_the_last_third_if_that_is_known() {
        assert_eq!(remaining(DAY, 20 * HOUR).stage(0), Stage::Good);
        assert_eq!(remaining(365 * DAY, 340 * DAY).stage(30 * DAY), Stage::Due);
        assert_eq!(remaining(365 * DAY, 340 * DAY).stage(20 * DAY), Stage::Good);
        assert_eq!(remaining(7 * DAY, 4 * DAY).stage(30 * DAY), Stage::Good);
    }

    #[test]
    fn two_weeks_count_for_an_older_member_and_a_missing_certificate_has_no_status() {
        let stage =
            |left_s: u64| RemainingValidity::of(left_s, 0, 0).unwrap().stage(RENEWAL_WITHIN_S);
        assert_eq!(stage(14 * 86_400), Stage::Good);
        assert_eq!(stage(14 * 86_400 - 1), Stage::Due);
        assert_eq!(RemainingValidity::of(0, 0, 5), None);
        assert_eq!(RemainingValidity::of(4, 1, 5).unwrap().stage(0), Stage::Ended);
    }
}
