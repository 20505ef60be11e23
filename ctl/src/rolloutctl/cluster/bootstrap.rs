//! `rolloutctl cluster bootstrap`: forms a new cluster of fresh members, all at the same time.
//!
//! Invariant: repeating it with the same members changes nothing; a member that already belongs to a cluster refuses.
//! Absent: adding a member later, which has its own command.

use std::time::Duration;

use rollout_proto::{
    Channel, ChannelOptions, ClientError, ClientTls, ConnectError, DialMap, Endpoint,
    MEMBER_ADDRESS_SHAPE, MemberAddress, RpcError, Security, Stamp, channel, services, v1,
};
use serde::Serialize;

use crate::output::{self, Report, counted};
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{Plan, Planned, Reader, client_plan};
use crate::rolloutctl::member::list;
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio::to_stderr;

/// The cluster versions that members of this release support: each member reports them itself when asked.
const CLUSTER_VERSIONS: (u32, u32) = rollout_ledger::SUPPORTED_VERSIONS;
/// How long forming a cluster may take: every member writes and fsyncs its identity.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long to wait for the first leader: elections take well under a second.
const LED_WITHIN: Duration = Duration::from_secs(10);

/// Who becomes a member.
#[derive(Debug, clap::Args)]
pub(crate) struct BootstrapArgs {
    /// A member; name all of them
    #[arg(long = "member", value_name = MEMBER_ADDRESS_SHAPE, required = true)]
    pub(in crate::rolloutctl) members: Vec<MemberAddress>,
    /// The object store that members, workers and clients all reach
    #[arg(long, value_name = "URL")]
    pub(in crate::rolloutctl) store: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Bootstrapped {
    cluster_id: String,
    created: bool,
    members: Vec<String>,
}

impl Report for Bootstrapped {
    const KIND: &'static str = "Bootstrap";

    fn table(&self) -> String {
        let what = if self.created { "formed" } else { "was formed before" };
        format!("cluster {} {what}: {}\n", self.cluster_id, self.members.join(", "))
    }
}

/// A member for the request; the cluster assigns its number.
pub fn member(name: &str, peer_addr: &str, client_addr: &str, zone: &str) -> v1::MemberInfo {
    v1::MemberInfo {
        id: 0,
        name: name.into(),
        peer_addr: peer_addr.into(),
        client_addr: client_addr.into(),
        zone: zone.into(),
        version_min: CLUSTER_VERSIONS.0,
        version_max: CLUSTER_VERSIONS.1,
        voter: true,
    }
}

/// Asks the member at `address` to form the cluster; returns the cluster's ID, and whether it is new.
///
/// # Errors
/// A member is unreachable or already belongs to a cluster, or the list contradicts that cluster.
pub async fn form(
    address: &str,
    security: &Security,
    dial_map: &DialMap,
    members: Vec<v1::MemberInfo>,
    store_url: String,
) -> Result<(String, bool), ClientError> {
    // Not with the client that follows leaders: there is no leader yet.
    let endpoint = Endpoint::seed(address)?;
    let tls = ClientTls::load(security)?;
    let channel = channel(&endpoint, &tls, dial_map, &ChannelOptions::default())?;
    let channel = Channel::new(channel, Stamp::default());
    let mut request = tonic::Request::new(v1::BootstrapRequest { members, store_url });
    request.set_timeout(PATIENCE);
    match services::cluster(channel).bootstrap(request).await {
        Ok(answer) => {
            let answer = answer.into_inner();
            Ok((answer.header.unwrap_or_default().cluster_id, answer.created))
        }
        Err(status) => Err(match ConnectError::find(&status) {
            Some(error) => ClientError::Connect(error.clone()),
            None => RpcError::from_status(&status).into(),
        }),
    }
}

impl Verb for BootstrapArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: false, confirm: false, dry_run: client_plan };

    /// Forms the cluster and prints its id.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let mut names: Vec<&str> = self.members.iter().map(|member| member.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Failure::usage(format!("--member {} is given twice", twice[0])).into());
        }
        let mut settings = globals.connect.settings()?;
        // One member forms the cluster and informs the others: two that were asked at once would compete.
        if globals.connect.endpoints.is_empty() && globals.connect.context.is_none() {
            settings.endpoints = vec![self.members[0].client_addr.clone()];
        }
        let address = settings.endpoints[0].clone();
        let members = self
            .members
            .iter()
            .map(|m| member(&m.name, &m.peer_addr, &m.client_addr, &m.zone))
            .collect();
        let (cluster_id, created) =
            form(&address, &settings.security, &settings.dial_map, members, self.store).await?;
        // Wait, so that the user's next command finds a cluster that answers.
        settings.endpoints.extend(self.members.iter().map(|member| member.client_addr.clone()));
        let client = settings.client(None)?;
        if !matches!(tokio::time::timeout(LED_WITHIN, list::fetch(&client)).await, Ok(Ok(_))) {
            to_stderr(
                "the cluster is formed, and no member leads it yet: rolloutctl status says why\n",
            );
        }
        let members = self.members.into_iter().map(|member| member.name).collect();
        output::emit(globals.format, &Bootstrapped { cluster_id, created, members })
    }
}

impl Planned for BootstrapArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let mut now = Vec::new();
        for member in &self.members {
            now.push(reader.new_member(&member.name, &member.client_addr).await?);
        }
        let members = counted(self.members.len() as u64, "member");
        let would = format!("form a cluster of {members} on {}", self.store);
        Ok(Plan::new(would, now.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Bootstrapped {
            cluster_id: "0123456789abcdef0123456789abcdef".into(),
            created: true,
            members: ["c1", "c2", "c3"].map(String::from).into(),
        };
        crate::golden::report("cluster-bootstrap.txt", &report);
    }
}
