//! Finding ports that remain free across restarts.
//!
//! Invariant: a chosen port was free on loopback when it was chosen. It comes from below the kernel's ephemeral range,
//! because an outgoing connection of any process could occupy a port in that range by the next start.

use std::net::TcpListener;

use anyhow::{Context as _, bail};
use rand::Rng as _;

const FIRST: u16 = 12_000;
const LAST: u16 = 31_999;
const TRIES: usize = 2_000;

/// Chooses `count` ports: those from `base_port` on, or free ones if it is 0.
///
/// # Errors
/// A port from `base_port` on is taken, which the error names, or there are no free ones.
pub(super) fn choose(count: usize, base_port: u16) -> anyhow::Result<Vec<u16>> {
    if base_port == 0 {
        return free(count);
    }
    let mut ports = Vec::with_capacity(count);
    for offset in 0..count {
        let port = u16::try_from(usize::from(base_port) + offset)
            .with_context(|| format!("--base-port {base_port} leaves no {count} ports"))?;
        TcpListener::bind(("127.0.0.1", port))
            .with_context(|| format!("port {port} on 127.0.0.1 is taken"))?;
        ports.push(port);
    }
    Ok(ports)
}

fn free(count: usize) -> anyhow::Result<Vec<u16>> {
    let mut random = rand::rng();
    // Held until all are chosen, so that no port is chosen twice.
    let mut held = Vec::with_capacity(count);
    let mut ports = Vec::with_capacity(count);
    for _ in 0..TRIES {
        if ports.len() == count {
            break;
        }
        let port = random.random_range(FIRST..=LAST);
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            held.push(listener);
            ports.push(port);
        }
    }
    if ports.len() < count {
        bail!("found no {count} free ports between {FIRST} and {LAST} on 127.0.0.1");
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_ports_differ_and_can_be_bound() {
        let ports = choose(9, 0).unwrap();
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), 9);
        assert!(ports.iter().all(|&port| (FIRST..=LAST).contains(&port)));
    }

    #[test]
    fn a_taken_base_port_is_named() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = choose(1, port).unwrap_err();
        assert!(error.to_string().contains(&port.to_string()), "{error:#}");
    }
}
