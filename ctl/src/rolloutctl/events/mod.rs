//! `rolloutctl events`: what happened, and what happens.
//!
//! Invariant: each event once and in order, whichever member it comes from; where events are gone the command says so
//! and ends with status 9, or goes on and says what it left out. Whatever ends it, it says how to go on.

pub(super) mod line;

use clap::Args;
use rollout_proto::v1;

use self::line::EventLine;
use crate::connect::{ConnectArgs, ConnectSettings};
use crate::event_stream::{EventStream, Heard, Place, Start};
use crate::hint::namespace_flag;
use crate::output::{self, Format, write_stdout};
use crate::rolloutctl::Failure;
use crate::say::{aside, to_stderr};

/// Which events, from where.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Go on with what happens from now on, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Where to begin: a log index, or the place that an earlier call named [default: the oldest kept; with --follow: now]
    #[arg(long, value_name = "INDEX[:POS]", value_parser = parse_place)]
    since: Option<Place>,
    /// Where events from --since on are gone, go on with the oldest instead of failing with status 9
    #[arg(long)]
    from_oldest: bool,
    /// Only what is about one worker, run or row
    #[arg(long = "for", value_name = "worker/NAME|run/NAME|item/RUN/ROW", value_parser = parse_about)]
    about: Option<About>,
    /// Only these kinds, such as granted,stolen,completed
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<String>,
}

/// What a reader asks about.
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

fn parse_place(text: &str) -> Result<Place, String> {
    let (index, position) = text.split_once(':').unwrap_or((text, "0"));
    let bad = |_| format!("{text} is no log index, nor INDEX:POS");
    Ok(Place { index: index.parse().map_err(bad)?, position: position.parse().map_err(bad)? })
}

fn parse_about(text: &str) -> Result<About, String> {
    let parts: Vec<&str> = text.split('/').collect();
    match parts[..] {
        ["worker", name] if !name.is_empty() => Ok(About::Worker(name.to_owned())),
        ["run", name] if !name.is_empty() => Ok(About::Run(name.to_owned())),
        ["item", run, row] if !run.is_empty() => match row.parse() {
            Ok(row) => Ok(About::Item(run.to_owned(), row)),
            Err(_) => Err(format!("{row} is no row number")),
        },
        _ => Err("it has to be worker/NAME, run/NAME or item/RUN/ROW".to_owned()),
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
            Some(place) => Start::At(place),
            None if self.follow => Start::Now,
            None => Start::Oldest,
        }
    }

    /// The command that goes on where this one ended.
    fn resume(&self, namespace: &str, place: Place) -> String {
        let mut text = format!("rolloutctl events --follow --since {place}");
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

/// Prints events.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: EventsArgs,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let filter = args.filter(&settings);
    let mut stream = EventStream::new(&client, filter, args.follow, args.start());
    // One for the whole command: whoever asks anew each time hears nothing of a Ctrl-C that came while it printed.
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let heard = tokio::select! {
            heard = stream.next() => heard,
            _ = &mut interrupt => {
                say_how_to_go_on(&args, &settings.namespace, &stream);
                return Ok(());
            }
        };
        match heard {
            Ok(Heard::Events(events)) => {
                print(format, events)?;
                if output::reader_is_gone() {
                    return Ok(());
                }
            }
            Ok(Heard::End) => return Ok(()),
            Ok(Heard::Compacted { oldest }) if args.from_oldest => {
                to_stderr(&format!(
                    "events before index {oldest} are no longer kept: going on at {oldest}:0\n"
                ));
                stream.go_on_at(Place { index: oldest, position: 0 });
            }
            Ok(Heard::Compacted { oldest }) => {
                let asked = stream.place().unwrap_or_default();
                return Err(Failure::compacted(format!(
                    "Compacted: events from {asked} on are no longer kept; the oldest index kept is \
                     {oldest}. To go on there: {}",
                    args.resume(&settings.namespace, Place { index: oldest, position: 0 })
                ))
                .into());
            }
            Err(error) => {
                say_how_to_go_on(&args, &settings.namespace, &stream);
                return Err(error.into());
            }
        }
    }
}

fn say_how_to_go_on(args: &EventsArgs, namespace: &str, stream: &EventStream) {
    if let Some(place) = stream.place() {
        aside(format_args!("to go on: {}", args.resume(namespace, place)));
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
    fn places_and_things_are_read_as_they_are_written() {
        assert_eq!(parse_place("12"), Ok(Place { index: 12, position: 0 }));
        assert_eq!(parse_place("12:7"), Ok(Place { index: 12, position: 7 }));
        assert!(parse_place("12:").is_err() && parse_place("x").is_err());
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
            from_oldest: false,
            about: Some(About::Worker("w3".to_owned())),
            kinds: vec!["granted".to_owned(), "stolen".to_owned()],
        };
        assert_eq!(
            args.resume("default", Place { index: 9, position: 2 }),
            "rolloutctl events --follow --since 9:2 --for worker/w3 --kind granted,stolen"
        );
        args.from_oldest = true;
        args.kinds.clear();
        assert_eq!(
            args.resume("team-a", Place { index: 9, position: 2 }),
            "rolloutctl events --follow --since 9:2 --from-oldest --for worker/w3 --namespace team-a"
        );
    }
}
