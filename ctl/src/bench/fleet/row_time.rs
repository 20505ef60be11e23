//! How long a row takes, as a distribution: `200`, `10000-60000`, `exp:1000`, in milliseconds.
//!
//! Invariant: its text reads back as the same distribution. Absent: rows that fail.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand::Rng;
use serde::{Deserialize, Serialize};

/// A row takes at most a day, whatever the distribution.
const MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// The distribution of a row's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RowTime {
    /// Always the same.
    Fixed(u64),
    /// Uniform between two bounds.
    Uniform(u64, u64),
    /// Exponential with this mean.
    Exponential(u64),
}

impl RowTime {
    /// The mean in milliseconds.
    pub(super) fn mean_ms(self) -> f64 {
        match self {
            Self::Fixed(ms) | Self::Exponential(ms) => ms as f64,
            Self::Uniform(least, most) => (least + most) as f64 / 2.0,
        }
    }

    /// The time of one row.
    pub(super) fn draw(self, random: &mut impl Rng) -> Duration {
        match self {
            Self::Fixed(ms) => Duration::from_millis(ms),
            Self::Uniform(least, most) => Duration::from_millis(random.random_range(least..=most)),
            Self::Exponential(mean) => {
                let unit: f64 = random.random_range(f64::EPSILON..1.0);
                Duration::from_secs_f64((-unit.ln() * mean as f64).min(MS_MAX as f64) / 1000.0)
            }
        }
    }
}

impl FromStr for RowTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str| match part.trim().parse::<u64>() {
            Ok(ms) if (1..=MS_MAX).contains(&ms) => Ok(ms),
            _ => Err(format!("`{part}` is not a number of milliseconds from 1 to {MS_MAX}")),
        };
        if let Some(mean) = text.strip_prefix("exp:") {
            return number(mean).map(Self::Exponential);
        }
        let Some((least, most)) = text.split_once('-') else {
            return number(text).map(Self::Fixed);
        };
        match (number(least)?, number(most)?) {
            (least, most) if least > most => {
                Err(format!("the least, {least}, is above the most, {most}"))
            }
            (least, most) => Ok(Self::Uniform(least, most)),
        }
    }
}

impl fmt::Display for RowTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(ms) => write!(f, "{ms}"),
            Self::Uniform(least, most) => write!(f, "{least}-{most}"),
            Self::Exponential(mean) => write!(f, "exp:{mean}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_reads_back_as_the_same_distribution() {
        for text in ["200", "10000-60000", "exp:1000"] {
            assert_eq!(text.parse::<RowTime>().map(|time| time.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "0", "9-3", "exp:", "exp:0", "1-2-3", "x", "99999999999"] {
            assert!(text.parse::<RowTime>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_drawn_within_the_bounds_and_around_the_mean() {
        let mut random = rand::rng();
        let uniform = RowTime::Uniform(10, 30);
        for _ in 0..1000 {
            let ms = uniform.draw(&mut random).as_millis();
            assert!((10..=30).contains(&ms), "{ms}");
        }
        let exponential = RowTime::Exponential(100);
        let sum: f64 = (0..20_000).map(|_| exponential.draw(&mut random).as_secs_f64()).sum();
        let mean_ms = sum * 1000.0 / 20_000.0;
        // 14 standard deviations of the mean of this many.
        assert!((90.0..110.0).contains(&mean_ms), "{mean_ms}");
    }
}
