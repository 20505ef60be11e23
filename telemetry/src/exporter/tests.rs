use super::*;
use opentelemetry::trace::Status;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::SpanData;
use rollout_proto::trace::{Note, SpanEnd, TraceContext};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Instant, SystemTime};

const SERVICE: Service<'_> = Service {
    name: "rollout-test",
    version: "1",
    instance: "t1",
    metric: "test_trace_spans_total",
};

/// A collector that accepts a batch each time the test tells it to.
#[derive(Debug)]
struct SteppedCollector {
    go: Mutex<Receiver<()>>,
    taken: SyncSender<Vec<SpanData>>,
}

impl opentelemetry_sdk::trace::SpanExporter for SteppedCollector {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        // Once the test has dropped the sender, it accepts nothing more.
        while self.go.lock().unwrap().recv().is_err() {
            std::thread::park();
        }
        self.taken.send(batch).unwrap();
        Ok(())
    }
}

type Collector = (Recording, SyncSender<()>, Receiver<Vec<SpanData>>);

fn recording(queue_spans_max: usize, sample_ratio: f64) -> Collector {
    let settings = TracingSettings { queue_spans_max, sample_ratio, ..TracingSettings::default() };
    let (go, told) = sync_channel(64);
    let (taken, batches) = sync_channel(64);
    let waiting = Waiting::new(queue_spans_max, SERVICE.metric);
    let inner = SteppedCollector { go: Mutex::new(told), taken };
    let processor = processor(inner, &settings, waiting.clone(), SERVICE);
    let sampler = Sampler::TraceIdRatioBased(sample_ratio);
    (Recording { sampler, waiting, processor }, go, batches)
}

fn span(name: &'static str, end: SpanEnd) -> EndedSpan {
    EndedSpan {
        context: TraceContext::make(),
        parent: Some(7),
        kind: rollout_proto::trace::SpanKind::Server,
        name: name.into(),
        begun: SystemTime::now(),
        took: Duration::from_millis(3),
        notes: vec![("rollout.log_index", Note::Number(17))],
        end,
    }
}

#[test]
fn spans_beyond_a_full_queue_are_dropped_at_once_and_its_room_comes_back() {
    let (recording, go, batches) = recording(3, 1.0);
    let begun = Instant::now();
    for _ in 0..10 {
        recording.record(span("a", SpanEnd::Done));
    }
    assert!(begun.elapsed() < SEND_EVERY, "a recorder waited for its collector");
    let mut taken = 0;
    while taken < 3 {
        go.send(()).unwrap();
        taken += batches.recv().unwrap().len();
    }
    assert_eq!(taken, 3, "more than the queue has room for");
    // A sent span leaves the count a moment after the collector has it.
    while !recording.waiting.enter() {
        std::thread::yield_now();
    }
}

#[test]
fn a_hung_collector_delays_the_end_for_a_bounded_time() {
    let (recording, go, _batches) = recording(10, 1.0);
    recording.record(span("a", SpanEnd::Done));
    let begun = Instant::now();
    let limit = Duration::from_millis(50);
    assert!(recording.processor.shutdown_with_timeout(limit).is_err());
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(go);
}

#[test]
fn traces_are_recorded_by_id_in_the_configured_share() {
    let count = |ratio| {
        let (recording, _go, _batches) = recording(1, ratio);
        (0..1000).filter(|_| recording.wants(TraceContext::make().trace())).count()
    };
    assert_eq!((count(0.0), count(1.0)), (0, 1000));
    assert!((150..350).contains(&count(0.25)), "{}", count(0.25));
    let (one, _go, _batches) = recording(1, 0.5);
    let (other, _go, _batches) = recording(1, 0.5);
    for _ in 0..100 {
        let trace = TraceContext::make().trace();
        assert_eq!(one.wants(trace), other.wants(trace));
    }
}

#[test]
fn a_span_keeps_its_ids_and_has_its_result() {
    let given = span("rollout.v1.Runs/CreateRun", SpanEnd::Failed("é".repeat(1000)));
    let context = given.context;
    let data = wire::span_data(given);
    assert_eq!(data.span_context.trace_id().to_string(), context.trace_id());
    assert_eq!(data.span_context.span_id().to_bytes(), context.span().to_be_bytes());
    assert_eq!(data.parent_span_id.to_bytes(), 7_u64.to_be_bytes());
    assert!(data.parent_span_is_remote);
    assert_eq!(data.end_time.duration_since(data.start_time).unwrap(), Duration::from_millis(3));
    let Status::Error { description } = data.status else { panic!("{:?}", data.status) };
    assert_eq!(description.len(), 1024, "a reason is bounded");
    let done = wire::span_data(span("a", SpanEnd::Done));
    assert_eq!((done.status, done.attributes.len()), (Status::Unset, 1));
    let left = wire::span_data(span("a", SpanEnd::Abandoned));
    assert_eq!(left.status, Status::Unset);
    assert!(left.attributes.iter().any(|kv| kv.key.as_str() == "rollout.abandoned"));
}
