//! Alarms about certificates: a member's own, and that of its intermediate CA.
//!
//! Invariant: a certificate about to expire and an expired one raise different alarms, never both at once.
//! Absent: workers' certificates, which their metrics and logs cover.

use rollout_proto::pki::RENEWAL_WITHIN_S;

use super::{MemberLine, MemberReport, fix};
use crate::output::duration;
use crate::rolloutctl::remaining_validity::{RemainingValidity, Stage};

/// How to replace an intermediate CA: members read it when they start.
pub(in crate::rolloutctl) const ANOTHER_ISSUER: &str = "rolloutctl cert init-issuer --ca-dir DIR, with the CA in DIR; copy its two files to every member, and restart them \
     one by one; the new key does not renew certificates from the old one: their holders need a valid token when they expire";

/// Those of one member.
pub(super) fn of(
    member: &MemberLine,
    report: &MemberReport,
    alarm: &mut impl FnMut(&'static str, String, String),
) {
    let ends = |left: RemainingValidity| duration(left.seconds as f64);
    let another = || fix::certificate(member);
    if let Some(left) = report.cert() {
        match left.stage(RENEWAL_WITHIN_S) {
            Stage::Good => {}
            Stage::Due => {
                let what = format!("its certificate expires in {}", ends(left));
                alarm("CERT_EXPIRING", what, another());
            }
            Stage::Ended => alarm("CERT_EXPIRED", "its certificate has expired".into(), another()),
        }
    }
    if let Some(left) = report.issuer() {
        match left.stage(RENEWAL_WITHIN_S) {
            Stage::Good => {}
            Stage::Due => {
                let what =
                    format!("the certificate of its intermediate CA expires in {}", ends(left));
                alarm("ISSUER_EXPIRING", what, ANOTHER_ISSUER.into());
            }
            Stage::Ended => {
                let what = "the certificate of its intermediate CA has expired: it issues and renews no certificates";
                alarm("ISSUER_EXPIRED", what.into(), ANOTHER_ISSUER.into());
            }
        }
    }
    if let Some(why) = &report.cert_refused {
        let what = format!("it uses an old certificate and refuses its changed files: {why}");
        let fix = format!("fix them: {}, into the same files", another());
        alarm("CERT_RELOAD_FAILED", what, fix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn raised(report: &MemberReport) -> Vec<(&'static str, String, String)> {
        let mut all = Vec::new();
        let address = "c1.example:7420".into();
        let member = MemberLine { name: "c1".into(), address, ..MemberLine::default() };
        of(&member, report, &mut |kind, what, fix| all.push((kind, what, fix)));
        all
    }

    fn with(cert: [i64; 2], issuer: [i64; 2]) -> MemberReport {
        MemberReport {
            cert_seconds: Some(cert[0]),
            cert_renewal_seconds: Some(cert[1]),
            issuer_seconds: Some(issuer[0]),
            issuer_renewal_seconds: Some(issuer[1]),
            ..MemberReport::default()
        }
    }

    fn kinds(report: &MemberReport) -> Vec<&'static str> {
        raised(report).into_iter().map(|alarm| alarm.0).collect()
    }

    #[test]
    fn each_has_its_own_end_and_its_own_remedy() {
        let good = [100 * DAY, 86 * DAY];
        // With a lifetime of a day: 8 hours and a second before its end, and a second later than that.
        let day = |past: i64| [DAY / 3 + 1 - past, 1 - past];
        assert_eq!(kinds(&with(good, good)), [""; 0]);
        assert_eq!(kinds(&with(day(0), day(0))), [""; 0]);
        assert_eq!(kinds(&with(day(2), good)), ["CERT_EXPIRING"]);
        assert_eq!(kinds(&with(good, day(2))), ["ISSUER_EXPIRING"]);
        let ended = [0, -DAY];
        assert_eq!(kinds(&with(ended, good)), ["CERT_EXPIRED"]);
        assert_eq!(kinds(&with(good, ended)), ["ISSUER_EXPIRED"]);
        assert_eq!(kinds(&MemberReport::default()), [""; 0], "plaintext has none");
        let both = raised(&with(day(2), ended));
        assert_eq!(both[0].1, "its certificate expires in 7h 59m");
        let another =
            "rolloutctl cert issue member c1 --ca-dir DIR --dns c1.example, with the CA in DIR";
        assert_eq!(both[0].2, another);
        assert!(both[1].2.contains("rolloutctl cert init-issuer"), "{}", both[1].2);
        assert!(both[1].2.contains("restart them"), "{}", both[1].2);
    }

    #[test]
    fn refused_certificate_files_are_reported_beside_the_one_in_use() {
        let refused = Some("member-c1.pem: no certificate".to_owned());
        let report =
            MemberReport { cert_refused: refused, ..with([100, -100], [100 * DAY, 86 * DAY]) };
        assert_eq!(kinds(&report), ["CERT_EXPIRING", "CERT_RELOAD_FAILED"]);
        assert!(raised(&report)[1].1.contains("member-c1.pem"));
    }
}
