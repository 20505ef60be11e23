//! Owns: the process's metrics and the page that shows them.
//!
//! Invariant: no row, run or session is a label. Names begin with `rollout_worker_`.
//! Absent: a health check; a worker's health is its session's, which the leader shows.

use std::net::SocketAddr;

use anyhow::Context;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Bytes of a request that are read; the rest says nothing of interest.
const REQUEST_BYTES_MAX: usize = 8192;

/// Serves the metrics on `address` until the process ends. To be called once.
pub async fn serve(address: SocketAddr) -> anyhow::Result<SocketAddr> {
    let handle = PrometheusBuilder::new().install_recorder().context("cannot record metrics")?;
    begin_counting();
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("metrics_listen: cannot listen on {address}"))?;
    let bound = listener.local_addr()?;
    tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { continue };
            // One at a time: whoever scrapes waits a moment, and no connection is kept.
            handle.run_upkeep();
            let page = handle.render();
            let answer = async {
                let mut request = vec![0; REQUEST_BYTES_MAX];
                let read = stream.read(&mut request).await?;
                let known = request[..read].starts_with(b"GET /metrics");
                let (status, body) = if known {
                    ("200 OK", page.as_str())
                } else {
                    ("404 Not Found", "see /metrics\n")
                };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\n\
                     content-length: {length}\r\nconnection: close\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(body.as_bytes()).await?;
                stream.shutdown().await
            };
            // A scraper that went away, or dawdles, is no concern of ours.
            let _ = tokio::time::timeout(std::time::Duration::from_secs(2), answer).await;
        }
    });
    Ok(bound)
}

/// A counter that appears with its first event has not grown for an alert: those that one event, or some, are worth an alert
/// of are there before. Deaths of engines are counted by what they left, which nobody knows before.
fn begin_counting() {
    metrics::counter!("rollout_worker_gpu_errors_total").increment(0);
    metrics::counter!("rollout_worker_upload_retries_total").increment(0);
    metrics::counter!("rollout_worker_streams_ended_total").increment(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_event_is_worth_an_alert_of_is_counted_before_it_happens() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, begin_counting);
        let page = recorder.handle().render();
        assert!(page.contains("rollout_worker_gpu_errors_total 0\n"), "{page}");
    }
}
