//! Owns: the replicated membership's record of a member, and the cluster's own name.
//!
//! Invariant: an id belongs to one data directory forever; a name may pass to a new id when a disk is replaced.
//! Absent: which members are alive. The leader observes that; it is never stored.

use std::fmt;
use std::str::FromStr;

/// A cluster, as 128 random bits drawn when it is formed. Epochs of two clusters are never compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(pub [u8; 16]);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not 32 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no cluster id: 32 lower-case hexadecimal digits are expected")]
pub struct BadClusterId(String);

impl FromStr for ClusterId {
    type Err = BadClusterId;

    fn from_str(text: &str) -> Result<Self, BadClusterId> {
        let bad = || BadClusterId(text.chars().take(64).collect());
        let digits = text.as_bytes();
        if digits.len() != 32 || !digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad());
        }
        let mut id = [0u8; 16];
        for (at, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(id))
    }
}

/// The target role of a member without a vote. For a voter, it says how the member got its vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joins {
    /// It gets a vote as soon as it has caught up, and the voter of that id, if one is named, leaves in the same step.
    Voter {
        /// The id of the voter that it replaces.
        replaces: Option<u64>,
    },
    /// It receives the log and gets no vote until an operator says so.
    Learner,
}

impl Default for Joins {
    fn default() -> Self {
        Self::Voter { replaces: None }
    }
}

/// A member as the replicated membership records it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemberRecord {
    /// Never reused within a cluster. 0 in a list that is given to [`crate::Node::bootstrap`].
    pub id: u64,
    /// The operator's name for it, unique among the members of one time.
    pub name: String,
    /// `host:port` for the other members.
    pub peer_addr: String,
    /// `host:port` for workers, clients and operators.
    pub client_addr: String,
    /// Failure domain; free text, may be empty.
    pub zone: String,
    /// Oldest cluster version that it can run.
    pub version_min: u32,
    /// Newest cluster version that it can run.
    pub version_max: u32,
    /// Its target role.
    pub joins: Joins,
    /// The leader has heard it answer with this id and this cluster: its data directory exists, so an empty one
    /// belongs to another member. Recorded from cluster version 3 on. `false` in records that operators make.
    pub adopted: bool,
}

/// Longest name, address or zone of a member, in bytes.
pub const MAX_MEMBER_TEXT_BYTES: usize = 255;

impl MemberRecord {
    /// What is wrong with this record, if anything.
    pub(crate) fn problem(&self) -> Option<String> {
        let texts = [
            ("name", &self.name, false),
            ("peer address", &self.peer_addr, false),
            ("client address", &self.client_addr, false),
            ("zone", &self.zone, true),
        ];
        for (what, text, may_be_empty) in texts {
            if text.is_empty() && !may_be_empty {
                return Some(format!("member {:?} has no {what}", self.name));
            }
            if text.len() > MAX_MEMBER_TEXT_BYTES {
                return Some(format!(
                    "the {what} of a member exceeds {MAX_MEMBER_TEXT_BYTES} bytes"
                ));
            }
        }
        (self.version_min > self.version_max).then(|| {
            format!(
                "member {:?} supports cluster versions {} to {}, which is an empty range",
                self.name, self.version_min, self.version_max
            )
        })
    }

    /// The operator's command that puts an empty member of the same name and addresses in this one's place.
    pub(crate) fn replace_command(&self) -> String {
        let [name, peer, client, zone] =
            [&self.name, &self.peer_addr, &self.client_addr, &self.zone].map(|text| word(text));
        let zone = if self.zone.is_empty() { String::new() } else { format!(" --zone {zone}") };
        format!("rolloutctl member replace {name} --peer-addr {peer} --client-addr {client}{zone}")
    }
}

/// Quotes a text as one shell word.
fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_replaced_at_the_addresses_that_the_cluster_has_on_record() {
        let member = |zone: &str| MemberRecord {
            name: "c3".into(),
            peer_addr: "c3.example:7421".into(),
            client_addr: "10.0.0.3:7420".into(),
            zone: zone.into(),
            ..MemberRecord::default()
        };
        let places =
            "rolloutctl member replace c3 --peer-addr c3.example:7421 --client-addr 10.0.0.3:7420";
        assert_eq!(member("").replace_command(), places);
        assert_eq!(member("b").replace_command(), format!("{places} --zone b"));
        assert_eq!(member("it's 7").replace_command(), format!(r"{places} --zone 'it'\''s 7'"));
    }

    #[test]
    fn a_cluster_id_survives_text_and_refuses_anything_else() {
        let id = ClusterId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 254, 255]);
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0dfeff");
        assert_eq!(id.to_string().parse::<ClusterId>(), Ok(id));
        for bad in
            ["", "00", "000102030405060708090A0B0C0DFEFF", "000102030405060708090a0b0c0dfefg"]
        {
            assert!(bad.parse::<ClusterId>().is_err(), "{bad}");
        }
    }
}
