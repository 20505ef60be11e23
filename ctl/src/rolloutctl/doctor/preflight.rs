//! A machine before a daemon serves on it.
//!
//! Invariant: it works without a cluster and, with a configuration file, checks the file's settings.
//! Absent: starting the daemon.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_proto::pki::{self, IntermediateCa, IssuerFiles};
use rollout_proto::{HostPort, Role};
use rollout_storage::BlobStore;
use toml::Value;

use super::files::{self, CertRequirement};
use super::finding::Finding;
use super::machine;
use super::{DoctorArgs, life};
use crate::rolloutctl::config::{self, Daemon, File};

/// The limit for reaching another host or the store.
const REACH_TIME: Duration = Duration::from_secs(5);

/// All checks.
pub(super) async fn check(args: &DoctorArgs) -> anyhow::Result<Vec<Finding>> {
    let file = args.file.as_deref().map(File::read).transpose()?;
    let daemon = file.as_ref().map_or(Daemon::Coordinator, |file| Daemon::of(&file.table));
    let mut findings = vec![machine::open_files(daemon), machine::clock()];
    let text = |path: &str| {
        file.as_ref().and_then(|file| file.get(path)).and_then(Value::as_str).map(str::to_owned)
    };
    if let Some(file) = &file {
        findings.extend(configuration(file));
    }
    let dir = args.data_dir.clone().or_else(|| text("data_dir").map(PathBuf::from));
    match dir {
        Some(dir) => findings.extend(machine::data_dir(&dir, args)),
        None => findings.push(Finding::warn(
            "data",
            "no data directory was checked",
            "the speed of its disk bounds the speed of every acknowledgment",
            "pass --data-dir, or --file with the daemon's configuration",
        )),
    }
    if let Some(file) = &file {
        findings.extend(daemon.addresses(file).into_iter().map(|(key, at)| port(key, at)));
        findings.extend(certificate(file, args));
        findings.extend(issuer(file, args));
        findings.extend(names(file).await);
        let url = text("store.url").into_iter();
        for url in url {
            findings.push(store(&url).await);
        }
    }
    for address in &args.reach {
        findings.push(reach(address).await);
    }
    Ok(findings)
}

fn configuration(file: &File) -> Vec<Finding> {
    let daemon = Daemon::of(&file.table);
    let problems = config::problems(daemon, file);
    let shown = file.path.display();
    if problems.is_empty() {
        let found = format!("{shown} is a valid configuration for {}", daemon.program());
        return vec![Finding::ok("config", found)];
    }
    let one = |problem: config::Problem| {
        let found = format!("{}: {}", problem.key, problem.problem);
        Finding::fail("config", found, "the daemon does not start", format!("correct {shown}"))
    };
    problems.into_iter().map(one).collect()
}

fn port(key: &str, address: SocketAddr) -> Finding {
    let todo = format!("stop the process on that port (ss -ltnp), or change {key}");
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok("port", format!("{address} is free for {key}")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let why = "the port is in use, perhaps by this daemon";
            Finding::fail("port", format!("{address} of {key} is in use"), why, todo)
        }
        Err(error) => {
            let found = format!("{address} of {key}: {error}");
            Finding::fail("port", found, "the daemon cannot listen there", todo)
        }
    }
}

fn certificate(file: &File, args: &DoctorArgs) -> Vec<Finding> {
    let text = |path: &str| file.get(path).and_then(Value::as_str);
    if file.get("tls.insecure_plaintext").and_then(Value::as_bool) == Some(true) {
        return vec![Finding::warn(
            "certificate",
            "TLS is off",
            "every caller that reaches a port is an administrator",
            "rolloutctl cert init-ca --ca-dir DIR --cluster NAME; then set the three files of [tls]",
        )];
    }
    let role = match Daemon::of(&file.table) {
        Daemon::Coordinator => Role::Member,
        Daemon::Worker => Role::Worker,
    };
    let Some(tls) =
        files::tls_files(text("tls.ca_file"), text("tls.cert_file"), text("tls.key_file"))
    else {
        return Vec::new();
    };
    let addresses: Vec<HostPort> = ["advertise.client", "advertise.peer"]
        .into_iter()
        .filter_map(text)
        .filter_map(|address| address.parse().ok())
        .collect();
    let mut hosts: Vec<&str> = addresses.iter().map(|address| address.host.as_str()).collect();
    hosts.dedup();
    let wanted = CertRequirement { role, name: text("name").unwrap_or_default(), hosts };
    files::check(&tls, &wanted, args)
}

/// The intermediate CA with which a member issues certificates, as far as the member's start needs it.
fn issuer(file: &File, args: &DoctorArgs) -> Option<Finding> {
    let path = |key: &str| file.get(key).and_then(Value::as_str).map(Path::new);
    path("enrollment.listen")?;
    let todo = "rolloutctl cert init-issuer --ca-dir DIR, then copy its two files to every member";
    let unusable = |found: String| {
        Finding::fail("issuer", found, "the daemon does not start with these files", todo)
    };
    let named = (path("enrollment.issuer_cert_file"), path("enrollment.issuer_key_file"));
    let (Some(cert), Some(key)) = named else {
        return Some(unusable("[enrollment] does not set the files of the intermediate CA".into()));
    };
    let files = IssuerFiles { cert: cert.to_owned(), key: key.to_owned() };
    let found = IntermediateCa::load(&files).and_then(|_| pki::inspect(cert));
    Some(match found {
        Ok(info) => life(&format!("the intermediate CA {}", cert.display()), &info, args, todo),
        Err(error) => unusable(error.to_string()),
    })
}

/// The names that a member advertises must resolve to an address.
async fn names(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for key in ["advertise.client", "advertise.peer"] {
        let Some(text) = file.get(key).and_then(Value::as_str) else { continue };
        let todo = format!("add it to DNS or /etc/hosts, or change {key}");
        let why = "others connect to the member by this name";
        findings.push(match tokio::net::lookup_host(text).await {
            Ok(mut found) => match found.next() {
                Some(address) => {
                    Finding::ok("name", format!("{text} resolves to {}", address.ip()))
                }
                None => Finding::fail("name", format!("{text} has no address"), why, todo),
            },
            Err(error) => Finding::fail("name", format!("{text}: {error}"), why, todo),
        });
    }
    findings
}

/// Writes a probe, reads it back, and removes it.
async fn store(url: &str) -> Finding {
    let probe = async {
        let store = BlobStore::open(url).map_err(|error| error.to_string())?;
        let key = format!("probes/doctor-{}", std::process::id());
        let put = store.put(&key, "rollout doctor\n".into()).await;
        let blob = put.map_err(|error| format!("cannot write: {error}"))?;
        let got = store.get(&key, &blob.digest).await;
        let removed = store.delete(&key).await;
        got.map_err(|error| format!("cannot read: {error}"))?;
        removed.map_err(|error| format!("cannot delete: {error}"))
    };
    let why = "it stores all inputs and results";
    let todo = "grant this host read, write and delete below this URL";
    match tokio::time::timeout(REACH_TIME, probe).await {
        Ok(Ok(())) => Finding::ok("store", format!("can write, read and delete in {url}")),
        Ok(Err(error)) => Finding::fail("store", format!("{url}: {error}"), why, todo),
        Err(_) => {
            let found = format!("{url} did not answer within {} s", REACH_TIME.as_secs());
            Finding::fail("store", found, why, todo)
        }
    }
}

async fn reach(address: &HostPort) -> Finding {
    let dial = tokio::net::TcpStream::connect((address.host.as_str(), address.port));
    let (why, todo) = (
        "members, workers and clients connect to each other there",
        "start the process there, or open the port between the hosts",
    );
    match tokio::time::timeout(REACH_TIME, dial).await {
        Ok(Ok(_)) => Finding::ok("reach", format!("{address} accepts connections")),
        Ok(Err(error)) => Finding::fail("reach", format!("{address}: {error}"), why, todo),
        Err(_) => {
            let found = format!("{address} did not answer within {} s", REACH_TIME.as_secs());
            Finding::fail("reach", found, why, todo)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn a_certificate_is_good_for_the_ipv6_address_that_a_member_says() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca");
        pki::init_ca(&ca, "test").unwrap();
        let request = pki::IssueRequest {
            role: Role::Member,
            name: "c1".into(),
            namespaces: Vec::new(),
            dns_names: Vec::new(),
            ip_addrs: vec!["2001:db8::1".parse().unwrap()],
            days: 30,
        };
        let tls = pki::issue(&ca, &request, &dir.path().join("tls")).unwrap();
        let look = |client: &str| {
            let text = format!(
                "name = \"c1\"\n[listen]\n[advertise]\nclient = {client:?}\n[tls]\nca_file = {:?}\ncert_file = {:?}\n\
                 key_file = {:?}\n",
                tls.ca, tls.cert, tls.key
            );
            let file = File { path: "t.toml".into(), table: text.parse().unwrap() };
            certificate(&file, &super::super::tests::args())
        };
        for client in ["[2001:db8::1]:7420", "[2001:db8:0:0::1]:7420"] {
            let found = look(client);
            assert!(found.iter().all(|finding| finding.level == Level::Ok), "{found:?}");
        }
        let found = look("[2001:db8::2]:7420");
        let bad = found.iter().find(|finding| finding.level == Level::Fail).unwrap();
        assert_eq!(bad.found, "is not valid for 2001:db8::2");
        assert!(bad.todo.as_ref().unwrap().contains("--ip 2001:db8::2"), "{bad:?}");
    }

    #[tokio::test]
    async fn an_ipv6_address_is_reached_and_has_a_name() {
        let Ok(listener) = TcpListener::bind("[::1]:0") else { return };
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(reach(&address.parse().unwrap()).await.level, Level::Ok);
        let text = format!("[advertise]\nclient = {address:?}\n");
        let file = File { path: "t.toml".into(), table: text.parse().unwrap() };
        assert_eq!(names(&file).await[0].level, Level::Ok);
    }

    #[test]
    fn the_intermediate_ca_has_to_be_there_and_whole_where_clients_enroll() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        pki::init_ca(&at("ca"), "test").unwrap();
        let files = pki::init_issuer(&at("ca"), &at("issuer"), 365).unwrap();
        let args = super::super::tests::args();
        let look = |cert: &Path, key: &Path| {
            let text = format!(
                "[listen]\n[enrollment]\nlisten = \"0.0.0.0:7423\"\nissuer_cert_file = {cert:?}\nissuer_key_file = {key:?}\n"
            );
            let file = File { path: "t.toml".into(), table: text.parse().unwrap() };
            issuer(&file, &args).unwrap()
        };
        assert_eq!(look(&files.cert, &files.key).level, Level::Ok);
        for key in [at("gone.key"), files.cert.clone()] {
            assert_eq!(look(&files.cert, &key).level, Level::Fail);
        }
        // The authority's own certificate is valid too, but has another key.
        assert_eq!(look(&at("ca/ca.pem"), &files.key).level, Level::Fail);
        let off = File { path: "t.toml".into(), table: "[listen]\n".parse().unwrap() };
        assert!(issuer(&off, &args).is_none(), "enrollment is off there");
    }
}
