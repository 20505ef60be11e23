//! Byte strings of shared stores in commands and records, encoded and decoded as a whole.
//!
//! *Invariant:* the encoding is that of a `Vec<u8>`, byte for byte: a length and the bytes. Serde would encode a
//! `Vec<u8>` one byte at a time, which costs each member milliseconds for values of a megabyte.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Bytes to encode.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0)
    }
}

/// Bytes that were decoded.
pub(crate) struct Decoded(pub(crate) Vec<u8>);

impl<'de> Deserialize<'de> for Decoded {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Whole;

        impl Visitor<'_> for Whole {
            type Value = Decoded;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Decoded, E> {
                Ok(Decoded(bytes.to_vec()))
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Decoded, E> {
                Ok(Decoded(bytes))
            }
        }

        from.deserialize_byte_buf(Whole)
    }
}

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    Bytes(bytes).serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    Decoded::deserialize(from).map(|bytes| bytes.0)
}

/// Pairs of byte strings.
pub(crate) mod pairs {
    use super::{Bytes, Decoded};
    use serde::{Deserialize, Deserializer, Serializer};

    type Pair = (Vec<u8>, Vec<u8>);

    pub(crate) fn serialize<S: Serializer>(pairs: &[Pair], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(pairs.iter().map(|(key, value)| (Bytes(key), Bytes(value))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Pair>, D::Error> {
        let pairs = Vec::<(Decoded, Decoded)>::deserialize(from)?;
        Ok(pairs.into_iter().map(|(key, value)| (key.0, value.0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::codec;
    use crate::machine::command::StoreOp;

    /// As commands had them before.
    #[derive(Serialize, Deserialize)]
    enum ByElement {
        Set { pairs: Vec<(Vec<u8>, Vec<u8>)> },
        Add { key: Vec<u8>, delta: i64 },
        CompareSet { key: Vec<u8>, expected: Vec<u8>, desired: Vec<u8> },
        Append { key: Vec<u8>, value: Vec<u8> },
        Delete { key: Vec<u8> },
        Push { queue: Vec<u8>, value: Vec<u8> },
        Pop { queue: Vec<u8> },
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| n as u8).collect()
    }

    #[test]
    fn bytes_are_encoded_as_they_were_element_by_element() {
        for len in [0, 1, 127, 128, 255, 16_384, 1 << 20] {
            let own = bytes(len);
            let encoded = codec::encode(&own);
            assert_eq!(codec::encode(&Bytes(&own)), encoded, "{len}");
            assert_eq!(codec::decode::<Decoded>(&encoded).map(|bytes| bytes.0), Some(own), "{len}");
        }
        let cut = codec::encode(&Bytes(&bytes(200)));
        assert!(codec::decode::<Decoded>(&cut[..100]).is_none());
    }

    #[test]
    fn operations_are_encoded_as_they_were_element_by_element() {
        let (a, b, c) = (bytes(3), bytes(300), bytes(0));
        let (key, value, queue) = (a.clone(), b.clone(), a.clone());
        let (expected, desired) = (b.clone(), c.clone());
        let pairs = vec![(a.clone(), b.clone()), (c.clone(), c), (b, a)];
        let delta = -7;
        macro_rules! same {
            ($($kind:ident { $($field:ident),+ }),+) => {$({
                $(let $field = $field.clone();)+
                let is = StoreOp::$kind { $($field: $field.clone()),+ };
                let was = codec::encode(&ByElement::$kind { $($field),+ });
                assert_eq!(codec::encode(&is), was, "{is:?}");
                assert_eq!(codec::decode(&was), Some(is));
            })+};
        }
        same!(
            Set { pairs },
            Add { key, delta },
            CompareSet { key, expected, desired },
            Append { key, value },
            Delete { key },
            Push { queue, value },
            Pop { queue }
        );
    }
}
