//! Owns: the primitives of the codec: little-endian numbers, options, length-prefixed bytes.
//!
//! Invariant: reading never panics and never allocates more than the input holds.
//! Absent: any knowledge of what is encoded.

use bytes::{Buf, Bytes};

use super::VERSION;

/// Bytes that are not a value of the expected form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CodecError {
    #[error("format version {0} is unknown to this program, which reads version {VERSION}")]
    Version(u8),
    #[error("the value ends in the middle of its {0}")]
    Short(&'static str),
    #[error("the {0} has an unknown tag {1}")]
    Tag(&'static str, u8),
    #[error("{0} bytes follow the value")]
    Trailing(usize),
    #[error("the {0} is invalid: {1}")]
    Invalid(&'static str, String),
}

impl From<CodecError> for std::io::Error {
    fn from(error: CodecError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// Appends primitives to a buffer.
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    /// A buffer that begins with the format version.
    pub(super) fn versioned(capacity: usize) -> Self {
        let mut out = Self(Vec::with_capacity(capacity + 1));
        out.u8(VERSION);
        out
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// A count. Nothing that this crate encodes comes near the bound.
    pub(super) fn count(&mut self, count: usize) {
        // invariant: counts and lengths are bounded far below 2^32 by the limits on commands and members.
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(super) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.raw(text.as_bytes());
    }

    pub(super) fn option<T>(&mut self, value: Option<&T>, put: impl FnOnce(&mut Self, &T)) {
        match value {
            None => self.u8(0),
            Some(value) => {
                self.u8(1);
                put(self, value);
            }
        }
    }
}

/// Takes primitives from the front of shared bytes.
pub(super) struct In(Bytes);

impl In {
    /// Checks the format version.
    pub(super) fn versioned(bytes: Bytes) -> Result<Self, CodecError> {
        let mut input = Self(bytes);
        match input.u8("version")? {
            VERSION => Ok(input),
            other => Err(CodecError::Version(other)),
        }
    }

    pub(super) fn take(&mut self, len: usize, what: &'static str) -> Result<Bytes, CodecError> {
        if self.0.len() < len {
            return Err(CodecError::Short(what));
        }
        Ok(self.0.split_to(len))
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, CodecError> {
        Ok(self.take(1, what)?[0])
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, CodecError> {
        Ok(self.take(4, what)?.get_u32_le())
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, CodecError> {
        Ok(self.take(8, what)?.get_u64_le())
    }

    /// A count of things of at least `min_bytes` each, so that a damaged count cannot make us allocate.
    pub(super) fn count(
        &mut self,
        min_bytes: usize,
        what: &'static str,
    ) -> Result<usize, CodecError> {
        let count = self.u32(what)? as usize;
        if count.saturating_mul(min_bytes) > self.0.len() {
            return Err(CodecError::Short(what));
        }
        Ok(count)
    }

    pub(super) fn bytes(&mut self, what: &'static str) -> Result<Bytes, CodecError> {
        let len = self.u32(what)? as usize;
        self.take(len, what)
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<String, CodecError> {
        let bytes = self.bytes(what)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(CodecError::Invalid(what, error.to_string())),
        }
    }

    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, CodecError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(CodecError::Tag(what, tag)),
        }
    }

    pub(super) fn option<T>(
        &mut self,
        what: &'static str,
        get: impl FnOnce(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Option<T>, CodecError> {
        if self.flag(what)? { get(self).map(Some) } else { Ok(None) }
    }

    /// Everything that is left.
    pub(super) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.0)
    }

    /// Refuses unconsumed bytes.
    pub(super) fn end<T>(self, value: T) -> Result<T, CodecError> {
        if self.0.is_empty() { Ok(value) } else { Err(CodecError::Trailing(self.0.len())) }
    }
}
