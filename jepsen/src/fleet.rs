//! Starts three members as operators would, each with a process, a directory and a certificate of its own; all
//! traffic goes through [`Network`].
//!
//! *Invariant:* every process reaches a member through a link of its own. Only observers connect directly, because
//! what they see must not depend on the faults.

mod builds;
mod processes;
mod programs;

pub use builds::earlier_build;
pub use processes::Death;

use crate::family::Family;
use crate::network::Network;
use crate::preload::Preload;
use crate::process::Process;
use anyhow::{Context, Result, bail};
use builds::Builds;
use processes::Processes;
use rollout_proto::pki::{self, IssueRequest};
use rollout_proto::{
    ChannelOptions, Client, ClientConfig, ClientTls, DialMap, Endpoint, Role, Security, TlsFiles,
    channel, v1,
};
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time limit for forming the cluster on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Members listen on ports from here up, below those that Linux assigns.
const FIRST_PORT: u32 = 10_000;
const PORTS: u32 = 22_000;

/// After this silence a worker is suspect: its rows go to others.
pub const FAILURE: Duration = Duration::from_millis(2000);
/// Timings that make leases lapse within a run of a minute, including those of started rows, and that make images
/// small and frequent.
const CONFIG: &str = "[worker]\nheartbeat_ms = 200\nself_fence_ms = 1500\nfailure_ms = 2000\n\
                      started_grace_ms = 4000\n[raft]\nimage_log_bytes = 65536\n";
const CALM: &str = "image_interval_ms = 2000\n";
/// Settings for snapshots every second or two, and for so little log that a member needs one after a few seconds.
const SNAPSHOTS: &str = "image_interval_ms = 300\nlog_keep_bytes = 8192\n";

/// The leaders' lease in milliseconds, in runs that test it. A leader that is cut off reads for four fifths of its
/// lease, and a follower that restarts waits for up to one lease before it asks for votes. A restart, an election and
/// a write must fit into the rest; the lease of a profile is too short for that.
pub const LEASE_MS: u64 = 6000;

/// The number of original members.
pub const MEMBERS: usize = 3;

/// A member or a spare: its name, addresses and starts.
#[derive(Clone)]
pub struct FleetMember {
    pub name: String,
    /// Its client address, bypassing the network.
    pub client: String,
    peer: String,
    /// How often its process was started.
    pub lives: Arc<AtomicU64>,
}

impl FleetMember {
    /// Its peer address, bypassing the network.
    pub fn peer(&self) -> &str {
        &self.peer
    }
}

pub struct Fleet {
    dir: PathBuf,
    builds: Builds,
    /// Snapshots are frequent, and so little log is kept that members need them.
    snapshots: bool,
    /// Leaders have a lease of [`LEASE_MS`], not the lease of the profile.
    long_lease: bool,
    /// The members, followed by the spares that may become members for a while.
    pub members: Vec<FleetMember>,
    processes: Processes,
    /// The library under which all of them run.
    pub preload: Arc<Preload>,
    /// The network between all of them.
    pub network: Arc<Network>,
}

fn free_addr() -> Result<String> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    for _ in 0..PORTS {
        let next = u32::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or_default();
        let port = FIRST_PORT + (std::process::id().wrapping_mul(307).wrapping_add(next)) % PORTS;
        let addr = format!("127.0.0.1:{port}");
        if TcpListener::bind(&addr).is_ok() {
            return Ok(addr);
        }
    }
    bail!("no port of loopback is free")
}

impl Fleet {
    /// Starts three members from the programs in `bin`, or from those of an `earlier` build, and forms a cluster.
    /// `clients` and `workers` are the names that get certificates. `families` are the faults that the fleet must
    /// support.
    ///
    /// # Errors
    /// When something cannot be started.
    pub async fn start(
        dir: &Path,
        bin: &Path,
        earlier: Option<&Path>,
        clients: &[&str],
        workers: &[&str],
        families: &[Family],
    ) -> Result<Self> {
        // This many spares may become members later.
        let spares = if families.contains(&Family::Membership) { 2 } else { 0 };
        let network = match families.contains(&Family::Latency) {
            true => Network::with_distances(),
            false => Network::default(),
        };
        let mut fleet = Self {
            dir: dir.to_owned(),
            builds: Builds::new(bin, earlier),
            snapshots: families.contains(&Family::Snapshot),
            long_lease: families.contains(&Family::Lease),
            members: Vec::new(),
            processes: Processes::default(),
            preload: Arc::new(Preload::new(bin, &dir.join("preload"))?),
            network: Arc::new(network),
        };
        pki::init_ca(&dir.join("ca"), "jepsen")?;
        for name in (1..=MEMBERS + spares).map(|number| format!("c{number}")) {
            let (client, peer) = (free_addr()?, free_addr()?);
            let lives = Arc::default();
            fleet.issue(Role::Member, &name)?;
            fleet.members.push(FleetMember { name, client, peer, lives });
            fleet.processes.add();
        }
        fleet.issue(Role::Admin, "observer")?;
        clients.iter().try_for_each(|name| fleet.issue(Role::Client, name))?;
        workers.iter().try_for_each(|name| fleet.issue(Role::Worker, name))?;
        std::fs::create_dir_all(dir.join("store"))?;
        for at in 0..MEMBERS {
            fleet.start_member(at)?;
        }
        fleet.bootstrap().await?;
        Ok(fleet)
    }

    fn issue(&self, role: Role, name: &str) -> Result<()> {
        let request = IssueRequest {
            role,
            name: name.into(),
            namespaces: Vec::new(),
            dns_names: vec!["localhost".into()],
            ip_addrs: vec![[127, 0, 0, 1].into()],
            days: 2,
        };
        pki::issue(&self.dir.join("ca"), &request, &self.dir.join("tls"))?;
        Ok(())
    }

    /// The certificate of `role-name`.
    pub fn security(&self, stem: &str) -> Security {
        let tls = self.dir.join("tls");
        Security::Mtls(TlsFiles {
            ca: tls.join("ca.pem"),
            cert: tls.join(format!("{stem}.pem")),
            key: tls.join(format!("{stem}.key")),
        })
    }

    /// A client under a name of its own; all its links go through the network.
    ///
    /// # Errors
    /// When a link cannot be made.
    pub fn client(&self, role: &str, name: &str, timeout: Duration) -> Result<Client> {
        let (mut endpoints, mut entries) = (Vec::new(), Vec::new());
        for (at, member) in self.members.iter().enumerate() {
            let link = self.network.link(name, &member.name, &member.client)?;
            entries.push(format!("{}={link}", member.name));
            if at < MEMBERS {
                endpoints.push(link);
            }
        }
        let mut config = ClientConfig::new(endpoints, self.security(&format!("{role}-{name}")));
        config.dial_map = DialMap::from_entries(entries)?;
        config.timeout = timeout;
        Ok(Client::new(config)?)
    }

    /// A client's channel to each member, through the network, that sends no epochs.
    ///
    /// # Errors
    /// When a link cannot be made or the certificate not be used.
    pub fn channels(
        &self,
        role: &str,
        name: &str,
    ) -> Result<Vec<(String, tonic::transport::Channel)>> {
        let tls = ClientTls::load(&self.security(&format!("{role}-{name}")))?;
        let mut channels = Vec::new();
        for member in &self.members[..MEMBERS] {
            let link = self.network.link(name, &member.name, &member.client)?;
            let endpoint = Endpoint::with_name(member.name.clone(), &link)?;
            let options = ChannelOptions::default();
            let channel = channel(&endpoint, &tls, &DialMap::default(), &options)?;
            channels.push((member.name.clone(), channel));
        }
        Ok(channels)
    }

    /// The observer's channel to one member, bypassing the network.
    ///
    /// # Errors
    /// When the certificate cannot be used.
    pub fn observer(
        &self,
        at: usize,
    ) -> Result<v1::cluster_client::ClusterClient<tonic::transport::Channel>> {
        Ok(v1::cluster_client::ClusterClient::new(self.past_the_network(at)?))
    }

    /// The same, for changes of the membership.
    ///
    /// # Errors
    /// When the certificate cannot be used.
    pub fn operator(
        &self,
        at: usize,
    ) -> Result<v1::members_client::MembersClient<tonic::transport::Channel>> {
        Ok(v1::members_client::MembersClient::new(self.past_the_network(at)?))
    }

    fn past_the_network(&self, at: usize) -> Result<tonic::transport::Channel> {
        let member = &self.members[at];
        let tls = ClientTls::load(&self.security("admin-observer"))?;
        let endpoint = Endpoint::with_name(member.name.clone(), &member.client)?;
        Ok(channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?)
    }

    /// The directory of the fleet.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The member's data directory.
    pub fn data_dir(&self, at: usize) -> PathBuf {
        self.dir.join(&self.members[at].name)
    }

    /// Starts a member, for the first time or again.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_member(&mut self, at: usize) -> Result<()> {
        let member = self.members[at].clone();
        let name = &member.name;
        let (dir, tls) = (self.dir.display(), self.dir.join("tls"));
        let tls = tls.display();
        let lease = match self.long_lease {
            true => format!("election_max_ms = {LEASE_MS}\n"),
            false => String::new(),
        };
        let mut text = format!(
            "name = {name:?}\ndata_dir = \"{dir}/{name}\"\n[listen]\nclient = {:?}\npeer = {:?}\n\
             http = {:?}\n[tls]\nca_file = \"{tls}/ca.pem\"\ncert_file = \"{tls}/member-{name}.pem\"\n\
             key_file = \"{tls}/member-{name}.key\"\n[store]\nurl = \"file://{dir}/store\"\n{CONFIG}{}{lease}\
             [dial_map]\n",
            member.client,
            member.peer,
            free_addr()?,
            if self.snapshots { SNAPSHOTS } else { CALM },
        );
        for other in self.members.iter().filter(|other| other.name != *name) {
            let link = self.network.link(name, &other.name, &other.peer)?;
            writeln!(text, "{} = {link:?}", other.name)?;
        }
        let config = self.dir.join(format!("{name}.toml"));
        std::fs::write(&config, text)?;
        let mut command = Command::new(self.builds.member(at));
        command.arg("--config").arg(&config);
        self.preload.give(&mut command, name, &self.dir.join(name))?;
        member.lives.fetch_add(1, Ordering::Relaxed);
        let log = self.dir.join(format!("{name}.log"));
        self.processes.put(at, Process::start(command, &log)?);
        Ok(())
    }

    async fn bootstrap(&self) -> Result<()> {
        let members = self.members[..MEMBERS].iter().map(|member| v1::MemberInfo {
            id: 0,
            name: member.name.clone(),
            peer_addr: member.peer.clone(),
            client_addr: member.client.clone(),
            zone: String::new(),
            version_min: 1,
            version_max: 1,
            voter: true,
        });
        let request = v1::BootstrapRequest {
            members: members.collect(),
            store_url: format!("file://{}/store", self.dir.display()),
        };
        let mut cluster = self.observer(0)?;
        let begun = Instant::now();
        loop {
            match cluster.bootstrap(request.clone()).await {
                Ok(_) => return Ok(()),
                Err(status) if begun.elapsed() > PATIENCE => {
                    return Err(status).context("the cluster could not be formed");
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// The member's process.
    ///
    /// # Errors
    /// When it was killed and not started again.
    pub fn process(&mut self, at: usize) -> Result<&mut Process> {
        self.processes.of(at).context("the member does not run")
    }

    /// Kills a member. True if it was alive until then; how it ended otherwise is kept for [`Self::deaths`].
    pub fn kill(&mut self, at: usize) -> bool {
        self.processes.kill(at)
    }

    /// Wipes the disk of a member, which must not be running.
    ///
    /// # Errors
    /// When its files cannot be removed.
    pub fn wipe(&mut self, at: usize) -> Result<()> {
        self.kill(at);
        let data = self.data_dir(at);
        if data.exists() {
            std::fs::remove_dir_all(data)?;
            self.preload.clear_journal(&self.members[at].name)?;
        }
        Ok(())
    }

    /// How a member ended that the suite did not kill. Returned once.
    pub fn died(&mut self, at: usize) -> Option<Death> {
        self.processes.died(at)
    }

    /// Every death that was not returned yet.
    pub fn deaths(&mut self) -> Vec<Death> {
        self.processes.deaths()
    }

    /// Whether its process was started and not removed.
    pub fn runs(&self, at: usize) -> bool {
        self.processes.runs(at)
    }
}
