//! A join token as its holder has it: one line of text.
//!
//! *Invariant:* the secret is generated here, has 160 random bits, and is disclosed only in the text and in an
//! enrollment; neither the debug form nor an error shows it. Before it is used, only its hash goes to the cluster.

use std::fmt;
use std::str::FromStr;

use crate::identity::check_name;
use crate::pki::AUTHORITIES_MAX;

/// The start of the text, which is its version.
const PREFIX: &str = "rollout1";
const SECRET_BYTES: usize = 20;

/// A text that is not a join token. The error never shows the text, which may have a secret in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not a join token: {PREFIX}:NAME:SECRET:AUTHORITY[:AUTHORITY...], as `rolloutctl token create` prints it"
)]
pub struct NoJoinToken;

/// A join token, with its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    name: String,
    secret: [u8; SECRET_BYTES],
    pins: Vec<[u8; 32]>,
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("name", &self.name).finish_non_exhaustive()
    }
}

impl JoinToken {
    /// A token with a new secret that names no authority yet.
    pub fn draw(name: &str) -> Self {
        Self { name: name.to_owned(), secret: rand::random(), pins: Vec::new() }
    }

    /// Adds the authorities whose members the holder trusts, by the hashes of their public keys.
    #[must_use]
    pub fn naming(mut self, pins: Vec<[u8; 32]>) -> Self {
        self.pins = pins;
        self
    }

    /// Its name, which is not secret.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The hash of the secret, which the cluster stores.
    pub fn secret_hash(&self) -> [u8; 32] {
        *blake3::hash(&self.secret).as_bytes()
    }

    pub(crate) fn secret(&self) -> &[u8] {
        &self.secret
    }

    pub(crate) fn pins(&self) -> &[[u8; 32]] {
        &self.pins
    }

    /// The text including the secret: show it once, and do not write it anywhere.
    pub fn reveal(&self) -> String {
        let mut text = format!("{PREFIX}:{}:{}", self.name, hex(&self.secret));
        for pin in &self.pins {
            text.push(':');
            text.push_str(&hex(pin));
        }
        text
    }
}

impl FromStr for JoinToken {
    type Err = NoJoinToken;

    fn from_str(text: &str) -> Result<Self, NoJoinToken> {
        let mut parts = text.trim().split(':');
        if parts.next() != Some(PREFIX) {
            return Err(NoJoinToken);
        }
        let name = parts.next().ok_or(NoJoinToken)?;
        check_name(name).map_err(|_| NoJoinToken)?;
        let secret = parts.next().and_then(unhex).ok_or(NoJoinToken)?;
        let pins: Option<Vec<[u8; 32]>> = parts.map(unhex).collect();
        let pins = pins.ok_or(NoJoinToken)?;
        match (1..=AUTHORITIES_MAX).contains(&pins.len()) {
            true => Ok(Self { name: name.to_owned(), secret, pins }),
            false => Err(NoJoinToken),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if !digits || text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..text.len()).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_as_it_was_written_and_two_have_two_secrets() {
        let token = JoinToken::draw("rack-7.a").naming(vec![[1; 32], [254; 32]]);
        assert_eq!(token.reveal().parse::<JoinToken>(), Ok(token.clone()));
        assert_eq!(format!("{}\n", token.reveal()).parse::<JoinToken>().as_ref(), Ok(&token));
        assert_ne!(JoinToken::draw("a").secret_hash(), JoinToken::draw("a").secret_hash());
    }

    /// Operators have such texts in files: they stay tokens.
    #[test]
    fn the_text_of_a_token_is_locked() {
        let (secret, pins) = ([6; SECRET_BYTES], vec![[1; 32], [254; 32]]);
        let token = JoinToken { name: "rack-7".into(), secret, pins };
        let (secret, pins) = ("06".repeat(20), ["01".repeat(32), "fe".repeat(32)]);
        let text = format!("rollout1:rack-7:{secret}:{}:{}", pins[0], pins[1]);
        assert_eq!(token.reveal(), text);
        assert_eq!(text.parse::<JoinToken>(), Ok(token.clone()));
        assert_eq!(token.secret_hash(), *blake3::hash(&[6; 20]).as_bytes());
    }

    #[test]
    fn neither_the_debug_form_nor_an_error_shows_the_secret() {
        let token = JoinToken::draw("rack").naming(vec![[1; 32]]);
        let secret = hex(&token.secret);
        assert!(token.reveal().contains(&secret));
        assert!(!format!("{token:?}").contains(&secret));
        let cut = token.reveal().replace("rollout1", "rollout2");
        assert!(!cut.parse::<JoinToken>().unwrap_err().to_string().contains(&secret));
    }

    #[test]
    fn anything_else_is_no_token() {
        let good = JoinToken::draw("rack").naming(vec![[1; 32]]).reveal();
        let no_pin = JoinToken::draw("rack").reveal();
        let many = JoinToken::draw("rack").naming(vec![[1; 32]; AUTHORITIES_MAX + 1]).reveal();
        for bad in [
            String::new(),
            "rollout1".into(),
            good.to_uppercase(),
            good[..good.len() - 1].to_owned(),
            good.replace("rack", "ra/ck"),
            format!("{good}:"),
            no_pin,
            many,
        ] {
            assert!(bad.parse::<JoinToken>().is_err(), "{bad}");
        }
    }
}
