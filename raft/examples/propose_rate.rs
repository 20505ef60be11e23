//! Measures how fast three members in one process commit commands, over loopback with mTLS, each on its own RocksDB.
//!
//! The ledger refuses the operations, which costs it next to nothing: this measures consensus alone.
//!
//! `cargo run --release -p rollout-raft --example propose_rate [commands] [operations per command] [in flight]`

#[path = "../tests/members/cluster.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod cluster;

use std::time::{Duration, Instant};

use cluster::{Cluster, refused};
use futures::StreamExt;

fn argument(at: usize, default: usize) -> usize {
    std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let (commands, operations, in_flight) = (argument(1, 2000), argument(2, 256), argument(3, 4));
    let cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    let start = Instant::now();
    let mut bytes = 0;
    let sent = futures::stream::iter(0..commands).map(|_| {
        let command = refused(epoch, operations);
        bytes += command.len();
        async move {
            let begun = Instant::now();
            node.propose(epoch, command).await.expect("applied");
            begun.elapsed()
        }
    });
    let mut took: Vec<Duration> = sent.buffer_unordered(in_flight).collect().await;
    let total = start.elapsed().as_secs_f64();
    took.sort();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!(
        "{commands} commands of {operations} operations, {in_flight} in flight: {:.0} commands/s, {:.0} operations/s, \
         {:.1} MiB/s; p50 {:?}, p99 {:?}, worst {:?}",
        commands as f64 / total,
        (commands * operations) as f64 / total,
        bytes as f64 / total / (1 << 20) as f64,
        at(0.5),
        at(0.99),
        at(1.0),
    );
    let status = node.status();
    println!(
        "fsync of the leader: p50 {} us, p99 {} us, {} times",
        status.fsync_p50_us, status.fsync_p99_us, status.fsyncs
    );
}
