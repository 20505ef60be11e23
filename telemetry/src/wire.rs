//! Converts an [`EndedSpan`] to a span of OpenTelemetry.
//!
//! *Invariant:* ids stay the same.

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind as OtelKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use rollout_proto::trace::{EndedSpan, Note, SpanEnd, SpanKind};

/// The longest text that is sent, of a reason or a note, in bytes.
const REASON_BYTES_MAX: usize = 1024;

pub(crate) fn span_data(span: EndedSpan) -> SpanData {
    let EndedSpan { context, parent, kind, name, begun, took, notes, end } = span;
    let server = kind == SpanKind::Server;
    let mut attributes: Vec<_> =
        notes.into_iter().map(|(name, value)| attribute(name, value)).collect();
    // For example, the caller has gone, or a worker's connection ended with its drain. This is not a failure by
    // itself.
    if end == SpanEnd::Abandoned {
        attributes.push(KeyValue::new("rollout.abandoned", true));
    }
    let span_context = SpanContext::new(
        TraceId::from_bytes(context.trace().to_be_bytes()),
        SpanId::from_bytes(context.span().to_be_bytes()),
        TraceFlags::SAMPLED,
        false,
        TraceState::default(),
    );
    SpanData {
        span_context,
        parent_span_id: parent
            .map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.to_be_bytes())),
        parent_span_is_remote: server && parent.is_some(),
        span_kind: match kind {
            SpanKind::Server => OtelKind::Server,
            SpanKind::Client => OtelKind::Client,
            SpanKind::Internal => OtelKind::Internal,
        },
        name,
        start_time: begun,
        end_time: begun + took,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: match end {
            SpanEnd::Failed(why) => Status::error(shortened(why)),
            SpanEnd::Done | SpanEnd::Abandoned => Status::Unset,
        },
        instrumentation_scope: InstrumentationScope::builder("rollout").build(),
    }
}

fn attribute(name: &'static str, value: Note) -> KeyValue {
    match value {
        Note::Text(text) => KeyValue::new(name, shortened(text)),
        Note::Number(number) => KeyValue::new(name, number),
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > REASON_BYTES_MAX {
        text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
        // The text waits in the queue, where unused capacity would take memory.
        text.shrink_to_fit();
    }
    text
}
