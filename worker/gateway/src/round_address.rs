//! Owns: the address of the host at which a round's store is served.
//!
//! Invariant: two rounds of one job have different addresses, whatever their ports. A process left behind in one round
//! may reconnect forever and never reaches the store of another round.
//! Absent: systems other than Linux, whose loopback interface covers all of 127.0.0.0/8.

use std::net::Ipv4Addr;

/// Addresses in 127.1.0.1 to 127.254.255.254: 127.0.*.* is used by everyone, and no address ends in 0 or 255.
const PLACES: u64 = 254 * 256 * 254;

/// The loopback address of a job's round: the next round has the next address, and after 16 million they wrap around.
pub fn round_address(namespace: &str, job: &str, round: u64) -> Ipv4Addr {
    let first = fnv1a(&[namespace.as_bytes(), &[0xff], job.as_bytes()].concat());
    let place = (first % PLACES + round % PLACES) % PLACES;
    let (high, middle, low) = (place / (254 * 256), place / 254 % 256, place % 254);
    // Within their bounds by the divisions above.
    Ipv4Addr::new(127, 1 + high as u8, middle as u8, 1 + low as u8)
}

/// FNV-1a: the same on every host and in every version.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rounds_of_a_job_have_different_addresses() {
        let all: BTreeSet<_> = (0..200_000).map(|n| round_address("default", "sft", n)).collect();
        assert_eq!(all.len(), 200_000);
        for address in all {
            let [_, high, _, low] = address.octets();
            assert!(address.is_loopback() && (1..=254).contains(&high), "{address}");
            assert!((1..=254).contains(&low), "{address}");
        }
        assert_eq!(round_address("a", "b", 3), round_address("a", "b", 3 + PLACES));
    }

    #[test]
    fn an_address_is_the_same_everywhere() {
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        assert_ne!(round_address("a", "bc", 1), round_address("ab", "c", 1));
    }

    #[test]
    fn this_host_can_listen_there() {
        let address = round_address("default", "sft", 1);
        std::net::TcpListener::bind((address, 0)).unwrap();
    }
}
