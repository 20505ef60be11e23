//! An API key as its holder has it: `rk_`, an id of 8 characters, `_`, and a secret of 43 characters.
//!
//! *Invariant:* the secret comes from the random source of the operating system, and has 256 random bits. It is in the
//! text alone: neither the debug form nor an error shows it, and the cluster stores only the hash of the text.
//!
//! Absent: what the key allows, which the ledger knows by the id.

use std::fmt;
use std::str::FromStr;

use rand::TryRngCore as _;
use rand::rngs::OsRng;

/// The start of the text.
const PREFIX: &str = "rk_";
/// Characters of the id, letters and digits.
const ID_CHARS: usize = 8;
/// Characters of the secret, letters and digits. 43 of 62 different ones have 256 bits.
const SECRET_CHARS: usize = 43;

/// A text that is not an API key. The error never shows the text, which may have a secret in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not an API key: {PREFIX}ID_SECRET, as `rolloutctl key create` prints it")]
pub struct NoApiKey;

/// An API key, with its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    text: String,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl ApiKey {
    /// A new key, with an id and a secret of its own.
    ///
    /// # Errors
    /// The operating system has no random bytes.
    pub fn draw() -> Result<Self, std::io::Error> {
        let mut chars = Vec::new();
        while chars.len() < ID_CHARS + SECRET_CHARS {
            // Bytes that would make some characters likelier than others are left out, so one draw may not be enough.
            let mut bytes = [0; 64];
            OsRng.try_fill_bytes(&mut bytes).map_err(std::io::Error::other)?;
            chars.extend(bytes.iter().filter_map(|byte| character(*byte)));
        }
        let chars: String = chars.into_iter().collect();
        let (id, secret) = (&chars[..ID_CHARS], &chars[ID_CHARS..ID_CHARS + SECRET_CHARS]);
        Ok(Self { text: format!("{PREFIX}{id}_{secret}") })
    }

    /// Its id, which is not secret.
    pub fn id(&self) -> &str {
        &self.text[PREFIX.len()..PREFIX.len() + ID_CHARS]
    }

    /// blake3 of the whole text, which the cluster stores. Compare it in constant time.
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.text.as_bytes()).as_bytes()
    }

    /// The text including the secret: show it once, and do not write it anywhere.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

/// The letter or digit that a random byte selects; `None` for the bytes beyond the last multiple of their number.
fn character(byte: u8) -> Option<char> {
    const CHARACTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const USABLE: usize = 256 / CHARACTERS.len() * CHARACTERS.len();
    let byte = usize::from(byte);
    (byte < USABLE).then(|| char::from(CHARACTERS[byte % CHARACTERS.len()]))
}

impl FromStr for ApiKey {
    type Err = NoApiKey;

    /// Reads the text of a key. Whether the key exists is not known here.
    fn from_str(text: &str) -> Result<Self, NoApiKey> {
        let (id, secret) =
            text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_')).ok_or(NoApiKey)?;
        let is = |part: &str, chars: usize| {
            part.len() == chars && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        match is(id, ID_CHARS) && is(secret, SECRET_CHARS) {
            true => Ok(Self { text: text.to_owned() }),
            false => Err(NoApiKey),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_as_it_was_written_and_two_have_two_ids_and_secrets() {
        let [a, b] = [ApiKey::draw().unwrap(), ApiKey::draw().unwrap()];
        assert_ne!(a.id(), b.id());
        assert_ne!((a.reveal(), a.hash()), (b.reveal(), b.hash()));
        let read: ApiKey = a.reveal().parse().unwrap();
        assert_eq!((read.id(), read.hash()), (a.id(), a.hash()));
        assert_eq!(a.reveal().len(), "rk_".len() + 8 + "_".len() + 43);
    }

    #[test]
    fn neither_the_debug_form_nor_an_error_shows_the_secret() {
        let key = ApiKey::draw().unwrap();
        let secret = &key.reveal()[12..];
        assert!(!format!("{key:?}").contains(secret));
        assert!(format!("{key:?}").contains(key.id()));
        let bad = format!("{}+", key.reveal());
        assert!(!bad.parse::<ApiKey>().unwrap_err().to_string().contains(secret));
    }

    #[test]
    fn a_text_that_is_not_a_key_is_refused() {
        let (id, secret) = ("aB3dE6gH", "s".repeat(43));
        assert!(format!("rk_{id}_{secret}").parse::<ApiKey>().is_ok());
        for bad in [
            String::new(),
            "rk_".into(),
            format!("rk_{id}"),
            format!("rk_{id}_"),
            format!("sk_{id}_{secret}"),
            format!("rk_{id}x_{secret}"),
            format!("rk_{id}_{secret}x"),
            format!("rk_{id}_{}", "ü".repeat(22)),
            format!(" rk_{id}_{secret}"),
            format!("rk_aB3dE6g-_{secret}"),
        ] {
            assert_eq!(bad.parse::<ApiKey>(), Err(NoApiKey), "{bad}");
        }
    }

    #[test]
    fn each_letter_and_digit_is_equally_likely() {
        let mut times = std::collections::BTreeMap::new();
        for byte in 0..=u8::MAX {
            character(byte).into_iter().for_each(|c| *times.entry(c).or_insert(0) += 1);
        }
        assert_eq!(times.len(), 62);
        assert!(times.values().all(|times| *times == 4));
    }
}
