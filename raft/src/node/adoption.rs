//! Owns: how a waiting member becomes part of a cluster: by an adoption, its own or that of a bootstrap.
//!
//! Invariant: an adoption that has begun completes even if its caller disconnects. Otherwise this process could leave
//! stores open, or an identity on disk, that it does not know of. One adoption runs at a time, and it uses the
//! identity that the directory has.
//! Absent: the questions to the other members; see `cluster`.

use super::{Adopting, Node};
use crate::consensus::running::Running;
use crate::errors::{ClusterError, OpenError};
use crate::member::{ClusterId, MemberRecord};
use crate::membership::cluster;
use crate::state::identity::{Identity, contradiction};
use crate::state::stores::Stores;

/// The cluster that a member should join.
enum TargetCluster {
    /// This one.
    Of(ClusterId),
    /// The one from an earlier attempt; otherwise the one that it gave to others; otherwise a new one.
    Forming(Option<ClusterId>),
}

impl TargetCluster {
    fn choose(self, own: Option<ClusterId>) -> Result<ClusterId, String> {
        match (own, self) {
            (_, Self::Of(id)) => Ok(id),
            (Some(own), Self::Forming(Some(other))) if own != other => Err(format!(
                "this member was adopted by {own}, others by {other}: two attempts; empty the data directory of one"
            )),
            (own, Self::Forming(other)) => {
                Ok(own.or(other).unwrap_or_else(cluster::random_cluster_id))
            }
        }
    }
}

impl Node {
    /// Forms a cluster of these members, which include this one, and returns its id.
    ///
    /// Draws a random cluster id, assigns ids 1 to n, adopts every member, and only then starts the cluster with all
    /// of them at once. All must be reachable and empty. It may be repeated after any failure, at the same member,
    /// with the same list, even if the caller went away and the call was dropped.
    pub async fn bootstrap(&self, members: Vec<MemberRecord>) -> Result<ClusterId, ClusterError> {
        let members = cluster::number_members(members)?;
        let name = &self.inner.config.name;
        let Some(me) = members.iter().find(|member| member.name == *name) else {
            return Err(ClusterError::BadMembers(format!(
                "{name:?} is not in the list of members"
            )));
        };
        if let Some(running) = self.running()
            && !running.store.is_pristine()
        {
            return self.formed_already(&running, &members).await;
        }
        let dialer = &*self.inner.dialer;
        let others: Vec<_> = members.iter().filter(|member| member.id != me.id).cloned().collect();
        let requests = others.iter().map(|member| cluster::hello(dialer, member));
        let answers = futures::future::try_join_all(requests).await?;
        let earlier = cluster::earlier_attempt(&others, &answers)?;
        // This member first: a repeated attempt finds the same cluster id here.
        let refused = |error: OpenError| match error {
            OpenError::Start(why) => ClusterError::Unfinished(why),
            other => ClusterError::Refused(other.to_string()),
        };
        let adopted = self.adopt_to_the_end(TargetCluster::Forming(earlier), me.id, &me.name).await;
        let id = adopted.map_err(refused)?;
        let adopted = others.iter().map(|member| cluster::adopt(dialer, member, id));
        futures::future::try_join_all(adopted).await?;
        let running = self.leading()?;
        cluster::initialize(&running, &members).await?;
        cluster::formed(&running).await?;
        tracing::info!(cluster = %id, members = members.len(), "a cluster was formed");
        Ok(id)
    }

    async fn formed_already(
        &self,
        running: &Running,
        members: &[MemberRecord],
    ) -> Result<ClusterId, ClusterError> {
        cluster::formed(running).await?;
        let listed: Vec<MemberRecord> =
            self.members().into_iter().map(|(member, _)| member).collect();
        if listed == members {
            return Ok(running.identity.cluster_id);
        }
        Err(ClusterError::Refused(format!(
            "this member is part of cluster {} already, which has other members",
            running.identity.cluster_id
        )))
    }

    /// Makes this empty member part of a cluster, under an id that was never used before. If the call is dropped, the
    /// adoption continues; a repeated call waits for the one in progress.
    pub async fn adopt(
        &self,
        cluster_id: ClusterId,
        member_id: u64,
        name: &str,
    ) -> Result<(), OpenError> {
        self.adopt_to_the_end(TargetCluster::Of(cluster_id), member_id, name).await.map(drop)
    }

    /// Runs on a task of its own: the caller may disconnect at any moment, and half an adoption would block every
    /// later one.
    async fn adopt_to_the_end(
        &self,
        target: TargetCluster,
        member_id: u64,
        name: &str,
    ) -> Result<ClusterId, OpenError> {
        let (node, name) = (self.clone(), name.to_owned());
        let adopting = async move { node.adopt_alone(target, member_id, name).await };
        let ended = |error: tokio::task::JoinError| OpenError::Start(error.to_string());
        self.inner.runtime.handle().spawn(adopting).await.map_err(ended)?
    }

    async fn adopt_alone(
        &self,
        target: TargetCluster,
        member_id: u64,
        name: String,
    ) -> Result<ClusterId, OpenError> {
        let adopting = self.inner.adopting.lock().await;
        let dir = &self.inner.config.data_dir;
        if *adopting == Adopting::Over {
            return Err(OpenError::Start("this member is stopping".to_owned()));
        }
        if name != self.inner.config.name {
            let what = format!("this member is called {:?}, not {name:?}", self.inner.config.name);
            return Err(contradiction(dir, what));
        }
        let found = match self.identity() {
            Some(identity) => Some(identity),
            // An attempt that failed after it had written that.
            None => {
                let config = self.inner.config.clone();
                self.blocking(move || Identity::load(&config)).await?
            }
        };
        let own = found.as_ref().map(|identity| identity.cluster_id);
        let cluster_id = target.choose(own).map_err(|what| contradiction(dir, what))?;
        if let Some(expected) = self.inner.config.cluster_id
            && expected != cluster_id
        {
            let what =
                format!("this member is configured for cluster {expected}, not {cluster_id}");
            return Err(contradiction(dir, what));
        }
        let identity = Identity { cluster_id, member_id, name };
        if let Some(found) = found.filter(|found| *found != identity) {
            let what =
                format!("it is member {} of cluster {} already", found.member_id, found.cluster_id);
            return Err(contradiction(dir, what));
        }
        if self.running().is_some() {
            return Ok(cluster_id);
        }
        let (config, created) = (self.inner.config.clone(), identity.clone());
        let stores = self.blocking(move || {
            let stores = Stores::open(&config.data_dir)?;
            // Last, so that a directory with an identity is complete.
            created.create(&config.data_dir)?;
            Ok(stores)
        });
        self.start(identity, stores.await?).await?;
        Ok(cluster_id)
    }
}
