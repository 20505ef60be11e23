//! One verb for several names.
//!
//! Invariant: if one name fails, the others are still processed. Each failure is printed, and the exit status is the
//! worst. Absent: one request for all; each name has its own.

use std::fmt::Display;

use super::request::RequestName;
use super::{Failure, exit};
use crate::output::Format;
use crate::stdio::to_stderr;

/// Does the work for each name.
///
/// # Errors
/// The error of the single name, or the worst of several, which were printed. Exit status 2 if a request is to be
/// repeated for several names.
pub(super) async fn for_each_name<N: Clone + Display>(
    names: Vec<N>,
    format: Format,
    again: Option<RequestName>,
    mut work: impl AsyncFnMut(N, Format) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if let [name] = &names[..] {
        return work(name.clone(), format).await;
    }
    if again.is_some() {
        return Err(Failure::usage("--request-id belongs to one request: give one name").into());
    }
    let mut worst = 0;
    for name in names {
        if let Err(error) = work(name.clone(), format.of_many()).await {
            to_stderr(&format!("{name}: {}", exit::explain(&error)));
            worst = worst.max(exit::code(&error));
        }
    }
    match worst {
        0 => Ok(()),
        code => Err(Failure::reported(code).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_other_names_are_processed_if_one_fails() {
        let names = || ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut done = Vec::new();
        let outcome = for_each_name(names(), Format::Json, None, async |name, format| {
            done.push((name.clone(), format));
            match &*name {
                "a" => Err(Failure::conflict("it has ended").into()),
                "b" => Err(Failure::not_found("there is none").into()),
                _ => Ok(()),
            }
        });
        let error = outcome.await.unwrap_err();
        assert_eq!((exit::code(&error), exit::explain(&error)), (5, String::new()));
        let expected = names().into_iter().map(|name| (name, Format::JsonLine));
        assert_eq!(done, expected.collect::<Vec<_>>());
        let again = Some("1.1".parse().unwrap());
        let refused =
            for_each_name(names(), Format::Json, again, async |_, _| Ok(())).await.unwrap_err();
        assert_eq!(exit::code(&refused), 2);
    }
}
