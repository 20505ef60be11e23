//! Creates a batch, or finds the one that the same request created before.
//!
//! *Invariant:* requests with the same idempotency key and the same body create one batch: the key is committed with
//! the batch, in one operation. Limits of namespaces and API keys are checked here, so they are exact.

use crate::batch::create_run::check_folder;
use crate::identity::api_key::KeyLimits;
use crate::kernel::id::BatchFence;
use crate::kernel::limits;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::OPENAI_API_VERSION;
use crate::openai::batch::{Batch, BatchCursor, BatchSpec, Stage, check_batch_id, check_key};
use serde::{Deserialize, Serialize};

/// Creates a batch, or finds the same one.
pub type CreateBatch = Box<BatchDecl>;

/// The batch to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchDecl {
    /// Its id if this creates it. No batch ever had it.
    pub id: String,
    /// Its namespace, which must exist.
    pub namespace: String,
    /// The id of the API key whose limits apply; empty for none.
    pub key: String,
    /// blake3 of the namespace and the request's idempotency key, if it has one.
    pub idempotency: Option<[u8; 32]>,
    /// blake3 of the request.
    pub body_hash: [u8; 32],
    /// What was asked for.
    pub spec: BatchSpec,
    /// The folder of the objects of its run: its id with a unique suffix.
    pub folder: String,
}

impl Operation for BatchDecl {
    const SINCE: u32 = OPENAI_API_VERSION;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        // Ended batches may have to make room.
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.namespace)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.create_batch(ctx, self)
    }
}

impl Ledger {
    fn create_batch(&mut self, ctx: &Context, decl: BatchDecl) -> Result<Reply, Rejection> {
        let now = self.meta.clock();
        check_batch_id(&decl.id)?;
        check_key(&decl.key)?;
        check_folder(&decl.id, &decl.folder)?;
        decl.spec.check()?;
        if !self.namespaces.contains_key(&decl.namespace) {
            return Err(Rejection::NamespaceUnknown(decl.namespace));
        }
        if let Some(made) = self.made_before(&decl)? {
            return Ok(Reply::Batch { id: made, created: false });
        }
        self.check_batch_room(&decl)?;
        let (namespace, input) = (decl.namespace.clone(), decl.spec.input_file.clone());
        self.check_batch_input(&namespace, &input)?;
        let batch = Batch {
            id: decl.id,
            namespace: decl.namespace,
            key: decl.key,
            body_hash: decl.body_hash,
            idempotency: decl.idempotency,
            spec: decl.spec,
            folder: decl.folder,
            created_ms: ctx.wall_ms,
            created_at: now,
            owner: None,
            fence: BatchFence::default(),
            model: String::new(),
            stage: Stage::Validating(BatchCursor::default()),
        };
        self.batches.make_room(&namespace, batch.text_bytes(), now)?;
        let id = batch.id.clone();
        self.api_files.add_user(&input);
        self.batches.add(ctx.batch(), batch);
        Ok(Reply::Batch { id, created: true })
    }

    /// The batch of an earlier request that is the same one, or a refusal if it was another one.
    fn made_before(&self, decl: &BatchDecl) -> Result<Option<String>, Rejection> {
        let (hash, own) = (decl.idempotency.as_ref(), decl.spec.rollout_key());
        let now = self.meta.clock();
        let by_id = self.batches.get(&decl.id);
        let by_key = || self.batches.made_before(&decl.namespace, hash, own, now);
        let Some(made) = by_id.or_else(by_key) else { return Ok(None) };
        match made.body_hash == decl.body_hash && made.namespace == decl.namespace {
            true => Ok(Some(made.id.clone())),
            false => Err(OpenAiRefusal::IdempotencyKeyReused(made.id.clone()).into()),
        }
    }

    /// The limits of an API key; none if there is no such key.
    pub(super) fn key_limits(&self, key: &str) -> KeyLimits {
        self.api_key(key).map(|key| key.spec.limits).unwrap_or_default()
    }

    /// Compares the batches that have not ended with their bounds.
    fn check_batch_room(&self, decl: &BatchDecl) -> Result<(), Rejection> {
        let (all, own) = (self.batches.open_count(), self.batches.open_in(&decl.namespace));
        if all >= limits::BATCHES_OPEN_MAX {
            let max = limits::BATCHES_OPEN_MAX as u64;
            return Err(Rejection::Limit { what: "batches that have not ended".into(), max });
        }
        if own >= limits::BATCHES_OPEN_IN_NAMESPACE_MAX {
            let (what, used) = ("batches that have not ended".to_owned(), own as u64);
            let max = limits::BATCHES_OPEN_IN_NAMESPACE_MAX as u64;
            return Err(Rejection::OverQuota {
                namespace: decl.namespace.clone(),
                what,
                used,
                max,
            });
        }
        let max = u64::from(self.key_limits(&decl.key).open_batches);
        let used = self.batches.open_of_key(&decl.key) as u64;
        check_key_limit(&decl.key, "batches that have not ended", (used, 1), max)
    }
}

/// Refuses `more` of what an API key has `used`, if it may have `max` of it. 0 means no limit.
pub(super) fn check_key_limit(
    key: &str,
    what: &str,
    (used, more): (u64, u64),
    max: u64,
) -> Result<(), Rejection> {
    match max == 0 || used.saturating_add(more) <= max {
        true => Ok(()),
        false => {
            let (key, what) = (key.to_owned(), what.to_owned());
            Err(OpenAiRefusal::KeyLimit { key, what, used, max }.into())
        }
    }
}
