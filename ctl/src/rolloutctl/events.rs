//! `rolloutctl events`: past and current events.
//!
//! Invariant: each event once and in order, whichever member sends it. If events are gone, the command reports it and
//! ends with status 9, or continues and reports what it skipped. However it ends, it says how to continue.

pub(super) mod line;
mod since;

use std::ops::ControlFlow;

use clap::Args;
use rollout_batch::event_stream::{EventStream, LogPosition, Start, StreamItem};
use rollout_batch::hint::namespace_flag;
use rollout_proto::v1;

use self::line::EventLine;
use self::since::{Chosen, Since, TAIL_MAX};
use crate::completer::{self, Names};
use crate::connect::ConnectSettings;
use crate::output::{self, Format, write_stdout};
use crate::rolloutctl::Failure;
use crate::rolloutctl::run_summary::now_wall_ms;
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio::{print_note, to_stderr};

/// Which events, from where.
#[derive(Debug, Args)]
#[command(after_help = concat!(
    "Examples:",
    "\n  rolloutctl events --since 15m --for run/nightly",
    "\n  rolloutctl events --follow --kind worker_registered,worker_lost",
    "\n  rolloutctl events --since 2026-11-27T09:30:00Z --for item/nightly/17 -o jsonl"
))]
pub(crate) struct EventsArgs {
    /// Continue with new events until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// An age (5m), an RFC 3339 time, a log index, or the INDEX:POS of an earlier call [default:
    /// the oldest event kept; with --follow: now]
    #[arg(long, value_name = "AGE|TIME|INDEX[:POS]", value_parser = Since::parse)]
    since: Option<Since>,
    /// Begin with the last N events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(TAIL_MAX)))]
    tail: Option<u32>,
    /// If events since --since are no longer kept, begin with the oldest instead of exiting with
    /// status 9
    #[arg(long)]
    from_oldest: bool,
    /// Only events of one worker, run or row
    #[arg(long = "for", value_name = "worker/NAME|run/NAME|item/RUN/ROW", value_parser = parse_about)]
    about: Option<About>,
    /// Only these kinds, such as granted,stolen,completed
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',', add = completer::of(Names::EventKinds))]
    kinds: Vec<String>,
}

/// The subject of a reader's request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum About {
    Worker(String),
    Run(String),
    Item(String, u64),
}

impl std::fmt::Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            About::Worker(name) => write!(f, "worker/{name}"),
            About::Run(name) => write!(f, "run/{name}"),
            About::Item(run, row) => write!(f, "item/{run}/{row}"),
        }
    }
}

fn parse_about(text: &str) -> Result<About, String> {
    let parts: Vec<&str> = text.split('/').collect();
    match parts[..] {
        ["worker", name] if !name.is_empty() => Ok(About::Worker(name.to_owned())),
        ["run", name] if !name.is_empty() => Ok(About::Run(name.to_owned())),
        ["item", run, row] if !run.is_empty() => match row.parse() {
            Ok(row) => Ok(About::Item(run.to_owned(), row)),
            Err(_) => Err(format!("{row} is not a row number")),
        },
        _ => Err("it must be worker/NAME, run/NAME or item/RUN/ROW".to_owned()),
    }
}

impl EventsArgs {
    fn filter(&self, settings: &ConnectSettings) -> v1::EventFilter {
        let mut filter = v1::EventFilter {
            namespace: settings.namespace.clone(),
            kinds: self.kinds.clone(),
            ..v1::EventFilter::default()
        };
        match &self.about {
            Some(About::Worker(name)) => filter.worker = name.clone(),
            Some(About::Run(name)) => filter.run = name.clone(),
            Some(About::Item(run, row)) => (filter.run, filter.row) = (run.clone(), Some(*row)),
            None => {}
        }
        filter
    }

    fn start(&self) -> Start {
        match self.since {
            Some(Since::Position(position)) => Start::At(position),
            // Older events are omitted, by the member if its build supports that.
            Some(Since::Age(_) | Since::Moment(_)) => Start::Oldest,
            None if self.follow && self.tail.is_none() => Start::Now,
            None => Start::Oldest,
        }
    }

    /// The command that continues where this one ended.
    fn resume(&self, namespace: &str, position: LogPosition) -> String {
        let mut text = format!("rolloutctl events --follow --since {position}");
        if self.from_oldest {
            text += " --from-oldest";
        }
        if let Some(about) = &self.about {
            text += &format!(" --for {about}");
        }
        if !self.kinds.is_empty() {
            text += &format!(" --kind {}", self.kinds.join(","));
        }
        text + &namespace_flag(namespace)
    }
}

impl Verb for EventsArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let filter = self.filter(&settings);
        let mut chosen = Chosen::new(self.since, self.tail, now_wall_ms());
        // One future for the whole command: a new one for each wait would miss a Ctrl-C that arrives during printing.
        let interrupt = std::pin::pin!(tokio::signal::ctrl_c());
        let mut reader = Reader {
            args: &self,
            namespace: &settings.namespace,
            format: globals.format,
            interrupt,
        };
        let mut start = self.start();
        if chosen.has_tail() {
            // Past events, to their end; then, with --follow, new ones.
            let past = EventStream::new(&client, filter.clone(), false, start);
            let mut past = past.not_before(chosen.not_before_ms());
            if reader.read(&mut past, &mut chosen).await?.is_break() {
                return Ok(());
            }
            print(globals.format, chosen.end_tail())?;
            if !self.follow || output::reader_is_gone() {
                return Ok(());
            }
            start = past.position().map_or(start, Start::At);
        }
        let stream = EventStream::new(&client, filter, self.follow, start);
        let mut stream = stream.not_before(chosen.not_before_ms());
        reader.read(&mut stream, &mut chosen).await.map(drop)
    }
}

/// A reading of events, and how it is shown.
struct Reader<'a, F> {
    args: &'a EventsArgs,
    namespace: &'a str,
    format: Format,
    interrupt: F,
}

impl<F: Future<Output = std::io::Result<()>> + Unpin> Reader<'_, F> {
    /// Reads a stream to its end. Break: the command ends before that.
    async fn read(
        &mut self,
        stream: &mut EventStream,
        chosen: &mut Chosen,
    ) -> anyhow::Result<ControlFlow<()>> {
        loop {
            let event = tokio::select! {
                event = stream.next() => event,
                _ = &mut self.interrupt => {
                    self.print_resume_hint(stream);
                    return Ok(ControlFlow::Break(()));
                }
            };
            match event {
                Ok(StreamItem::Events(events)) => {
                    print(self.format, chosen.take(events))?;
                    if output::reader_is_gone() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(StreamItem::End) => return Ok(ControlFlow::Continue(())),
                Ok(StreamItem::Compacted { oldest }) => self.compacted(stream, oldest)?,
                Err(error) => {
                    self.print_resume_hint(stream);
                    return Err(error.into());
                }
            }
        }
    }

    /// The position is gone: continues at the oldest index if requested.
    fn compacted(&self, stream: &mut EventStream, oldest: u64) -> Result<(), Failure> {
        let position = LogPosition { index: oldest, position: 0 };
        if self.args.from_oldest {
            to_stderr(&format!(
                "events before index {oldest} are no longer kept: continuing at {position}\n"
            ));
            stream.resume_at(position);
            return Ok(());
        }
        let requested = stream.position().unwrap_or_default();
        Err(Failure::compacted(format!(
            "Compacted: events from {requested} on are no longer kept; the oldest index kept is {oldest}. \
             To continue there: {}",
            self.args.resume(self.namespace, position)
        )))
    }

    fn print_resume_hint(&self, stream: &EventStream) {
        if let Some(position) = stream.position() {
            print_note(format_args!("to go on: {}", self.args.resume(self.namespace, position)));
        }
    }
}

fn print(format: Format, events: Vec<v1::Event>) -> anyhow::Result<()> {
    let lines: Vec<EventLine> = events.into_iter().map(EventLine::from).collect();
    match format.is_table() {
        false => lines.iter().try_for_each(|line| output::emit_next(format, line)),
        true if lines.is_empty() => Ok(()),
        // One write for all: a follower of a busy cluster gets hundreds at a time.
        true => write_stdout(&lines.iter().map(output::Report::table).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_read_as_they_are_written() {
        for text in ["worker/w3", "run/nightly", "item/nightly/17"] {
            assert_eq!(parse_about(text).expect("fine").to_string(), text);
        }
        for bad in ["w3", "worker/", "item/nightly", "item/nightly/x", "part/x"] {
            assert!(parse_about(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_to_go_on_asks_for_the_same() {
        let mut args = EventsArgs {
            follow: true,
            since: None,
            tail: None,
            from_oldest: false,
            about: Some(About::Worker("w3".to_owned())),
            kinds: vec!["granted".to_owned(), "stolen".to_owned()],
        };
        assert_eq!(
            args.resume("default", LogPosition { index: 9, position: 2 }),
            "rolloutctl events --follow --since 9:2 --for worker/w3 --kind granted,stolen"
        );
        args.from_oldest = true;
        args.kinds.clear();
        assert_eq!(
            args.resume("team-a", LogPosition { index: 9, position: 2 }),
            "rolloutctl events --follow --since 9:2 --from-oldest --for worker/w3 --namespace team-a"
        );
    }
}
