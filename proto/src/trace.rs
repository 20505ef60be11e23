//! Trace ids: which request a log line belongs to, across all processes that handle the request.
//!
//! The header is W3C's `traceparent`, so that a caller that already has a trace passes on its own id.
//! *Invariant:* all attempts of one call have one trace id. A malformed header counts as absent: no request is refused
//! because of logging. The span that a header names is one that is recorded ([`Span`]): a process that records none
//! passes on the header that it received.
//!
//! Absent: `tracestate`, and sending spans anywhere (`rollout-telemetry`).

mod span;

use std::fmt;
use std::future::Future;

pub use span::{EndedSpan, Note, Recorder, Span, SpanEnd, SpanKind, record_with};

/// The header; in upper case, the environment variable.
pub const TRACEPARENT: &str = "traceparent";
/// The variable from which a command takes its caller's trace.
pub const TRACEPARENT_ENV: &str = "TRACEPARENT";

/// The flag with which a caller says that it records the trace.
const SAMPLED: u8 = 1;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// A position in a trace: the trace and a span in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace: u128,
    span: u64,
    flags: u8,
}

impl TraceContext {
    /// Starts a new trace.
    pub fn make() -> Self {
        // Zero means invalid.
        Self {
            trace: rand::random::<u128>().max(1),
            span: rand::random::<u64>().max(1),
            flags: SAMPLED,
        }
    }

    /// A step within the same trace.
    fn step(self) -> Self {
        Self { span: rand::random::<u64>().max(1), ..self }
    }

    /// Reads a header's value; `None` where it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('-');
        let (version, trace, span, flags) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let version = u8::from_str_radix(hex(version, 2)?, 16).ok()?;
        // Later versions may have more fields, version 0 has exactly these, and 255 is invalid.
        if version == u8::MAX || (version == 0 && fields.next().is_some()) {
            return None;
        }
        let trace = u128::from_str_radix(hex(trace, 32)?, 16).ok()?;
        let span = u64::from_str_radix(hex(span, 16)?, 16).ok()?;
        let flags = u8::from_str_radix(hex(flags, 2)?, 16).ok()?;
        (trace != 0 && span != 0).then_some(Self { trace, span, flags })
    }

    /// The trace in a request's headers, if they have one.
    pub fn of_headers(headers: &http::HeaderMap) -> Option<Self> {
        headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()).and_then(Self::parse)
    }

    /// The trace in the environment, or a new one.
    pub fn of_env() -> Self {
        let text = std::env::var(TRACEPARENT_ENV).ok();
        text.as_deref().and_then(Self::parse).unwrap_or_else(Self::make)
    }

    /// The trace's id, 32 hex digits, which all log lines of a request share.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// The trace's id as a number.
    pub fn trace(&self) -> u128 {
        self.trace
    }

    /// The parent span of whatever comes next.
    pub fn span(&self) -> u64 {
        self.span
    }

    /// Whether the caller records this trace, or may record it.
    pub fn sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// The text, if it has exactly this many lower-case hex digits.
fn hex(text: &str, digits: usize) -> Option<&str> {
    let good = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == digits && text.bytes().all(good)).then_some(text)
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// The trace of the current task.
pub fn current() -> Option<TraceContext> {
    CURRENT.try_with(|context| *context).ok()
}

/// Runs `work` so that all its requests to a cluster belong to a trace.
pub async fn within<T>(context: TraceContext, work: impl Future<Output = T>) -> T {
    CURRENT.scope(context, work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_survives_its_header_and_a_step_stays_in_the_trace() {
        let given = TraceContext::parse(GIVEN).unwrap();
        assert_eq!(given.to_string(), GIVEN);
        assert_eq!(given.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let step = given.step();
        assert_eq!(step.trace_id(), given.trace_id());
        assert_ne!(step, given);
        let made = TraceContext::make();
        assert_eq!(TraceContext::parse(&made.to_string()), Some(made));
    }

    #[test]
    fn a_malformed_header_counts_as_absent() {
        for text in [
            "",
            "00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert!(TraceContext::parse(later).is_some());
    }

    #[tokio::test]
    async fn a_task_knows_its_trace_while_it_lasts() {
        assert_eq!(current(), None);
        let made = TraceContext::make();
        within(made, async { assert_eq!(current(), Some(made)) }).await;
        assert_eq!(current(), None);
    }
}
