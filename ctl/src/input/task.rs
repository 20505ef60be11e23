//! Owns: the task of a model, to the extent that it decides which fields of a row are read.
//!
//! Invariant: every task that a spec may name is one of these; an unknown one reads rows as `generate` does.
//! Absent: whether any worker offers it.

/// What is asked of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Task {
    /// A completion of a prompt or of messages.
    #[default]
    Generate,
    /// A vector of a prompt or of messages.
    Embed,
    /// A number for a query and a document.
    Score,
    /// Whatever a line of the OpenAI Batch format asks.
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

    /// Whether rows are sampled, so that sampling parameters mean something.
    pub fn samples(self) -> bool {
        self == Self::Generate
    }

    /// The field that is a row's own id.
    pub fn id_field(self) -> &'static str {
        match self {
            Self::Openai => "custom_id",
            _ => "id",
        }
    }
}
