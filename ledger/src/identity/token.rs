//! Join tokens: the holder of a token gets a certificate with the role and the namespaces of the token.
//!
//! *Invariant:* a token is used at most `uses_max` times, and a repeat is no second use: a use belongs to one name
//! and one public key, so that its repeat gets what was given before and nothing else. Secrets never come here, only
//! their hashes. A refused operation changes nothing.
//!
//! Absent: certificates, which members sign once a use was granted; and who may make tokens. A restored
//! cluster has none; otherwise a revoked one would be valid again.

use crate::kernel::codec;
use crate::kernel::deadline_queue::DeadlineQueue;
use crate::kernel::id::LedgerMs;
use crate::kernel::limits;
use crate::kernel::names::{check_labels, check_name};
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, read};
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::came_with;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The role of a certificate issued for a token. Admins and members get certificates by hand: either could do
/// everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenRole {
    /// An agent, under its own name.
    Worker,
    /// A client that submits runs, under the name in the token.
    Client,
}

/// The spec of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSpec {
    /// The role of the certificate that its holder gets.
    pub role: TokenRole,
    /// The only name that it is valid for; `None`, for workers only: any name that no registered worker has.
    pub holder: Option<String>,
    /// The namespaces of the certificate; none: all.
    pub namespaces: Vec<String>,
    /// Labels of every slot of the worker.
    pub labels: BTreeMap<String, String>,
    /// How long it is valid, in ledger time from its creation.
    pub ttl_ms: u64,
    /// How many uses it is good for, from 1.
    pub uses_max: u32,
}

/// The operations on tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenOp {
    /// Creates a token; a repeat gets the same answer.
    Create {
        /// Its name.
        name: String,
        /// blake3 of its secret, which has 128 random bits or more.
        secret_hash: [u8; 32],
        /// Its spec.
        spec: TokenSpec,
    },
    /// Revokes the token: it can no longer be used.
    Revoke {
        /// Its name.
        name: String,
    },
    /// Uses the token for a certificate.
    Spend(TokenUse),
}

/// A use of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUse {
    /// Its name.
    pub token: String,
    /// blake3 of the secret that was shown.
    pub secret_hash: [u8; 32],
    /// The identity to enroll.
    pub holder: String,
    /// blake3 of the public key to certify.
    pub key_hash: [u8; 32],
}

impl TokenUse {
    /// Identifies a use and its repeats. Half of a hash is enough: a collision costs its holder 2^64 tries and gains one more
    /// certificate of a token that the holder has anyway.
    fn id(&self) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.key_hash).update(self.holder.as_bytes());
        let (mut id, hash) = ([0; 16], hasher.finalize());
        id.copy_from_slice(&hash.as_bytes()[..16]);
        id
    }
}

/// One token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Token {
    secret_hash: [u8; 32],
    spec: TokenSpec,
    ends_at: LedgerMs,
    uses: BTreeSet<[u8; 16]>,
}

/// A token at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenView {
    /// Its name.
    pub name: String,
    /// Its spec.
    pub spec: TokenSpec,
    /// How often it was used.
    pub uses: u32,
    /// For how long it is still valid, in ledger time.
    pub left_ms: u64,
}

fn refused(why: &str) -> Rejection {
    Rejection::TokenRefused(why.into())
}

fn invalid(why: impl Into<String>) -> Rejection {
    Rejection::Invalid(why.into())
}

impl TokenSpec {
    fn check(&self) -> Result<(), Rejection> {
        match (&self.holder, self.role) {
            (Some(holder), _) => check_name("holder's", holder)?,
            (None, TokenRole::Client) => {
                return Err(invalid("a client's token has to say for whom it is"));
            }
            (None, TokenRole::Worker) => {}
        }
        if self.role == TokenRole::Client && !self.labels.is_empty() {
            return Err(invalid("labels are of workers: a client's token has none"));
        }
        if self.namespaces.len() > limits::TOKEN_NAMESPACES_MAX {
            let max = limits::TOKEN_NAMESPACES_MAX as u64;
            return Err(Rejection::Limit { what: "namespaces of a token".into(), max });
        }
        self.namespaces.iter().try_for_each(|name| check_name("namespace's", name))?;
        check_labels(&self.labels)?;
        if !(1..=limits::TOKEN_TTL_MS_MAX).contains(&self.ttl_ms) {
            let max = limits::TOKEN_TTL_MS_MAX;
            return Err(invalid(format!("a token is good for 1 to {max} ms")));
        }
        if !(1..=limits::TOKEN_USES_MAX).contains(&self.uses_max) {
            let max = limits::TOKEN_USES_MAX;
            return Err(invalid(format!("a token is good for 1 to {max} uses")));
        }
        Ok(())
    }
}

came_with!(TokenOp, TOKENS, {
    2: TokenOp::Create { .. } | TokenOp::Revoke { .. } | TokenOp::Spend(_),
});

impl Operation for TokenOp {
    const SINCE: u32 = 2;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        self.came_with()
    }

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        match self {
            Self::Create { .. } | Self::Spend(_) => true,
            Self::Revoke { .. } => false,
        }
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        match self {
            Self::Create { .. } | Self::Revoke { .. } => Subject::Cluster,
            Self::Spend(_) => Subject::Nothing,
        }
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        match self {
            Self::Create { name, secret_hash, spec } => {
                Some(ledger.tokens.check_create(name, secret_hash, spec).map(drop))
            }
            Self::Revoke { name } => Some(ledger.tokens.check_revoke(name)),
            Self::Spend(_) => None,
        }
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.token_op(self)
    }
}

/// All tokens, when they expire, and which of their records differ from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    by_name: BTreeMap<String, Token>,
    /// Derived: when they expire.
    ends: DeadlineQueue<String>,
    dirty: BTreeSet<String>,
}

impl Tokens {
    /// Whether the token is new; false if it exists with the same secret and spec.
    fn check_create(
        &self,
        name: &str,
        secret_hash: &[u8; 32],
        spec: &TokenSpec,
    ) -> Result<bool, Rejection> {
        check_name("token's", name)?;
        spec.check()?;
        if let Some(token) = self.by_name.get(name) {
            let same = token.secret_hash == *secret_hash && token.spec == *spec;
            return if same { Ok(false) } else { Err(Rejection::TokenConflict(name.to_owned())) };
        }
        if self.by_name.len() >= limits::TOKENS_MAX {
            let max = limits::TOKENS_MAX as u64;
            return Err(Rejection::Limit { what: "join tokens".into(), max });
        }
        Ok(true)
    }

    fn check_revoke(&self, name: &str) -> Result<(), Rejection> {
        match self.by_name.contains_key(name) {
            true => Ok(()),
            false => Err(Rejection::TokenUnknown(name.to_owned())),
        }
    }

    fn create(
        &mut self,
        name: String,
        secret_hash: [u8; 32],
        spec: TokenSpec,
        now: LedgerMs,
    ) -> Result<Reply, Rejection> {
        if !self.check_create(&name, &secret_hash, &spec)? {
            return Ok(Reply::Ok);
        }
        let ends_at = LedgerMs(now.0.saturating_add(spec.ttl_ms));
        let token = Token { secret_hash, spec, ends_at, uses: BTreeSet::new() };
        self.ends.set(&name, Some(ends_at));
        self.by_name.insert(name.clone(), token);
        self.dirty.insert(name);
        Ok(Reply::Ok)
    }

    /// Removes a token, if it exists.
    fn remove(&mut self, name: String) {
        if self.by_name.remove(&name).is_some() {
            self.ends.set(&name, None);
            self.dirty.insert(name);
        }
    }

    /// Counts a use, unless it is a repeat.
    fn count_use(&mut self, used: TokenUse) {
        let id = used.id();
        if self.by_name.get_mut(&used.token).is_some_and(|token| token.uses.insert(id)) {
            self.dirty.insert(used.token);
        }
    }

    /// The spec of the token of a new use, or `None` if the use is a repeat.
    fn check_use(&self, used: &TokenUse, now: LedgerMs) -> Result<Option<&TokenSpec>, Rejection> {
        let token = self.by_name.get(&used.token).filter(|t| t.secret_hash == used.secret_hash);
        let Some(token) = token else {
            // A caller without the secret must not learn whether the token exists.
            return Err(refused("there is no such token, or its secret is another one"));
        };
        if token.ends_at <= now {
            return Err(refused("the token has expired"));
        }
        check_name("holder's", &used.holder)?;
        if token.spec.holder.as_ref().is_some_and(|holder| *holder != used.holder) {
            return Err(refused("the token is for another name"));
        }
        if token.uses.contains(&used.id()) {
            return Ok(None);
        }
        if token.uses.len() >= token.spec.uses_max as usize {
            return Err(refused("the token was used as often as it may be"));
        }
        Ok(Some(&token.spec))
    }

    /// When the next token expires.
    pub(crate) fn next_end(&self) -> Option<LedgerMs> {
        self.ends.first()
    }

    /// Removes expired tokens.
    pub(crate) fn forget_expired(&mut self, now: LedgerMs) {
        for name in self.ends.by(now) {
            self.remove(name);
        }
    }

    /// Takes the records that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        for name in std::mem::take(&mut self.dirty) {
            let token = self.by_name.get(&name).map(codec::encode);
            delta.set(token_key(&name), token);
        }
    }

    pub(crate) fn each_token(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (name, token) in &self.by_name {
            each(&token_key(name), &codec::encode(token));
        }
    }

    /// Reads a token's record.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let name = std::str::from_utf8(&key[1..]).map_err(|_| bad(key))?;
        self.by_name.insert(name.into(), read(key, value)?);
        Ok(())
    }

    /// Rebuilds what is derived.
    pub(crate) fn derive(&mut self) {
        for (name, token) in &self.by_name {
            self.ends.set(name, Some(token.ends_at));
        }
    }

    /// Checks the invariants of tokens.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.by_name.len() > limits::TOKENS_MAX {
            return Err(format!("{} join tokens", self.by_name.len()));
        }
        let mut ends = DeadlineQueue::default();
        for (name, token) in &self.by_name {
            ends.set(name, Some(token.ends_at));
            if token.uses.len() > token.spec.uses_max as usize {
                return Err(format!("token {name} was used {} times", token.uses.len()));
            }
        }
        match ends == self.ends {
            true => Ok(()),
            false => Err(format!("tokens expire at {ends:?}, not {:?}", self.ends)),
        }
    }
}

/// The key of a token's record in the image.
fn token_key(name: &str) -> Vec<u8> {
    key(b'E', &[name.as_bytes()])
}

impl Ledger {
    fn token_op(&mut self, op: TokenOp) -> Result<Reply, Rejection> {
        match op {
            TokenOp::Create { name, secret_hash, spec } => {
                self.tokens.create(name, secret_hash, spec, self.meta.clock())
            }
            TokenOp::Revoke { name } => {
                self.tokens.check_revoke(&name)?;
                self.tokens.remove(name);
                Ok(Reply::Ok)
            }
            TokenOp::Spend(used) => {
                self.check_use(&used)?;
                self.tokens.count_use(used);
                Ok(Reply::Ok)
            }
        }
    }

    /// Checks whether a token can be used, as far as known before the use is in the log. A repeat is allowed.
    ///
    /// # Errors
    /// [`Rejection::TokenRefused`], or [`Rejection::WorkerNameTaken`] if another worker is registered under the name.
    pub fn check_use(&self, used: &TokenUse) -> Result<(), Rejection> {
        match self.tokens.check_use(used, self.meta.clock())? {
            Some(spec) => self.check_name_is_free(spec, &used.holder),
            None => Ok(()),
        }
    }

    /// Refuses a worker's name that a session has, because the session and its leases go with the name.
    fn check_name_is_free(&self, spec: &TokenSpec, name: &str) -> Result<(), Rejection> {
        if spec.role != TokenRole::Worker {
            return Ok(());
        }
        let all = &spec.namespaces;
        let within = |namespace: &str| all.is_empty() || all.iter().any(|one| one == namespace);
        let registered = self.workers.values().find(|w| w.name() == name && within(w.namespace()));
        match registered {
            Some(worker) => {
                let (name, address) = (worker.name().to_owned(), worker.address().to_owned());
                Err(Rejection::WorkerNameTaken { name, address })
            }
            None => Ok(()),
        }
    }

    /// One token.
    pub fn token_view(&self, name: &str) -> Option<TokenView> {
        self.tokens.by_name.get(name).map(|token| self.view_token(name, token))
    }

    /// Every token that has not expired, by name.
    pub fn token_views(&self) -> Vec<TokenView> {
        let views = self.tokens.by_name.iter().map(|(name, token)| self.view_token(name, token));
        views.filter(|view| view.left_ms > 0).collect()
    }

    fn view_token(&self, name: &str, token: &Token) -> TokenView {
        TokenView {
            name: name.to_owned(),
            spec: token.spec.clone(),
            uses: token.uses.len() as u32,
            left_ms: token.ends_at.0.saturating_sub(self.meta.clock().0),
        }
    }
}
