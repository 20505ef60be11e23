//! Health and metrics as a probe or a scraper has them: plain HTTP, a request a connection.

use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A process that lives answers within this time, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);

/// The status and the body of an answer.
///
/// # Errors
/// When nobody answers at that address, or with something that is no HTTP.
pub(crate) fn get(address: &str, path: &str) -> Result<(u16, String)> {
    let parsed: SocketAddr = address.parse().with_context(|| format!("{address} of a process"))?;
    let mut stream = TcpStream::connect_timeout(&parsed, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.with_context(|| format!("no status: {head}"))?, body.to_owned()))
}

/// What a process counts under that name, labels included where it has any; 0 where it has not counted yet, None where it
/// shows no metrics.
pub fn counted(address: &str, metric: &str) -> Option<u64> {
    let (status, page) = get(address, "/metrics").ok()?;
    let of = |line: &str| line.strip_prefix(metric)?.trim().parse::<u64>().ok();
    (status == 200).then(|| page.lines().filter_map(of).sum())
}

/// What a process shows under that name, up to the number of the first such line; None also where it shows no such thing: a
/// metric that is gone is no zero.
pub fn shown(address: &str, metric: &str) -> Option<u64> {
    let (status, page) = get(address, "/metrics").ok()?;
    let of = |line: &str| line.strip_prefix(metric)?.trim().parse::<u64>().ok();
    page.lines().find_map(of).filter(|_| status == 200)
}
