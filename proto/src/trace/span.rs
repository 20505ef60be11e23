//! Spans: what one process did for a trace, from when to when, and with which result.
//!
//! *Invariant:* a span has the trace's id, and its parent is the span in which it began, which may be the caller's in
//! another process. A span that is not recorded costs nothing and changes nothing: its context is its parent's.
//! Recording neither waits nor fails.
//!
//! Deliberately absent: where spans go and which traces are recorded: the [`Recorder`] decides that.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use super::{TraceContext, current};

static RECORDER: OnceLock<Box<dyn Recorder>> = OnceLock::new();

/// Takes the spans of a process.
pub trait Recorder: Send + Sync + 'static {
    /// Whether spans of this trace are recorded: the same answer for all of them.
    fn wants(&self, trace: u128) -> bool;
    /// Takes a span that has ended. Must not wait.
    fn record(&self, span: EndedSpan);
}

/// Has spans recorded from now on, until the process ends. False where somebody records them already.
pub fn record_with(recorder: impl Recorder) -> bool {
    RECORDER.set(Box::new(recorder)).is_ok()
}

/// What a span is to the one on the other side.
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
    /// Of a few dozen bytes as a rule.
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
    /// As it should.
    Done,
    /// It failed, or was refused.
    Failed(String),
    /// Nobody waited for its end any more.
    Abandoned,
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSpan {
    /// Trace and span.
    pub context: TraceContext,
    /// The span in which it began; none: it is the first of its trace.
    pub parent: Option<u64>,
    /// What it is to the other side.
    pub kind: SpanKind,
    /// Which call or request.
    pub name: Cow<'static, str>,
    /// When it began, by this host's clock.
    pub begun: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// What else is known, by names of OpenTelemetry's conventions or below `rollout.`.
    pub notes: Vec<(&'static str, Note)>,
    /// What came of it.
    pub end: SpanEnd,
}

/// A span under way. It ends when it is dropped, abandoned unless it was said how.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    context: TraceContext,
    /// None: not recorded.
    open: Option<Box<Open>>,
}

#[derive(Debug)]
struct Open {
    since: Instant,
    span: EndedSpan,
}

impl Span {
    /// The first of a new trace.
    pub fn first(kind: SpanKind, name: impl Into<Cow<'static, str>>) -> Self {
        let context = TraceContext::make();
        Self::open(context, context, None, kind, name.into())
    }

    /// A part of what this task does, or the first of a new trace where that is part of none.
    pub fn part(kind: SpanKind, name: impl Into<Cow<'static, str>>) -> Self {
        match current() {
            Some(parent) => Self::below(parent, kind, name.into()),
            None => Self::first(kind, name),
        }
    }

    /// A request that came with these headers: part of its caller's span, or the first of a new trace.
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

    /// What goes on within this span is part of; its parent's where it is not recorded.
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// Whether there is anybody to note things for.
    pub fn is_recorded(&self) -> bool {
        self.open.is_some()
    }

    /// Adds what is known.
    pub fn note(&mut self, name: &'static str, value: impl Into<Note>) {
        if let Some(open) = &mut self.open {
            open.span.notes.push((name, value.into()));
        }
    }

    /// It ended as it should.
    pub fn done(mut self) {
        self.end(SpanEnd::Done);
    }

    /// It failed, or was refused, and this is why.
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
