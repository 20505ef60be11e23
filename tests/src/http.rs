//! Health and metrics as a probe or a scraper reads them: plain HTTP, one request per connection.

use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A live process answers within this time, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);

/// The status and the body of an answer.
///
/// # Errors
/// When there is no answer from that address, or the answer is not HTTP.
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

/// The value of a process's counter, by its name with labels, if any; 0 if it has not counted yet, `None` if the
/// process serves no metrics.
pub fn counted(address: &str, metric: &str) -> Option<u64> {
    let (status, page) = get(address, "/metrics").ok()?;
    let of = |line: &str| line.strip_prefix(metric)?.trim().parse::<u64>().ok();
    (status == 200).then(|| page.lines().filter_map(of).sum())
}

/// The value of the first metric line with that name; `None` also if there is no such line: a missing metric is not
/// zero.
pub fn metric_value(address: &str, metric: &str) -> Option<u64> {
    let (status, page) = get(address, "/metrics").ok()?;
    let of = |line: &str| line.strip_prefix(metric)?.trim().parse::<u64>().ok();
    page.lines().find_map(of).filter(|_| status == 200)
}
