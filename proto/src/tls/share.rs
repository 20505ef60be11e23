//! The number of connections that a single caller has at one listener.
//!
//! *Invariant:* a caller has at most the number that [`Shares::take`] allows; a share is returned when its value is
//! dropped. The table has one entry for each caller that has a share, so it is no larger than the number of
//! connections.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Bits of an IPv6 address that identify its network. A host usually has every address in its network.
const NETWORK_BITS: u32 = 64;

/// The address by which a caller is counted: for IPv6, its network of 64 bits.
pub(super) fn counted_address(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => {
            let network = u128::from(ip) & (u128::MAX << (u128::BITS - NETWORK_BITS));
            IpAddr::V6(Ipv6Addr::from(network))
        }
        ip @ IpAddr::V4(_) => ip,
    }
}

/// Counts the connections of each caller.
#[derive(Clone, Debug)]
pub(super) struct Shares<K>(Arc<Mutex<HashMap<K, usize>>>);

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Shares(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> Shares<K> {
    /// Takes one more for `caller`; `None` if it has `max` already.
    pub(super) fn take(&self, caller: K, max: usize) -> Option<Share<K>> {
        let mut counts = self.0.lock();
        let count = counts.entry(caller.clone()).or_default();
        if *count >= max.max(1) {
            return None;
        }
        *count += 1;
        Some(Share { caller, counts: self.clone() })
    }
}

/// One connection of a caller.
#[derive(Debug)]
pub(super) struct Share<K: Eq + Hash> {
    caller: K,
    counts: Shares<K>,
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        if let Some(count) = counts.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_is_given_back_can_be_taken_again_and_leaves_no_entry() {
        let shares = Shares::default();
        let held: Vec<_> = (0..2).map(|_| shares.take("ann", 2).unwrap()).collect();
        assert!(shares.take("ann", 2).is_none());
        assert!(shares.take("bob", 2).is_some());
        drop(held);
        assert!(shares.0.lock().is_empty());
        assert!(shares.take("ann", 2).is_some());
    }

    #[test]
    fn an_ipv6_host_is_counted_by_its_network() {
        let counted = |ip: &str| counted_address(ip.parse().unwrap()).to_string();
        assert_eq!(counted("10.0.0.7"), "10.0.0.7");
        assert_eq!(counted("::ffff:10.0.0.7"), "10.0.0.7");
        assert_eq!(counted("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_ne!(counted("2001:db8:1:2::1"), counted("2001:db8:1:3::1"));
    }
}
