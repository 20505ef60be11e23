//! A member as an operator names it on a command line: `NAME=PEER_ADDR,CLIENT_ADDR[,ZONE]`.
//!
//! *Invariant:* it has a name, and both addresses can be dialed.
//!
//! Absent: whether a member listens there, and which versions it speaks.

use crate::{EndpointError, HostPort};
use std::str::FromStr;

/// The syntax.
pub const MEMBER_ADDRESS_SHAPE: &str = "NAME=PEER_ADDR,CLIENT_ADDR[,ZONE]";

/// A member's name, its addresses and its failure domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberAddress {
    /// Its name.
    pub name: String,
    /// The address at which members dial it, host:port.
    pub peer_addr: String,
    /// The address at which workers and clients dial it, host:port.
    pub client_addr: String,
    /// Its failure domain; empty if none is given.
    pub zone: String,
}

/// A text that is not a member's address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberAddressError {
    /// It has another shape.
    #[error("`{0}` is not {shape}", shape = MEMBER_ADDRESS_SHAPE)]
    Shape(String),
    /// One of its addresses is malformed.
    #[error(transparent)]
    Address(#[from] EndpointError),
}

impl FromStr for MemberAddress {
    type Err = MemberAddressError;

    fn from_str(text: &str) -> Result<Self, MemberAddressError> {
        let shape = || MemberAddressError::Shape(text.to_owned());
        let (name, rest) = text.split_once('=').ok_or_else(shape)?;
        let parts: Vec<&str> = rest.split(',').map(str::trim).collect();
        let (peer_addr, client_addr, zone) = match parts[..] {
            [peer, client] => (peer, client, ""),
            [peer, client, zone] => (peer, client, zone),
            _ => return Err(shape()),
        };
        if name.is_empty() {
            return Err(shape());
        }
        for addr in [peer_addr, client_addr] {
            addr.parse::<HostPort>()?;
        }
        let [name, peer_addr, client_addr, zone] =
            [name, peer_addr, client_addr, zone].map(str::to_owned);
        Ok(Self { name, peer_addr, client_addr, zone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_a_name_two_addresses_and_perhaps_a_zone() {
        let member: MemberAddress = "c1=10.0.0.1:7421,10.0.0.1:7420,eu-1a".parse().unwrap();
        assert_eq!((&*member.name, &*member.zone), ("c1", "eu-1a"));
        assert_eq!(member.peer_addr, "10.0.0.1:7421");
        assert_eq!(member.client_addr, "10.0.0.1:7420");
        assert_eq!("c1=a:1,b:2".parse::<MemberAddress>().unwrap().zone, "");
        for bad in ["c1", "c1=a:1", "=a:1,b:2,z", "c1=a:1,b:2,z,more", "c1=a,b:2,z", "c1=a:1,b:0,z"]
        {
            assert!(bad.parse::<MemberAddress>().is_err(), "{bad} was accepted");
        }
    }
}
