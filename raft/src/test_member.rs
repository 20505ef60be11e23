//! Owns: members in one process, without certificates, for the tests of this crate.
//!
//! Invariant: their leases are long, so that no member takes leadership by itself.
//! Absent: members whose sockets close; the integration tests have those.

use std::path::Path;
use std::time::{Duration, Instant};

use rollout_proto::{DialMap, Security, ServerTls};
use tokio::net::TcpListener;
use tonic::transport::Server;

use crate::config::RaftConfig;
use crate::member::{Joins, MemberRecord};
use crate::node::Node;

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A waiting member. Its leases are long, so that no member takes leadership by itself.
pub(crate) async fn member(dir: &Path, name: &str) -> (Node, MemberRecord) {
    let security = Security::InsecurePlaintext;
    let tls = ServerTls::load(&security).expect("no certificates");
    let config = RaftConfig::new(dir.join(name), name, DialMap::default(), security);
    let node = Node::open(config.far_zones()).await.expect("opens");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("its address").to_string();
    let serving = Server::builder()
        .add_service(node.peer_service())
        .serve_with_incoming(tls.incoming(listener));
    tokio::spawn(async move { serving.await.expect("the peer port is served") });
    let record = MemberRecord {
        id: 0,
        name: name.to_owned(),
        peer_addr: addr.clone(),
        client_addr: addr,
        zone: String::new(),
        version_min: 1,
        version_max: 1,
        joins: Joins::default(),
        adopted: false,
    };
    (node, record)
}
