//! A time on the command line: `now`, or RFC 3339.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Seconds since 1970.
pub(super) fn parse_instant(text: &str) -> Result<u64, String> {
    if text == "now" {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        return Ok(now.unwrap_or_default().as_secs());
    }
    let at = OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| "a time is `now`, or like 2026-11-27T09:30:00Z".to_owned())?;
    u64::try_from(at.unix_timestamp()).map_err(|_| "the time is before 1970".to_owned())
}

/// The printed form of a time.
pub(super) fn format_instant(unix_s: u64) -> String {
    let at = i64::try_from(unix_s).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| "never".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_now_or_rfc_3339() {
        assert_eq!(parse_instant("2026-11-27T09:30:00Z"), Ok(1_795_771_800));
        assert_eq!(parse_instant("2026-11-27T10:30:00+01:00"), Ok(1_795_771_800));
        assert_eq!(format_instant(1_795_771_800), "2026-11-27T09:30:00Z");
        assert!(parse_instant("now").unwrap() > 1_700_000_000);
        for bad in ["", "yesterday", "2026-11-27", "1795771800", "1969-12-31T23:59:59Z"] {
            assert!(parse_instant(bad).is_err(), "{bad}");
        }
    }
}
