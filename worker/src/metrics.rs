//! Owns: the process's metrics, and the HTTP pages `/metrics` and `/healthz`.
//!
//! Invariant: no row, run or session is a label. Names begin with `rollout_worker_`.
//! Absent: whether the worker gets work: that is the state of its session, which the leader shows. `/healthz` only says
//! that the process lives, so that a supervisor does not restart a worker because the cluster is away.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Bytes of a request that are read; the rest is irrelevant.
const REQUEST_BYTES_MAX: usize = 8192;
/// Connections that are answered at a time. Others wait in the kernel.
const CONNECTIONS_MAX: usize = 32;
/// The limit of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause before the next accept when the process is out of descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Serves the pages on `address` until the process ends. Call it once.
pub(crate) async fn serve(address: SocketAddr) -> anyhow::Result<SocketAddr> {
    let handle = PrometheusBuilder::new().install_recorder().context("cannot record metrics")?;
    begin_counting();
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("metrics_listen: cannot listen on {address}"))?;
    let bound = listener.local_addr()?;
    tokio::spawn(answer_all(listener, handle));
    Ok(bound)
}

async fn answer_all(listener: TcpListener, handle: PrometheusHandle) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // invariant: this semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_REST).await;
            continue;
        };
        let handle = handle.clone();
        tokio::spawn(async move {
            // A scraper that went away or is slow does not matter here.
            let _ = tokio::time::timeout(ANSWER_TIMEOUT, answer(stream, &handle)).await;
            drop(place);
        });
    }
}

async fn answer(mut stream: TcpStream, handle: &PrometheusHandle) -> std::io::Result<()> {
    let mut request = vec![0; REQUEST_BYTES_MAX];
    let read = stream.read(&mut request).await?;
    let (status, body) = page(&request[..read], handle);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// The status and the body that answer a request.
fn page(request: &[u8], handle: &PrometheusHandle) -> (&'static str, String) {
    if request.starts_with(b"GET /metrics") {
        handle.run_upkeep();
        ("200 OK", handle.render())
    } else if request.starts_with(b"GET /healthz ") {
        ("200 OK", "ok\n".to_owned())
    } else {
        ("404 Not Found", "see /healthz and /metrics\n".to_owned())
    }
}

/// Creates the counters that alerts use: an alert sees no growth in a counter that first appears with its first event.
/// Deaths of engines are counted by class, which is not known in advance.
fn begin_counting() {
    metrics::counter!("rollout_worker_gpu_errors_total").increment(0);
    metrics::counter!("rollout_worker_upload_retries_total").increment(0);
    metrics::counter!("rollout_worker_streams_ended_total").increment(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_that_say_nothing_hold_no_scraper_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let handle = PrometheusBuilder::new().build_recorder().handle();
        tokio::spawn(answer_all(listener, handle));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX - 1 {
            silent.push(TcpStream::connect(addr).await.unwrap());
        }
        let mut scraper = TcpStream::connect(addr).await.unwrap();
        scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(ANSWER_TIMEOUT, scraper.read_to_end(&mut answer)).await;
        read.expect("it waits for the silent callers").unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
    }

    #[test]
    fn healthz_answers_ok_and_an_unknown_path_is_not_found() {
        let handle = PrometheusBuilder::new().build_recorder().handle();
        let healthz = page(b"GET /healthz HTTP/1.1\r\n\r\n", &handle);
        assert_eq!(healthz, ("200 OK", "ok\n".to_owned()));
        let (status, _) = page(b"GET /readyz HTTP/1.1\r\n\r\n", &handle);
        assert_eq!(status, "404 Not Found");
    }

    #[test]
    fn counters_for_alerts_exist_before_the_first_event() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, begin_counting);
        let page = recorder.handle().render();
        assert!(page.contains("rollout_worker_gpu_errors_total 0\n"), "{page}");
    }
}
