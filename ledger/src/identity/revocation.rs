//! The list of revoked certificates: single certificates, and those of an identity, either all or those issued before
//! a time.
//!
//! *Invariant:* a caller whose certificate the list covers cannot change the list. The revocation of an identity
//! never comes to cover fewer certificates, unless it is withdrawn. A rejected operation changes nothing. A restored
//! cluster keeps the whole list: a certificate that was stolen before the backup stays refused.
//!
//! Absent: certificates. Each member checks the certificates of its callers against this list.

use crate::kernel::codec;
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, read};
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::came_with;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The certificates that a revocation covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Revoked {
    /// Those of every identity.
    Everyone,
    /// The certificates of one identity, as `role/name`, whatever namespaces they list.
    Identity(String),
}

/// The certificate of a caller that changes the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationAuthor {
    /// As `role/name`.
    pub identity: String,
    /// Since when the certificate is valid, in seconds since 1970.
    pub not_before_s: u64,
}

/// A change of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RevocationOp {
    /// Revokes certificates. A repeat is accepted and changes nothing; a later time replaces an earlier one.
    Revoke {
        /// The certificates.
        whose: Revoked,
        /// Only certificates valid from before this time, in seconds since 1970; `None`: all of them.
        issued_before_s: Option<u64>,
        /// The reason, human-readable, at most [`limits::TEXT_BYTES_MAX`] bytes.
        reason: String,
        /// The caller; `None` without certificates. A caller whose certificate the list covers by now is rejected.
        by: Option<RevocationAuthor>,
    },
    /// Removes a revocation.
    Withdraw {
        /// The certificates.
        whose: Revoked,
        /// As in [`RevocationOp::Revoke`].
        by: Option<RevocationAuthor>,
    },
}

/// One entry of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// As in [`RevocationOp::Revoke`].
    pub issued_before_s: Option<u64>,
    /// Why.
    pub reason: String,
    /// When it was made: wall time of the leader, in milliseconds since 1970. Informational only.
    pub made_wall_ms: u64,
}

impl Revocation {
    /// The first second from which on certificates are accepted.
    fn end_s(&self) -> u64 {
        end_s(self.issued_before_s)
    }
}

/// The first second from which on certificates are accepted.
fn end_s(issued_before_s: Option<u64>) -> u64 {
    issued_before_s.unwrap_or(u64::MAX)
}

fn check_whose(whose: &Revoked) -> Result<(), Rejection> {
    let Revoked::Identity(identity) = whose else { return Ok(()) };
    match !identity.is_empty() && identity.len() <= limits::HOLDER_BYTES_MAX {
        true => Ok(()),
        false => {
            let max = limits::HOLDER_BYTES_MAX;
            Err(Rejection::Invalid(format!("an identity has 1 to {max} bytes")))
        }
    }
}

came_with!(RevocationOp, REVOCATIONS, {
    3: RevocationOp::Revoke { .. } | RevocationOp::Withdraw { .. },
});

impl Operation for RevocationOp {
    const SINCE: u32 = 3;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        self.came_with()
    }

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        // Their number is bounded, and a revocation must take effect now.
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Cluster
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(ledger.revocations.check_op(self).map(drop))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.revocations.execute(self, ctx.wall_ms)
    }
}

/// The list, and which of its records differ from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Revocations {
    /// Shared with readers that keep it: its address tells them whether it has changed.
    list: Arc<BTreeMap<Revoked, Revocation>>,
    dirty: BTreeSet<Revoked>,
}

impl Revocations {
    /// Whether the operation changes the list.
    fn check_op(&self, op: &RevocationOp) -> Result<bool, Rejection> {
        match op {
            RevocationOp::Revoke { whose, issued_before_s, reason, by } => {
                self.check_author(by.as_ref())?;
                check_whose(whose)?;
                if *whose == Revoked::Everyone && issued_before_s.is_none() {
                    let text = "revoking the certificates of every identity needs a time before which they were issued";
                    return Err(Rejection::Invalid(text.into()));
                }
                if reason.len() > limits::TEXT_BYTES_MAX {
                    let max = limits::TEXT_BYTES_MAX;
                    return Err(Rejection::Invalid(format!("a reason has at most {max} bytes")));
                }
                self.check_revoke(whose, *issued_before_s)
            }
            RevocationOp::Withdraw { whose, by } => {
                self.check_author(by.as_ref())?;
                match self.list.contains_key(whose) {
                    true => Ok(true),
                    false => Err(Rejection::RevocationUnknown(whose.to_string())),
                }
            }
        }
    }

    fn execute(&mut self, op: RevocationOp, wall_ms: u64) -> Result<Reply, Rejection> {
        if !self.check_op(&op)? {
            return Ok(Reply::Ok);
        }
        let list = Arc::make_mut(&mut self.list);
        let whose = match op {
            RevocationOp::Revoke { whose, issued_before_s, reason, .. } => {
                let made = Revocation { issued_before_s, reason, made_wall_ms: wall_ms };
                list.insert(whose.clone(), made);
                whose
            }
            RevocationOp::Withdraw { whose, .. } => {
                list.remove(&whose);
                whose
            }
        };
        self.dirty.insert(whose);
        Ok(Reply::Ok)
    }

    /// A revoked certificate can revoke and withdraw nothing, however close together the two operations are: of two
    /// administrators who revoke each other, one remains.
    fn check_author(&self, by: Option<&RevocationAuthor>) -> Result<(), Rejection> {
        let Some(RevocationAuthor { identity, not_before_s }) = by else { return Ok(()) };
        let covers = |whose: &Revoked| {
            self.list.get(whose).is_some_and(|revocation| *not_before_s < revocation.end_s())
        };
        let own = Revoked::Identity(identity.clone());
        match covers(&Revoked::Everyone) || covers(&own) {
            true => Err(Rejection::AuthorRevoked(own.to_string())),
            false => Ok(()),
        }
    }

    /// Whether the revocation changes the list.
    fn check_revoke(&self, whose: &Revoked, before_s: Option<u64>) -> Result<bool, Rejection> {
        match self.list.get(whose) {
            Some(revocation) if revocation.issued_before_s == before_s => Ok(false),
            Some(revocation) if revocation.end_s() > end_s(before_s) => {
                Err(Rejection::RevocationWider(whose.to_string()))
            }
            None if self.list.len() >= limits::REVOCATIONS_MAX => {
                let max = limits::REVOCATIONS_MAX as u64;
                Err(Rejection::Limit { what: "revocations".into(), max })
            }
            _ => Ok(true),
        }
    }

    /// Takes the records that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        for whose in std::mem::take(&mut self.dirty) {
            delta.set(revocation_key(&whose), self.list.get(&whose).map(codec::encode));
        }
    }

    /// Forgets which records differ from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty.clear();
    }

    pub(crate) fn each_revocation(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (whose, revocation) in self.list.iter() {
            each(&revocation_key(whose), &codec::encode(revocation));
        }
    }

    /// Reads a revocation's record.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let identity = std::str::from_utf8(&key[2..]).map_err(|_| bad(key))?;
        let whose = match identity {
            "" => Revoked::Everyone,
            identity => Revoked::Identity(identity.into()),
        };
        Arc::make_mut(&mut self.list).insert(whose, read(key, value)?);
        Ok(())
    }

    /// Checks the invariants of revocations.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.list.len() {
            many if many > limits::REVOCATIONS_MAX => Err(format!("{many} revocations")),
            _ => Ok(()),
        }
    }
}

/// Uses the tag of join tokens with a zero byte, which token names do not contain: no letter is left.
fn revocation_key(whose: &Revoked) -> Vec<u8> {
    match whose {
        Revoked::Everyone => key(b'E', &[&[0]]),
        Revoked::Identity(identity) => key(b'E', &[&[0], identity.as_bytes()]),
    }
}

impl Ledger {
    /// Every revocation: that of everyone first, then by identity. It is a new value after each change, and the same
    /// one as long as nothing changes.
    pub fn revocations(&self) -> &Arc<BTreeMap<Revoked, Revocation>> {
        &self.revocations.list
    }
}

impl std::fmt::Display for Revoked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Revoked::Everyone => f.write_str("everyone"),
            Revoked::Identity(identity) => f.write_str(identity),
        }
    }
}
