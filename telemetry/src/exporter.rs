//! Starts recording, and sends the remaining spans at the end.
//!
//! *Invariant:* whether a trace is recorded depends on its id alone, so all processes with the same ratio record a
//! trace completely or not at all.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SamplingDecision, ShouldSample, SpanProcessor,
};
use rollout_config::{SettingError, TracingSettings};
use rollout_proto::trace::{self, EndedSpan, Recorder};
use tonic::transport::Endpoint;

use crate::sender::{Sender, Waiting};
use crate::wire;

/// The longest that a span waits for a batch.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// Spans in one message: some hundred KiB.
const BATCH_SPANS_MAX: usize = 512;
/// How long a process waits for the collector at its end.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// The process whose spans these are.
#[derive(Clone, Copy, Debug)]
pub struct Service<'a> {
    /// `service.name`: the program.
    pub name: &'static str,
    pub version: &'static str,
    /// `service.instance.id`: the member's or the worker's name.
    pub instance: &'a str,
    /// The counter of spans, with the label `outcome`: `exported`, `dropped` (the queue was full) or `failed`.
    pub metric: &'static str,
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The exporter refuses its settings, or an environment variable of OpenTelemetry.
    #[error("tracing.otlp_endpoint: {0}")]
    Build(#[from] ExporterBuildError),
    /// The address is invalid.
    #[error("tracing.otlp_endpoint: {0}")]
    Address(#[from] tonic::transport::Error),
    /// This process already has an exporter.
    #[error("spans of this process are exported already")]
    Twice,
}

/// Sends the spans of this process.
#[derive(Debug)]
pub struct Exporter(Arc<BatchSpanProcessor>);

impl Exporter {
    /// Starts, if that is configured. An unreachable collector is not an error. Call this within a tokio runtime,
    /// after the recorder of metrics was installed.
    ///
    /// # Errors
    /// Invalid settings, and a second call.
    pub fn start(
        settings: &TracingSettings,
        service: Service<'_>,
    ) -> Result<Option<Self>, StartError> {
        settings.check()?;
        if settings.otlp_endpoint.is_empty() {
            return Ok(None);
        }
        let timeout = Duration::from_millis(settings.timeout_ms);
        // A channel of its own, so that its connection time is bounded too.
        let channel = Endpoint::from_shared(settings.otlp_endpoint.clone())?
            .connect_timeout(timeout)
            .timeout(timeout)
            .connect_lazy();
        let inner = SpanExporter::builder()
            .with_tonic()
            .with_channel(channel)
            .with_timeout(timeout)
            .build()?;
        let waiting = Waiting::new(settings.queue_spans_max, service.metric);
        let processor = processor(inner, settings, waiting.clone(), service);
        let sampler = Sampler::TraceIdRatioBased(settings.sample_ratio);
        let recording = Recording { sampler, waiting, processor: processor.clone() };
        if !trace::record_with(recording) {
            return Err(StartError::Twice);
        }
        let (endpoint, sample_ratio) = (&settings.otlp_endpoint, settings.sample_ratio);
        tracing::info!(endpoint, sample_ratio, "spans are exported");
        Ok(Some(Self(processor)))
    }

    /// Sends the remaining spans, and none after that. Takes at most two seconds, and drops spans that were not sent
    /// by then.
    pub async fn finish(self) {
        let ended = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(FLUSH_WITHIN));
        if let Ok(Err(error)) = ended.await {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}

fn processor<E>(
    inner: E,
    settings: &TracingSettings,
    waiting: Arc<Waiting>,
    service: Service<'_>,
) -> Arc<BatchSpanProcessor>
where
    E: opentelemetry_sdk::trace::SpanExporter + 'static,
{
    let endpoint = settings.otlp_endpoint.clone();
    let sender = Sender { inner, waiting, endpoint, away: AtomicBool::new(false) };
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(settings.queue_spans_max)
        .with_max_export_batch_size(BATCH_SPANS_MAX)
        .with_scheduled_delay(SEND_EVERY);
    let mut processor = BatchSpanProcessor::new(sender, batches.build());
    // These override OTEL_RESOURCE_ATTRIBUTES.
    let resource = Resource::builder().with_service_name(service.name).with_attributes([
        KeyValue::new("service.version", service.version),
        KeyValue::new("service.instance.id", service.instance.to_owned()),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ]);
    processor.set_resource(&resource.build());
    Arc::new(processor)
}

/// The recorder: which traces it records, and where spans go.
struct Recording {
    sampler: Sampler,
    waiting: Arc<Waiting>,
    processor: Arc<BatchSpanProcessor>,
}

impl Recorder for Recording {
    fn wants(&self, trace: u128) -> bool {
        let id = TraceId::from_bytes(trace.to_be_bytes());
        let sampled = self.sampler.should_sample(None, id, "", &SpanKind::Internal, &[], &[]);
        sampled.decision == SamplingDecision::RecordAndSample
    }

    fn record(&self, span: EndedSpan) {
        if self.waiting.enter() {
            self.processor.on_end(wire::span_data(span));
        }
    }
}

#[cfg(test)]
mod tests;
