use super::*;
use crate::trace::{TRACEPARENT, within};
use parking_lot::Mutex;
use std::sync::Arc;

/// Records traces with an even id, because other tests run at the same time.
struct RecordedSpans(Arc<Mutex<Vec<EndedSpan>>>);

impl Recorder for RecordedSpans {
    fn wants(&self, trace: u128) -> bool {
        trace.is_multiple_of(2)
    }

    fn record(&self, span: EndedSpan) {
        self.0.lock().push(span);
    }
}

const WANTED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNWANTED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-01";
const NOT_SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

fn served(traceparent: &str) -> Span {
    let mut headers = http::HeaderMap::new();
    headers.insert(TRACEPARENT, traceparent.parse().unwrap());
    Span::served(&headers, "rollout.v1.Runs/CreateRun")
}

// A single test, because a process has one recorder.
#[tokio::test]
async fn spans_of_a_wanted_trace_follow_each_other_and_others_pass_their_callers_on() {
    let before = served(WANTED);
    assert!(!before.is_recorded(), "there is no recorder yet");
    assert_eq!(before.context().to_string(), WANTED);
    drop(before);

    let kept: Arc<Mutex<Vec<EndedSpan>>> = Arc::default();
    assert!(record_with(RecordedSpans(kept.clone())));
    assert!(!record_with(RecordedSpans(kept.clone())), "a second recorder is refused");
    for other in [UNWANTED, NOT_SAMPLED] {
        let span = served(other);
        assert_eq!((span.is_recorded(), span.context().to_string()), (false, other.to_owned()));
        span.done();
    }

    let mut outer = served(WANTED);
    let context = outer.context();
    outer.note("rollout.log_index", 17_u64);
    within(context, async {
        Span::part(SpanKind::Client, "register").failed(|| "no answer".to_owned());
        drop(Span::part(SpanKind::Internal, "commit"));
    })
    .await;
    outer.done();

    let of_trace = context.trace();
    let spans: Vec<_> =
        kept.lock().iter().filter(|s| s.context.trace() == of_trace).cloned().collect();
    let [inner, abandoned, outer] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(outer.parent, Some(0x00f0_67aa_0ba9_02b7), "the caller's span");
    assert_eq!((inner.parent, abandoned.parent), (Some(context.span()), Some(context.span())));
    assert_ne!(inner.context.span(), context.span());
    assert_eq!((outer.kind, outer.end.clone()), (SpanKind::Server, SpanEnd::Done));
    assert_eq!(outer.notes, [("rollout.log_index", Note::Number(17))]);
    assert_eq!(inner.end, SpanEnd::Failed("no answer".to_owned()));
    assert_eq!(abandoned.end, SpanEnd::Abandoned);
}
