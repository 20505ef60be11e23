//! The address of a member: a host and a port, the member's name if it is known, and the map that redirects a dial.
//!
//! *Invariant:* a dial map changes only where bytes go: the certificate is still checked against the address under
//! which the member is known.
//!
//! Absent: connecting (`channel`).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A text that names no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not `host:port`.
    #[error("endpoint {0:?} is not host:port")]
    NotHostPort(String),
    /// A scheme was given where only an address belongs.
    #[error("endpoint {0:?} has a scheme: write host:port alone, TLS has settings of its own")]
    Scheme(String),
    /// Not `name=host:port`.
    #[error("dial map entry {0:?} is not name=host:port")]
    NotDialEntry(String),
    /// A name appears twice.
    #[error("dial map names {0:?} twice")]
    Twice(String),
}

/// A host (name or address, without brackets) and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// Name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Port, never 0.
    pub port: u16,
}

impl FromStr for HostPort {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.contains("://") {
            return Err(EndpointError::Scheme(text.to_owned()));
        }
        let bad = || EndpointError::NotHostPort(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?;
        let host = match host.strip_prefix('[') {
            Some(rest) => {
                let inner = rest.strip_suffix(']').ok_or_else(bad)?;
                inner.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
                inner
            }
            None => host,
        };
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        let bare_v6 = host.contains(':') && !text.starts_with('[');
        if host.is_empty() || host.len() > 253 || bare_v6 || !host.chars().all(allowed) {
            return Err(bad());
        }
        Ok(HostPort { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// An endpoint to dial: an address, and the member's name if it is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The member's name; a configured seed has none.
    pub name: Option<String>,
    /// The address under which the member is known. Its certificate is checked against the host.
    pub addr: HostPort,
}

impl Endpoint {
    /// A configured address without a known name.
    pub fn seed(addr: &str) -> Result<Self, EndpointError> {
        Ok(Endpoint { name: None, addr: addr.parse()? })
    }

    /// A member under its name.
    pub fn with_name(name: impl Into<String>, addr: &str) -> Result<Self, EndpointError> {
        Ok(Endpoint { name: Some(name.into()), addr: addr.parse()? })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.addr),
            None => self.addr.fmt(f),
        }
    }
}

/// Overrides the addresses at which members are dialed, by their names, for address translation and fault tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DialMap {
    entries: BTreeMap<String, HostPort>,
}

impl DialMap {
    /// Reads `name=host:port` entries. No name may appear twice.
    pub fn from_entries<S: AsRef<str>>(
        entries: impl IntoIterator<Item = S>,
    ) -> Result<Self, EndpointError> {
        let mut map = DialMap::default();
        for entry in entries {
            map.add(entry.as_ref())?;
        }
        Ok(map)
    }

    /// Adds the entries of another map. No name may be in both.
    pub fn merge(&mut self, other: DialMap) -> Result<(), EndpointError> {
        for (name, addr) in other.entries {
            self.insert(name, addr)?;
        }
        Ok(())
    }

    /// The address to dial for the endpoint: its override, or its own address.
    pub fn resolve<'a>(&'a self, endpoint: &'a Endpoint) -> &'a HostPort {
        let overridden = endpoint.name.as_ref().and_then(|name| self.entries.get(name));
        overridden.unwrap_or(&endpoint.addr)
    }

    /// Whether nothing is overridden.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn add(&mut self, entry: &str) -> Result<(), EndpointError> {
        let bad = || EndpointError::NotDialEntry(entry.to_owned());
        let (name, addr) = entry.split_once('=').ok_or_else(bad)?;
        if name.trim().is_empty() {
            return Err(bad());
        }
        self.insert(name.trim().to_owned(), addr.trim().parse()?)
    }

    fn insert(&mut self, name: String, addr: HostPort) -> Result<(), EndpointError> {
        match self.entries.insert(name.clone(), addr) {
            Some(_) => Err(EndpointError::Twice(name)),
            None => Ok(()),
        }
    }
}

impl FromStr for DialMap {
    type Err = EndpointError;

    /// One entry, or several separated by commas.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        DialMap::from_entries(text.split(',').filter(|entry| !entry.trim().is_empty()))
    }
}

impl fmt::Display for DialMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, addr)) in self.entries.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{name}={addr}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_they_parse() {
        for text in ["c1.example:7000", "127.0.0.1:1", "[::1]:65535"] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
        for text in ["", "c1", "c1:", "c1:0", "c1:70000", ":1", "::1:7", "[::1:7", "a b:1"] {
            assert!(text.parse::<HostPort>().is_err(), "{text:?}");
        }
        let scheme = "https://c1:7".parse::<HostPort>();
        assert_eq!(scheme, Err(EndpointError::Scheme("https://c1:7".into())));
    }

    #[test]
    fn a_dial_map_redirects_by_name_only() {
        let map: DialMap = "c2=127.0.0.1:9001,c3=127.0.0.1:9002".parse().unwrap();
        assert_eq!(map.to_string(), "c2=127.0.0.1:9001,c3=127.0.0.1:9002");
        let c2 = Endpoint::with_name("c2", "c2:7000").unwrap();
        assert_eq!(map.resolve(&c2).to_string(), "127.0.0.1:9001");
        let seed = Endpoint::seed("c2:7000").unwrap();
        assert_eq!(map.resolve(&seed).to_string(), "c2:7000");
        assert_eq!("c2=a:1,c2=b:2".parse::<DialMap>(), Err(EndpointError::Twice("c2".into())));
        assert!("=a:1".parse::<DialMap>().is_err());
        assert!("c2".parse::<DialMap>().is_err());
    }
}
