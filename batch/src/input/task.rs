//! Owns: the task of a model, to the extent that it decides which fields of a row are read.
//!
//! Invariant: every task that a spec may name is one of these; an unknown one reads rows as `generate` does.
//! Absent: whether any worker offers it.

/// The task of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Task {
    /// A completion of a prompt or of messages.
    #[default]
    Generate,
    /// A vector of a prompt or of messages.
    Embed,
    /// A number for a query and a document.
    Score,
    /// The request in a line of the OpenAI Batch format.
    Openai,
}

impl Task {
    /// The task of that name.
    pub fn of(name: &str) -> Self {
        match name {
            "embed" => Self::Embed,
            "score" => Self::Score,
            "openai" => Self::Openai,
            _ => Self::Generate,
        }
    }

    /// Whether rows are sampled, so that sampling parameters apply.
    pub fn samples(self) -> bool {
        self == Self::Generate
    }

    /// The field of a row's own ID.
    pub fn id_field(self) -> &'static str {
        match self {
            Self::Openai => "custom_id",
            _ => "id",
        }
    }
}
