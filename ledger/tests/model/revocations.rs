//! Revocations in the model: a list that is searched, and the actions on it.

use crate::naive::{Model, Outcome};
use proptest::prelude::*;
use rollout_ledger::{
    Ledger, OpKind, Rejection, Reply, Revocation, RevocationAuthor, RevocationOp, Revoked,
};
use std::collections::BTreeMap;

/// What is done with revocations of two identities and of everyone.
#[derive(Clone, Debug)]
pub(crate) enum RevocationAct {
    Revoke { whose: u8, before: Option<u8>, by: u8 },
    Withdraw { whose: u8, by: u8 },
}

pub(crate) fn revocation_act() -> impl Strategy<Value = RevocationAct> {
    let before = || prop_oneof![4 => (0..4u8).prop_map(Some), 1 => Just(None)];
    prop_oneof![
        3 => (0..3u8, before(), 0..4u8)
            .prop_map(|(whose, before, by)| RevocationAct::Revoke { whose, before, by }),
        1 => (0..3u8, 0..4u8).prop_map(|(whose, by)| RevocationAct::Withdraw { whose, by }),
    ]
}

fn whose_certificates(number: u8) -> Revoked {
    match number {
        0 => Revoked::Everyone,
        number => Revoked::Identity(format!("worker/w{number}")),
    }
}

/// No author, one who is never revoked, and the two who are, with certificates from time 2.
fn author(number: u8) -> Option<RevocationAuthor> {
    (number > 0)
        .then(|| RevocationAuthor { identity: format!("worker/w{}", number - 1), not_before_s: 2 })
}

impl RevocationAct {
    pub(crate) fn kind(&self) -> OpKind {
        OpKind::Revocation(match *self {
            RevocationAct::Revoke { whose, before, by } => RevocationOp::Revoke {
                whose: whose_certificates(whose),
                issued_before_s: before.map(u64::from),
                reason: "stolen".to_owned(),
                by: author(by),
            },
            RevocationAct::Withdraw { whose, by } => {
                RevocationOp::Withdraw { whose: whose_certificates(whose), by: author(by) }
            }
        })
    }
}

impl Model {
    pub(crate) fn revocation(&mut self, op: RevocationOp) -> Outcome {
        if self.version < 3 {
            return Err(Rejection::VersionLow { needs: 3, version: self.version });
        }
        let (RevocationOp::Revoke { by, .. } | RevocationOp::Withdraw { by, .. }) = &op;
        if let Some(by) = by {
            let refuses = |(whose, of): &(Revoked, Revocation)| {
                let theirs = *whose == Revoked::Everyone || whose.to_string() == by.identity;
                theirs && of.issued_before_s.is_none_or(|before| by.not_before_s < before)
            };
            if self.revocations.iter().any(refuses) {
                return Err(Rejection::AuthorRevoked(by.identity.clone()));
            }
        }
        match op {
            RevocationOp::Revoke { whose, issued_before_s, reason, .. } => {
                if whose == Revoked::Everyone && issued_before_s.is_none() {
                    let text = "revoking the certificates of every identity needs a time before which they were issued";
                    return Err(Rejection::Invalid(text.into()));
                }
                let known = self.revocations.iter().find(|known| known.0 == whose);
                let covers = |known: &(Revoked, Revocation)| match (
                    known.1.issued_before_s,
                    issued_before_s,
                ) {
                    (before, new) if before == new => Some(true),
                    (None, Some(_)) => Some(false),
                    (Some(before), Some(new)) if before > new => Some(false),
                    _ => None,
                };
                match known.and_then(covers) {
                    Some(true) => return Ok(Reply::Ok),
                    Some(false) => return Err(Rejection::RevocationWider(whose.to_string())),
                    None => {}
                }
                self.revocations.retain(|known| known.0 != whose);
                self.revocations
                    .push((whose, Revocation { issued_before_s, reason, made_wall_ms: 0 }));
                self.events.push("revoked".into());
                Ok(Reply::Ok)
            }
            RevocationOp::Withdraw { whose, .. } => {
                let before = self.revocations.len();
                self.revocations.retain(|known| known.0 != whose);
                match self.revocations.len() < before {
                    true => Ok(Reply::Ok),
                    false => Err(Rejection::RevocationUnknown(whose.to_string())),
                }
            }
        }
    }

    /// The list as the ledger has it, without wall times.
    pub(crate) fn revocations(&self) -> BTreeMap<Revoked, Revocation> {
        self.revocations.iter().cloned().collect()
    }
}

/// The ledger's list, without wall time.
pub(crate) fn listed(ledger: &Ledger) -> BTreeMap<Revoked, Revocation> {
    let untimed = |of: &Revocation| Revocation { made_wall_ms: 0, ..of.clone() };
    ledger.revocations().iter().map(|(whose, of)| (whose.clone(), untimed(of))).collect()
}
