//! Owns: CHANGELOG.md in a release: the unreleased section becomes that of a version, and the notes of a version.
//!
//! Invariant: the text of the sections does not change, and each version has one section and one link, as Keep a
//! Changelog asks.
//! Absent: writing the text.

use super::version::Version;
use anyhow::{Context as _, Result, ensure};

const UNRELEASED: &str = "\n## [Unreleased]\n";
const UNRELEASED_LINK: &str = "\n[Unreleased]: ";

/// The address of the repository, which the link of the unreleased section begins with.
///
/// # Errors
/// When that link has another form.
pub(super) fn repository(changelog: &str) -> Result<&str> {
    let (repository, _) = link(changelog)?;
    Ok(repository)
}

/// The address of the repository, and the tag of the newest release: from `REPOSITORY/compare/TAG...HEAD`, or
/// `REPOSITORY/commits/main` before the first release.
fn link(changelog: &str) -> Result<(&str, Option<&str>)> {
    let (_, after) = changelog.split_once(UNRELEASED_LINK).context("no link of [Unreleased]")?;
    let link = after.lines().next().unwrap_or_default();
    if let Some(repository) = link.strip_suffix("/commits/main") {
        return Ok((repository, None));
    }
    let compared = link.strip_suffix("...HEAD").and_then(|link| link.split_once("/compare/"));
    let (repository, tag) =
        compared.with_context(|| format!("the link {link} compares nothing"))?;
    Ok((repository, Some(tag)))
}

/// The text from a heading of a version to the next one, without the heading.
fn section<'a>(changelog: &'a str, heading: &str) -> Result<&'a str> {
    let (_, after) = changelog.split_once(heading).with_context(|| {
        format!("CHANGELOG.md has no section that begins with {}", heading.trim())
    })?;
    let ends = ["\n## [", UNRELEASED_LINK].into_iter().filter_map(|end| after.find(end));
    Ok(&after[..ends.min().unwrap_or(after.len())])
}

/// Gives the unreleased section a version and a date, and begins a new one.
///
/// # Errors
/// When nothing is unreleased, or the version has a section already.
pub(super) fn released(changelog: &str, version: Version, date: &str) -> Result<String> {
    let body = section(changelog, UNRELEASED)?;
    let says = |line: &str| !line.trim().is_empty() && !line.starts_with('#');
    ensure!(body.lines().any(says), "the section [Unreleased] of CHANGELOG.md is empty");
    let heading = format!("\n## [{version}] - ");
    ensure!(!changelog.contains(&heading), "CHANGELOG.md has a section of {version} already");
    let (repository, before) = link(changelog)?;
    let tag = version.tag();
    let of_version = match before {
        Some(before) => format!("{repository}/compare/{before}...{tag}"),
        None => format!("{repository}/releases/tag/{tag}"),
    };
    let (top, rest) = changelog.split_once(UNRELEASED).context("no section [Unreleased]")?;
    let (sections, links) = rest.split_once(UNRELEASED_LINK).context("no link of [Unreleased]")?;
    let older = links.split_once('\n').map_or("", |(_, older)| older);
    Ok(format!(
        "{top}{UNRELEASED}{heading}{date}\n{sections}{UNRELEASED_LINK}{repository}/compare/{tag}...HEAD\n\
         [{version}]: {of_version}\n{older}"
    ))
}

/// What the changelog says of a version, for a page elsewhere: with links to the files of its tag.
///
/// # Errors
/// When the version has no section.
pub(super) fn notes(changelog: &str, version: Version) -> Result<String> {
    let body = section(changelog, &format!("\n## [{version}] - "))?;
    // The rest of the heading is the date.
    let (_, body) = body.split_once('\n').context("a heading without a section")?;
    let files = format!("{}/blob/{}", repository(changelog)?, version.tag());
    let mut texts = body.trim().split("](");
    let mut notes = texts.next().unwrap_or_default().to_owned();
    for text in texts {
        notes.push_str("](");
        if text.starts_with('#') {
            notes.push_str(&format!("{files}/CHANGELOG.md"));
        } else if !text.starts_with("https://") {
            notes.push_str(&format!("{files}/"));
        }
        notes.push_str(text);
    }
    Ok(notes + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPOSITORY: &str = "https://github.com/rollout-project/rollout";

    fn changelog(unreleased: &str) -> String {
        format!(
            "# Changelog\n\n## [Unreleased]\n{unreleased}\n[Unreleased]: {REPOSITORY}/commits/main\n"
        )
    }

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn the_unreleased_section_moves_below_a_new_one_with_links_that_compare() {
        let first = changelog("\n### Added\n\n- A, see [b](SECURITY.md).\n");
        let first = released(&first, version("0.1.0"), "2026-11-29").unwrap();
        assert_eq!(
            first,
            format!(
                "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-29\n\n### Added\n\n- A, see [b](SECURITY.md).\n\n\
                 [Unreleased]: {REPOSITORY}/compare/v0.1.0...HEAD\n\
                 [0.1.0]: {REPOSITORY}/releases/tag/v0.1.0\n"
            )
        );
        let more = first.replace("## [Unreleased]\n", "## [Unreleased]\n\n- C.\n");
        let second = released(&more, version("0.2.0"), "2026-12-01").unwrap();
        assert!(
            second.contains("## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n- C.\n\n## [0.1.0] - ")
        );
        let links = format!(
            "\n[Unreleased]: {REPOSITORY}/compare/v0.2.0...HEAD\n\
             [0.2.0]: {REPOSITORY}/compare/v0.1.0...v0.2.0\n\
             [0.1.0]: {REPOSITORY}/releases/tag/v0.1.0\n"
        );
        assert!(second.ends_with(&links), "{second}");
    }

    #[test]
    fn a_release_without_changes_or_with_a_released_version_is_refused() {
        let refused =
            |text: &str| released(text, version("0.1.0"), "2026-11-29").unwrap_err().to_string();
        assert!(refused(&changelog("\n")).contains("is empty"));
        assert!(refused(&changelog("\n### Added\n\n")).contains("is empty"));
        assert!(refused("# Changelog\n").contains("no section"));
        let again = released(&changelog("\n- A.\n"), version("0.1.0"), "2026-11-29").unwrap();
        assert!(refused(&again).contains("is empty"));
        let again = again.replace("## [Unreleased]\n", "## [Unreleased]\n\n- B.\n");
        assert!(refused(&again).contains("already"));
    }

    #[test]
    fn the_notes_of_a_version_link_to_the_files_of_its_tag() {
        let text = changelog("\n- [A](README.md), [b](#b), [c](https://example.com).\n");
        let text = released(&text, version("0.1.0"), "2026-11-29").unwrap();
        let files = format!("{REPOSITORY}/blob/v0.1.0");
        let expected = format!(
            "- [A]({files}/README.md), [b]({files}/CHANGELOG.md#b), [c](https://example.com).\n"
        );
        assert_eq!(notes(&text, version("0.1.0")).unwrap(), expected);
        assert!(notes(&text, version("0.1.1")).is_err());
    }

    #[test]
    fn the_changelog_of_this_repository_has_the_form() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../CHANGELOG.md");
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(repository(&text).unwrap(), REPOSITORY);
        assert!(section(&text, UNRELEASED).is_ok());
    }
}
