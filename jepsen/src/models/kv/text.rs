//! A text that shares its prefix with the text it was appended to, so that a chain of appended texts costs no more
//! memory than the appended pieces.
//!
//! *Invariant:* two texts are equal exactly if their bytes are, however they were put together. Digests only prove
//! that two texts differ, never that they are equal.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem::size_of;
use std::sync::Arc;

/// The factor of a digest for each further byte.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes of one part between two kept digests.
const BYTES_PER_MARK: usize = 256;

/// See the module. The default is empty.
#[derive(Clone, Default)]
pub struct Text(Option<Arc<Part>>);

/// The last part of a text, and the text before it.
struct Part {
    before: Text,
    /// Never empty.
    more: Arc<str>,
    /// Length of the whole text up to here.
    len: usize,
    digest: u64,
    /// Digests of the text up to each multiple of [`BYTES_PER_MARK`] within `more`.
    marks: Box<[u64]>,
}

fn extended(digest: u64, more: &[u8]) -> u64 {
    more.iter().fold(digest, |digest, byte| {
        digest.wrapping_mul(BASE).wrapping_add(u64::from(*byte)).wrapping_add(1)
    })
}

impl Text {
    /// A text of one part.
    pub fn new(text: &Arc<str>) -> Self {
        Self::default().with(text)
    }

    /// This one with `more` at its end.
    pub fn with(&self, more: &Arc<str>) -> Self {
        if more.is_empty() {
            return self.clone();
        }
        let chunks = more.as_bytes().chunks(BYTES_PER_MARK);
        let mut digest = self.digest();
        let mut marks: Vec<u64> = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            digest = extended(digest, chunk);
            marks.push(digest);
        }
        marks.pop(); // The last is of all of it.
        let (before, more, len) = (self.clone(), more.clone(), self.len() + more.len());
        Self(Some(Arc::new(Part { before, more, len, digest, marks: marks.into() })))
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |part| part.len)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn digest(&self) -> u64 {
        self.0.as_ref().map_or(0, |part| part.digest)
    }

    /// Whether it may begin with `other`; `false` is always right.
    pub fn may_start_with(&self, other: &Self) -> bool {
        other.len() <= self.len() && self.digest_to(other.len()) == other.digest()
    }

    /// The digest of its first `len` bytes; it has at least that many.
    fn digest_to(&self, len: usize) -> u64 {
        let mut text = self;
        while let Some(part) = &text.0 {
            if len == part.len {
                return part.digest;
            }
            let Some(within) = len.checked_sub(part.before.len()) else {
                text = &part.before;
                continue;
            };
            let marks = within / BYTES_PER_MARK;
            let mark = marks.checked_sub(1).and_then(|last| part.marks.get(last).copied());
            let from = marks * BYTES_PER_MARK;
            let digest = mark.unwrap_or_else(|| part.before.digest());
            return extended(digest, &part.more.as_bytes()[from..within]);
        }
        0
    }

    /// About how many bytes it holds, without what it shares with other texts and with the operations.
    pub fn own_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |part| size_of::<Part>() + part.marks.len() * size_of::<u64>())
    }
}

/// The rest of a text that is read from its end.
struct Tail<'a> {
    part: Option<&'a Arc<Part>>,
    rest: &'a [u8],
}

impl<'a> Tail<'a> {
    fn of(text: &'a Text) -> Self {
        let part = text.0.as_ref();
        Self { part, rest: part.map_or(&[][..], |part| part.more.as_bytes()) }
    }

    /// Whether both are at the same position of the same text.
    fn is(&self, other: &Self) -> bool {
        let same = match (self.part, other.part) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (one, two) => one.is_none() && two.is_none(),
        };
        same && self.rest.len() == other.rest.len()
    }

    /// The last `count` bytes; its last part has at least that many.
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (rest, taken) = self.rest.split_at(self.rest.len() - count);
        match self.part {
            Some(part) if rest.is_empty() => *self = Self::of(&part.before),
            _ => self.rest = rest,
        }
        taken
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        if (self.len(), self.digest()) != (other.len(), other.digest()) {
            return false;
        }
        let (mut one, mut two) = (Tail::of(self), Tail::of(other));
        while !one.is(&two) {
            let count = one.rest.len().min(two.rest.len());
            if one.take(count) != two.take(count) {
                return false;
            }
        }
        true
    }
}

impl Eq for Text {}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.len(), self.digest()).hash(state);
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // Drops part by part: recursion would overflow the stack on texts of many parts.
        let mut last = self.0.take();
        while let Some(mut part) = last.and_then(Arc::into_inner) {
            last = part.before.0.take();
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<&str> = Vec::new();
        let mut text = self;
        while let Some(part) = &text.0 {
            parts.push(&part.more);
            text = &part.before;
        }
        parts.iter().rev().try_for_each(|part| f.write_str(part))
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::collections::HashSet;

    /// A text in parts of at most this many bytes.
    fn parts(text: &str, most: usize, rng: &mut StdRng) -> Text {
        let (mut made, mut rest) = (Text::default(), text);
        while !rest.is_empty() {
            let (more, left) = rest.split_at(rng.random_range(0..=most.min(rest.len())));
            (made, rest) = (made.with(&more.into()), left);
        }
        made
    }

    #[test]
    fn texts_are_equal_and_begin_with_others_as_their_bytes_do_however_they_were_made() {
        let mut rng = StdRng::seed_from_u64(1);
        let (mut seen, mut strings) = (HashSet::new(), HashSet::new());
        for _ in 0..2_000 {
            // Few different letters, so that many texts share a prefix; some texts are longer than a mark.
            let length = rng.random_range(0..8) * if rng.random_ratio(1, 4) { 150 } else { 1 };
            let one: String = (0..length).map(|_| if rng.random() { 'a' } else { 'b' }).collect();
            let cut = rng.random_range(0..=length);
            let more = rng.random_bool(0.3).then_some('a');
            let other: String = one[..cut].chars().chain(more).collect();
            let most = [1, 3, 400][rng.random_range(0..3)];
            let (text, shorter) = (parts(&one, most, &mut rng), parts(&other, most, &mut rng));
            assert_eq!((text.to_string(), text.len()), (one.clone(), one.len()));
            assert_eq!(text == shorter, one == other, "{one} and {other}");
            assert_eq!(text.may_start_with(&shorter), one.starts_with(&other), "{one}, {other}");
            let whole = Text::new(&one.as_str().into());
            assert_eq!(text, whole);
            assert_eq!(seen.insert(text), strings.insert(one), "equal ones have equal hashes");
            assert!(seen.contains(&whole));
        }
    }

    /// For all digests of this kind, texts with the same digest can be constructed.
    #[test]
    fn texts_with_one_digest_are_equal_only_if_their_bytes_are() {
        let letter = |at: u32, one: char, other: char| {
            if at.count_ones().is_multiple_of(2) { one } else { other }
        };
        let text = |one, other| (0..2_048).map(|at| letter(at, one, other)).collect::<String>();
        let [one, other] = [text('a', 'b'), text('b', 'a')].map(|text| Text::new(&text.into()));
        assert_eq!((one.len(), one.digest()), (other.len(), other.digest()));
        assert_ne!(one, other);
    }

    #[test]
    fn a_text_of_a_million_parts_is_compared_and_dropped() {
        let made = || (0..1_000_000).fold(Text::default(), |text, _| text.with(&"x".into()));
        let (one, other) = (made(), made());
        assert!(one == other);
        drop(one);
        assert_eq!(other.to_string().len(), 1_000_000);
    }
}
