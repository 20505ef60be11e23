//! Owns: openraft's own storage test suite, run on the real log and the real image.
//!
//! Invariant: nothing is mocked: RocksDB, fsync thread and checkpoints are the ones of production.
//! Absent: crash tests; `rollout-storage` has them.

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use rollout_proto::{DialMap, Security};
use tempfile::TempDir;

use crate::config::RaftConfig;
use crate::member::ClusterId;
use crate::state::log_store::LogStore;
use crate::state::machine::Machine;
use crate::state::state_machine::StateMachine;
use crate::state::stores::Stores;
use crate::types::Types;

struct Builder;

impl StoreBuilder<Types, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<Types>> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let stores = Stores::open(dir.path()).expect("empty stores");
        let config =
            RaftConfig::new(dir.path(), "c1", DialMap::default(), Security::InsecurePlaintext);
        let machine =
            Machine::load(ClusterId([7; 16]), stores.clone(), &config).expect("an empty image");
        let log = LogStore::new(stores.log, stores.open, 1 << 20).expect("an empty log");
        Ok((dir, log, StateMachine::new(machine)))
    }
}

#[test]
fn the_stores_keep_what_openraft_demands_of_them() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let result = runtime
        .block_on(Suite::<Types, LogStore, StateMachine, Builder, TempDir>::test_all(Builder));
    result.expect("the suite");
}
