//! An OpenTelemetry collector on loopback, which keeps every span that it receives.
//!
//! *Invariant:* a span whose request was answered is kept. Absent: any processing of spans.

use anyhow::{Context, Result};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A span as it arrived. Ids are lower-case hex digits.
#[derive(Debug, Clone)]
pub struct CollectedSpan {
    /// The resource attributes of its process, such as `service.name`.
    pub resource: BTreeMap<String, String>,
    pub trace_id: String,
    /// Its own id.
    pub span_id: String,
    /// Empty if it is the first of its trace.
    pub parent_id: String,
    /// The call.
    pub name: String,
    /// Its attributes; numbers in decimal.
    pub attributes: BTreeMap<String, String>,
    /// It ended with an error.
    pub failed: bool,
}

impl CollectedSpan {
    /// An attribute, or an empty string.
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    /// `service.name` and `service.instance.id`.
    pub fn service(&self) -> (&str, &str) {
        let of = |name| self.resource.get(name).map_or("", String::as_str);
        (of("service.name"), of("service.instance.id"))
    }
}

/// A running collector. It ends when it is dropped.
pub struct Collector {
    addr: String,
    spans: Arc<Mutex<Vec<CollectedSpan>>>,
    _serving: Runtime,
}

impl Collector {
    /// Starts an empty collector.
    ///
    /// # Errors
    /// When there is no port.
    pub fn start() -> Result<Self> {
        let serving = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("a runtime")?;
        let listener = serving.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let addr = listener.local_addr()?.to_string();
        let spans = Arc::default();
        let service = TraceServiceServer::new(Keep(Arc::clone(&spans)));
        let incoming = TcpListenerStream::new(listener);
        serving.spawn(
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming),
        );
        Ok(Self { addr, spans, _serving: serving })
    }

    /// The value for `[tracing] otlp_endpoint`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// All spans so far, in the order in which they arrived.
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first span that `is_it` accepts, if there is one yet.
    pub fn find(&self, is_it: impl Fn(&CollectedSpan) -> bool) -> Option<CollectedSpan> {
        self.spans().into_iter().find(is_it)
    }
}

struct Keep(Arc<Mutex<Vec<CollectedSpan>>>);

#[tonic::async_trait]
impl TraceService for Keep {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for of_process in request.into_inner().resource_spans {
            let resource = of_process.resource.map(|all| values(&all.attributes));
            let resource = resource.unwrap_or_default();
            for span in of_process.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                kept.push(CollectedSpan {
                    resource: resource.clone(),
                    trace_id: hex(&span.trace_id),
                    span_id: hex(&span.span_id),
                    parent_id: hex(&span.parent_span_id),
                    name: span.name,
                    attributes: values(&span.attributes),
                    failed: span.status.is_some_and(|s| s.code() == StatusCode::Error),
                });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn values(all: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |kv: &KeyValue| match kv.value.as_ref().and_then(|any| any.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    all.iter().map(|kv| (kv.key.clone(), text(kv))).collect()
}
