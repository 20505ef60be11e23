//! `--all-namespaces`: a list over every namespace that the caller may see.
//!
//! Invariant: the cluster lists the caller's namespaces, in one answer of one log index.

use rollout_proto::ALL_NAMESPACES;

/// Whether a list covers all namespaces.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct AllNamespaces {
    /// List all namespaces that your certificate allows; overrides --namespace
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

impl AllNamespaces {
    /// Whether all namespaces are requested.
    pub(in crate::rolloutctl) fn is_requested(self) -> bool {
        self.all_namespaces
    }

    /// The namespace to request: all, or the given one.
    pub(in crate::rolloutctl) fn namespace(self, one: String) -> String {
        if self.all_namespaces { ALL_NAMESPACES.to_owned() } else { one }
    }
}
