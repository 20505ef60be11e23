//! Owns: the connection to a cluster.
//!
//! *Invariant:* it contacts no member before the first call, and reports problems with files and addresses immediately.
//! Absent: where the settings come from; the package reads environment and context files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rollout_gateway::{Sessions, WaitRoom};
use rollout_proto::{Client, ClientConfig, DialMap, Security, TlsFiles, v1};
use rollout_training::{Recovery, TrainerOptions};

use crate::call::Call;
use crate::error::raised;
use crate::gateway::Gateway;
use crate::participant::Participant;
use crate::rendezvous::Rendezvous;
use crate::store::JobStore;
use crate::trainer::Trainer;
use crate::wait::{runtime, wait_or_raise};

/// A cluster, and this process's certificate for it.
#[pyclass(frozen)]
pub struct Cluster {
    client: Client,
    sessions: Sessions,
    /// Places for the waits of all stores and gateways of this connection.
    room: WaitRoom,
}

impl Cluster {
    fn open(py: Python<'_>, config: ClientConfig) -> PyResult<Self> {
        let runtime = runtime()?;
        let client = py.detach(|| {
            let _inside = runtime.enter();
            Client::new(config)
        });
        let client = client.map_err(raised)?;
        let (sessions, room) = (Sessions::new(client.clone()), WaitRoom::new());
        Ok(Self { client, sessions, room })
    }
}

#[pymethods]
impl Cluster {
    /// Give all of `ca`, `cert` and `key`, or none of them and `insecure_plaintext`. `dial_map` has entries
    /// NAME=HOST:PORT.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    #[pyo3(signature = (endpoints, *, ca=None, cert=None, key=None, insecure_plaintext=false, dial_map=Vec::new(), timeout_ms=30_000))]
    fn new(
        py: Python<'_>,
        endpoints: Vec<String>,
        ca: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
        insecure_plaintext: bool,
        dial_map: Vec<String>,
        timeout_ms: u64,
    ) -> PyResult<Self> {
        let security = match (ca, cert, key, insecure_plaintext) {
            (Some(ca), Some(cert), Some(key), false) => Security::Mtls(TlsFiles { ca, cert, key }),
            (None, None, None, true) => Security::InsecurePlaintext,
            _ => {
                return Err(PyValueError::new_err(
                    "give ca, cert and key together, or insecure_plaintext alone",
                ));
            }
        };
        let mut config = ClientConfig::new(endpoints, security);
        config.dial_map = DialMap::from_entries(&dial_map)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        config.timeout = Duration::from_millis(timeout_ms);
        // Waits are long by design and not worth a message.
        config.on_wait = Some(Arc::new(|_| ()));
        Self::open(py, config)
    }

    /// The same cluster, over separate connections.
    fn fresh(&self, py: Python<'_>) -> PyResult<Self> {
        Self::open(py, self.client.config().clone())
    }

    /// A job's store. This sends no request yet. With the ticket of a member of the round, the cluster refuses the
    /// store once the ticket is void.
    #[pyo3(signature = (namespace, job, round, ticket=0))]
    fn store(&self, namespace: String, job: String, round: u64, ticket: u64) -> PyResult<JobStore> {
        let name = v1::StoreName { namespace, job, round, ticket };
        JobStore::start(self.client.clone(), self.room.clone(), name)
    }

    /// A port of this host that serves TCPStore's protocol for a round's store until it is closed; 0 chooses a free
    /// port. Its address, in 127.0.0.0/8, belongs to no other round of the job. `ticket` as for `store`.
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    #[pyo3(signature = (namespace, job, round, port, timeout_ms, ticket=0))]
    fn gateway(
        &self,
        py: Python<'_>,
        namespace: String,
        job: String,
        round: u64,
        port: u16,
        timeout_ms: u64,
        ticket: u64,
    ) -> PyResult<Gateway> {
        let within = Duration::from_millis(timeout_ms);
        let name = v1::StoreName { namespace, job, round, ticket };
        Gateway::start(py, (self.client.clone(), self.room.clone()), name, port, within)
    }

    /// A participant of a job's rendezvous; it joins on request.
    #[expect(clippy::too_many_arguments, reason = "what a participant is")]
    fn rendezvous(
        &self,
        namespace: String,
        job: String,
        name: String,
        host: String,
        addr: String,
        keep_alive_interval_ms: u32,
        keep_alive_attempts: u32,
    ) -> Rendezvous {
        let participant = v1::Participant {
            name,
            host,
            addr,
            keep_alive_interval_ms,
            keep_alive_attempts,
            ..v1::Participant::default()
        };
        Rendezvous::new(self.client.clone(), v1::JobName { namespace, job }, participant)
    }

    /// A participant of a job without a rendezvous, kept alive from now on.
    #[expect(clippy::too_many_arguments, reason = "what a participant is")]
    fn participate(
        &self,
        py: Python<'_>,
        namespace: String,
        job: String,
        name: String,
        host: String,
        addr: String,
        keep_alive_interval_ms: u32,
        keep_alive_attempts: u32,
        timeout_ms: u64,
    ) -> PyResult<Participant> {
        let participant = v1::Participant {
            name,
            host,
            addr,
            keep_alive_interval_ms,
            keep_alive_attempts,
            ..v1::Participant::default()
        };
        let job = v1::JobName { namespace, job };
        let within = Duration::from_millis(timeout_ms);
        Participant::start(py, self.client.clone(), job, participant, within)
    }

    /// A trainer of a job, kept alive from now on. With a `world`, all trainers by rank, it begins the lineage of
    /// `round` or joins the others in it; without one it joins the present lineage. `patience_ms` is how long each
    /// call is retried. `instance` is the same when a start that was not answered is repeated; 0 draws a new one.
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    #[pyo3(signature = (namespace, job, name, host, keep_alive_ms, patience_ms, *, instance=0, world=Vec::new(), round=0, checkpoint=0, continue_on_loss=false))]
    fn trainer(
        &self,
        py: Python<'_>,
        namespace: String,
        job: String,
        name: String,
        host: String,
        keep_alive_ms: u64,
        patience_ms: u64,
        instance: u64,
        world: Vec<String>,
        round: u64,
        checkpoint: u32,
        continue_on_loss: bool,
    ) -> PyResult<Trainer> {
        let keep_alive = Duration::from_millis(keep_alive_ms);
        let patience = Duration::from_millis(patience_ms);
        let options = TrainerOptions {
            namespace,
            job,
            name,
            instance,
            host,
            keep_alive,
            patience: Some(patience),
        };
        let recovery = Recovery { round, world, from: checkpoint, continue_on_loss };
        let recovery = Some(recovery).filter(|recovery| !recovery.world.is_empty());
        Trainer::start(py, &self.client, options, recovery, patience)
    }

    /// Makes any API call with a single answer, such as "Barrier/Arrive", with request and answer in JSON. Retries for
    /// `timeout_ms`; the leader may hold each request for `hold_ms`. A change that timed out may still take effect,
    /// once.
    #[pyo3(signature = (method, request, *, timeout_ms, hold_ms=0))]
    fn call(
        &self,
        py: Python<'_>,
        method: &str,
        request: &str,
        timeout_ms: u64,
        hold_ms: u64,
    ) -> PyResult<String> {
        let call = Call::parse(method, request)?;
        let answer = call.answer();
        let request = call.send(&self.client, &self.sessions, Duration::from_millis(hold_ms));
        let within = Duration::from_millis(timeout_ms);
        let what = format!("no answer to {method}; a change may yet take effect");
        let bytes = wait_or_raise(py, within, &what, request)?.map_err(raised)?;
        Call::json_of(&answer, bytes)
    }

    /// The cluster's ID; empty until a member has answered.
    #[getter]
    fn cluster_id(&self) -> String {
        self.client.cluster_id()
    }
}
