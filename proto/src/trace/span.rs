//! Spans: what one process did for a trace, from when to when, and with which result.
//!
//! *Invariant:* a span has the trace's id, and its parent is the span in which it began, which may be the caller's in
//! another process. A span that is not recorded costs nothing and changes nothing: its context is its parent's.
//! Recording neither waits nor fails.
//!
//! Absent: where spans go and which traces are recorded: the [`Recorder`] decides that.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use super::{TraceContext, current};

static RECORDER: OnceLock<Box<dyn Recorder>> = OnceLock::new();

/// Records the spans of a process.
pub trait Recorder: Send + Sync + 'static {
    /// Whether to record the spans of this trace. The answer is the same for all of them.
    fn wants(&self, trace: u128) -> bool;
    /// Records an ended span. Must not wait.
    fn record(&self, span: EndedSpan);
}

/// Records spans from now on, until the process ends. Returns false if there is a recorder already.
pub fn record_with(recorder: impl Recorder) -> bool {
    RECORDER.set(Box::new(recorder)).is_ok()
}

/// The side of a request that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A request that was served.
    Server,
    /// A request that was sent.
    Client,
    /// Work within the process.
    Internal,
}

/// A value of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Usually a few dozen bytes.
    Text(String),
    /// A number.
    Number(i64),
}

impl From<&str> for Note {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Note {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Note {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// How a span ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanEnd {
    /// It succeeded.
    Done,
    /// It failed, or was refused.
    Failed(String),
    /// Its caller no longer waited for its end.
    Abandoned,
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSpan {
    /// Trace and span.
    pub context: TraceContext,
    /// The span in which it began; `None` if it is the first of its trace.
    pub parent: Option<u64>,
    /// The side of the request.
    pub kind: SpanKind,
    /// The name of the call or request.
    pub name: Cow<'static, str>,
    /// When it began, by this host's clock.
    pub begun: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// Further data, with names of OpenTelemetry's conventions or below `rollout.`.
    pub notes: Vec<(&'static str, Note)>,
    /// Its result.
    pub end: SpanEnd,
}

/// An open span. When dropped without a result, it ends as abandoned.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    context: TraceContext,
    /// `None` if it is not recorded.
    open: Option<Box<Open>>,
}

#[derive(Debug)]
struct Open {
    since: Instant,
    span: EndedSpan,
}

impl Span {
    /// The first span of a new trace.
    pub fn first(kind: SpanKind, name: impl Into<Cow<'static, str>>) -> Self {
        let context = TraceContext::make();
        Self::open(context, context, None, kind, name.into())
    }

    /// A part of the current task's span, or the first span of a new trace if the task has none.
    pub fn part(kind: SpanKind, name: impl Into<Cow<'static, str>>) -> Self {
        match current() {
            Some(parent) => Self::below(parent, kind, name.into()),
            None => Self::first(kind, name),
        }
    }

    /// The span of a request with these headers: part of its caller's span, or the first of a new trace.
    pub fn served(headers: &http::HeaderMap, name: &str) -> Self {
        match TraceContext::of_headers(headers) {
            Some(parent) => Self::below(parent, SpanKind::Server, Cow::Owned(name.to_owned())),
            None => Self::first(SpanKind::Server, name.to_owned()),
        }
    }

    fn below(parent: TraceContext, kind: SpanKind, name: Cow<'static, str>) -> Self {
        Self::open(parent, parent.step(), Some(parent.span()), kind, name)
    }

    fn open(
        unrecorded: TraceContext,
        context: TraceContext,
        parent: Option<u64>,
        kind: SpanKind,
        name: Cow<'static, str>,
    ) -> Self {
        let wanted = RECORDER.get().is_some_and(|by| by.wants(context.trace()));
        if !wanted || !context.sampled() {
            return Self { context: unrecorded, open: None };
        }
        let (notes, end) = (Vec::new(), SpanEnd::Abandoned);
        let (begun, took) = (SystemTime::now(), Duration::ZERO);
        let span = EndedSpan { context, parent, kind, name, begun, took, notes, end };
        Self { context, open: Some(Box::new(Open { since: Instant::now(), span })) }
    }

    /// The context for work within this span; the parent's if the span is not recorded.
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// Whether the span is recorded.
    pub fn is_recorded(&self) -> bool {
        self.open.is_some()
    }

    /// Adds a note.
    pub fn note(&mut self, name: &'static str, value: impl Into<Note>) {
        if let Some(open) = &mut self.open {
            open.span.notes.push((name, value.into()));
        }
    }

    /// Ends the span with success.
    pub fn done(mut self) {
        self.end(SpanEnd::Done);
    }

    /// Ends the span with a failure or refusal, and its reason.
    pub fn failed(mut self, why: impl FnOnce() -> String) {
        if self.is_recorded() {
            self.end(SpanEnd::Failed(why()));
        }
    }

    fn end(&mut self, end: SpanEnd) {
        if let Some(open) = &mut self.open {
            open.span.end = end;
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let (Some(open), Some(recorder)) = (self.open.take(), RECORDER.get()) else { return };
        let took = open.since.elapsed();
        recorder.record(EndedSpan { took, ..open.span });
    }
}

#[cfg(test)]
mod tests;
