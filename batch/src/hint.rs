//! Owns: the part that all commands printed for the user to run next have in common.
//!
//! Invariant: run as printed, such a command refers to the same things as the command that printed it.
//! Absent: the cluster and the credentials; those come from the shell.

use std::path::Path;

/// The namespace of a command that names none.
pub const NAMESPACE_DEFAULT: &str = "default";

/// The flag that names a namespace, with a space before it; empty for the default namespace.
pub fn namespace_flag(namespace: &str) -> String {
    match namespace {
        "" | NAMESPACE_DEFAULT => String::new(),
        _ => format!(" --namespace {namespace}"),
    }
}

/// A text quoted as one shell word.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// A path quoted as one shell word.
pub fn shell_path(path: &Path) -> String {
    shell_word(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_named_where_it_is_another_than_the_default() {
        assert_eq!(namespace_flag("team-a"), " --namespace team-a");
        assert_eq!(namespace_flag(NAMESPACE_DEFAULT) + &namespace_flag(""), "");
    }

    #[test]
    fn a_shell_reads_the_word_that_was_meant() {
        assert_eq!(shell_word("/a/b-1.toml"), "/a/b-1.toml");
        for word in ["", "a b", "it's", "$HOME", "a;b", "*", "~", "é\\"] {
            let echo = format!("printf %s {}", shell_word(word));
            let said = std::process::Command::new("sh").arg("-c").arg(echo).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), word);
        }
    }
}
