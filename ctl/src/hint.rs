//! Owns: what is the same in every command that is printed for people to give next.
//!
//! Invariant: given as it is printed, it speaks of what the command that printed it spoke of.
//! Absent: which cluster, and as whom; those are the shell's.

use crate::connect::NAMESPACE_DEFAULT;

/// The flag that names a namespace, with a space before it; nothing for the one that commands mean without a flag.
pub(crate) fn namespace_flag(namespace: &str) -> String {
    match namespace {
        "" | NAMESPACE_DEFAULT => String::new(),
        _ => format!(" --namespace {namespace}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_named_where_it_is_another_than_the_default() {
        assert_eq!(namespace_flag("team-a"), " --namespace team-a");
        assert_eq!(namespace_flag(NAMESPACE_DEFAULT) + &namespace_flag(""), "");
    }
}
