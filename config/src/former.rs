//! Former names of sections, which a file may have for one release.
//!
//! Invariant: no list of keys, no schema and no suggestion has a former name.
//! Absent: reading a section under it; the field of the section has the former name as its alias.

use toml::Table;

use crate::SettingError;

/// Former names with the present ones.
const SECTIONS: [(&str, &str); 1] = [("enrolment", "enrollment")];

/// Whether this is the former name of a section.
pub(crate) fn is_former(name: &str) -> bool {
    SECTIONS.iter().any(|(former, _)| *former == name)
}

/// Gives the sections of a file their present names.
///
/// # Errors
/// The file has a section under both names.
pub fn rename(file: &mut Table) -> Result<(), SettingError> {
    for (former, present) in SECTIONS {
        let Some(section) = file.remove(former) else { continue };
        if file.insert(present.to_owned(), section).is_some() {
            let reason = format!("[{former}] is its former name: keep [{present}] only");
            return Err(SettingError::new(present, reason));
        }
    }
    Ok(())
}
