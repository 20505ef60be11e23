//! Owns: the codes of what is wrong with a line of an OpenAI batch file, or with the file.
//!
//! Invariant: the codes are OpenAI's where it has one; programs compare them, so none changes.
//! Absent: messages; those say what the line has.

/// A code of OpenAI's Batch API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LineCode {
    /// The line is no JSON object, or a field has a value that cannot be read.
    InvalidJsonLine,
    /// A required field is missing.
    MissingRequiredParameter,
    /// An earlier line has the same `custom_id`.
    DuplicateCustomId,
    /// The `custom_id` is no string, empty or too long.
    InvalidCustomId,
    /// The method is not POST.
    InvalidMethod,
    /// The URL is no path.
    InvalidUrl,
    /// The URL is not the batch's endpoint.
    UrlMismatch,
    /// The model is not that of the first line.
    MismatchedModel,
    /// The body asks for a stream, which a file cannot hold.
    StreamingUnsupported,
    /// The file has no line with a request.
    EmptyFile,
    /// The file has more lines with a request than a batch may have.
    TooManyTasks,
    /// The file has more bytes than a batch may have.
    FileTooLarge,
}

impl LineCode {
    /// Its name in `errors.data[].code`.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidJsonLine => "invalid_json_line",
            Self::MissingRequiredParameter => "missing_required_parameter",
            Self::DuplicateCustomId => "duplicate_custom_id",
            Self::InvalidCustomId => "invalid_custom_id",
            Self::InvalidMethod => "invalid_method",
            Self::InvalidUrl => "invalid_url",
            Self::UrlMismatch => "url_mismatch",
            Self::MismatchedModel => "mismatched_model",
            Self::StreamingUnsupported => "streaming_unsupported",
            Self::EmptyFile => "empty_file",
            Self::TooManyTasks => "too_many_tasks",
            Self::FileTooLarge => "file_too_large",
        }
    }
}

/// A code, and the field at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineFault {
    pub code: LineCode,
    /// The field's path, such as `body.model`; none for the line as a whole.
    pub param: Option<&'static str>,
}

impl LineFault {
    pub(super) fn new(code: LineCode, param: &'static str) -> Self {
        Self { code, param: Some(param) }
    }

    pub(super) fn whole(code: LineCode) -> Self {
        Self { code, param: None }
    }

    pub(super) fn missing(param: &'static str) -> Self {
        Self::new(LineCode::MissingRequiredParameter, param)
    }
}
