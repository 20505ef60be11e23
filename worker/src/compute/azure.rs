//! Owns: Azure's instance metadata service: scheduled events of this machine, and its description.
//!
//! Invariant: every request carries `Metadata: true`. The document also lists neighbors' events: an event counts only
//! if it names this machine. It is reported once, and again when its time changes or it begins.
//! Absent: approving events (`StartRequests`): Azure would begin at once, perhaps for neighbors too.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::metadata::{Metadata, MetadataError, MetadataResponse};
use super::metadata_failures::MetadataFailures;
use super::{ComputeHint, Notice, as_label, notice_times};

const EVENTS_PATH: &str = "/metadata/scheduledevents?api-version=2020-07-01";
const MACHINE_PATH: &str = "/metadata/instance/compute?api-version=2021-02-01";
const HEADER: (&str, &str) = ("metadata", "true");
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// The first request for events enables them for the machine, which may take two minutes.
const FIRST_LIMIT: Duration = Duration::from_secs(130);
/// A preemption gives half a minute of notice, and the service asks to be polled every second.
const PACE_MAX: Duration = Duration::from_secs(1);
/// How many reported events are remembered; the document also has those of neighboring machines.
const TOLD_MAX: usize = 256;
/// Characters of an event's type that are logged.
const TYPE_CHARS_MAX: usize = 32;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    #[serde(default)]
    events: Vec<Event>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event {
    event_id: String,
    event_type: String,
    #[serde(default)]
    event_status: String,
    /// The machines that it affects, by name.
    #[serde(default)]
    resources: Vec<String>,
    /// Not before this time; empty once it has begun.
    #[serde(default)]
    not_before: String,
}

/// The parts of the machine's description that are used here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Machine {
    name: String,
    vm_id: String,
    vm_size: String,
    location: String,
    zone: String,
    priority: String,
}

pub(super) struct Azure {
    metadata: Metadata,
    poll: Duration,
    machine: Option<Machine>,
    /// Whether a request for events was ever answered.
    answered: bool,
    /// Identity and time of each event that was reported and is still in the document.
    reported: Vec<(String, String)>,
    failures: MetadataFailures,
}

impl Azure {
    pub(super) fn new(endpoint: &str, poll: Duration) -> anyhow::Result<Self> {
        Ok(Self {
            metadata: Metadata::new(endpoint)?,
            poll: poll.min(PACE_MAX),
            machine: None,
            answered: false,
            reported: Vec::new(),
            failures: MetadataFailures::new(notice_times::AZURE.lead / 8),
        })
    }

    /// Whether this service answers.
    pub(super) async fn is_here(&mut self) -> bool {
        self.machine().await.is_ok()
    }

    async fn get(&self, path: &str, limit: Duration) -> Result<MetadataResponse, MetadataError> {
        let answer = self.metadata.send(Method::GET, path, &[HEADER], limit).await?;
        match answer.status {
            StatusCode::OK => Ok(answer),
            _ => Err(answer.unexpected()),
        }
    }

    async fn machine(&mut self) -> Result<Machine, MetadataError> {
        if let Some(machine) = &self.machine {
            return Ok(machine.clone());
        }
        let answer = self.get(MACHINE_PATH, ANSWER_LIMIT).await?;
        let machine = machine(&answer)?;
        self.machine = Some(machine.clone());
        Ok(machine)
    }

    async fn poll(&mut self) -> Result<Option<Notice>, MetadataError> {
        let name = self.machine().await?.name;
        let limit = if self.answered { ANSWER_LIMIT } else { FIRST_LIMIT };
        let answer = self.get(EVENTS_PATH, limit).await?;
        let mut mine = events(&answer)?;
        self.answered = true;
        mine.retain(|event| event.resources.iter().any(|r| r.eq_ignore_ascii_case(&name)));
        mine.truncate(TOLD_MAX);
        let key = |event: &Event| (event.event_id.clone(), event.not_before.clone());
        self.reported.retain(|reported| mine.iter().any(|event| key(event) == *reported));
        let now = answer.now();
        let new = mine.iter().filter(|event| !self.reported.contains(&key(event)));
        let notices = new.map(|event| (key(event), notice(event, now)));
        // The most urgent first; the others follow with the next polls.
        let hardest = notices.min_by_key(|(_, notice)| match notice {
            Notice::Goes { within, .. } => *within,
            Notice::MayGo { .. } => Duration::MAX,
        });
        Ok(hardest.map(|(key, notice)| {
            self.reported.push(key);
            notice
        }))
    }

    async fn notice(&mut self) -> Notice {
        loop {
            let wait = match self.poll().await {
                Ok(found) => {
                    self.failures.record_success();
                    if let Some(notice) = found {
                        return notice;
                    }
                    self.poll
                }
                Err(error) => self.failures.record_failure(&error),
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn all_labels(&mut self) -> BTreeMap<String, String> {
        let machine = match self.machine().await {
            Ok(machine) => machine,
            Err(error) => {
                tracing::warn!(%error, "cannot read the description of this instance");
                return BTreeMap::new();
            }
        };
        // As Kubernetes writes it: zones are numbered within a location, and some locations have none.
        let zone = match machine.zone.as_str() {
            "" => machine.location.clone(),
            zone => format!("{}-{zone}", machine.location),
        };
        let lifecycle = match machine.priority.as_str() {
            "Spot" | "Low" => "spot",
            _ => "on-demand",
        };
        let all = [
            ("zone", &*zone),
            ("instance_type", &*machine.vm_size),
            ("instance_id", &*machine.vm_id),
            ("lifecycle", lifecycle),
        ];
        let fit = all.into_iter().filter_map(|(name, value)| Some((name.into(), as_label(value)?)));
        fit.collect()
    }
}

impl ComputeHint for Azure {
    fn next(&mut self) -> BoxFuture<'_, Notice> {
        self.notice().boxed()
    }

    fn labels(&mut self) -> BoxFuture<'_, BTreeMap<String, String>> {
        self.all_labels().boxed()
    }
}

/// Reads the machine's description.
fn machine(answer: &MetadataResponse) -> Result<Machine, MetadataError> {
    let machine: Machine = serde_json::from_str(&answer.body)
        .map_err(|_| answer.garbled("no description of a machine"))?;
    // Without the machine's name, its events cannot be recognized.
    match machine.name.is_empty() || machine.vm_id.is_empty() {
        true => Err(answer.garbled("not from Azure's metadata service")),
        false => Ok(machine),
    }
}

/// Reads the events of all machines of a document.
fn events(answer: &MetadataResponse) -> Result<Vec<Event>, MetadataError> {
    let document = serde_json::from_str::<Document>(&answer.body);
    document.map(|document| document.events).map_err(|_| answer.garbled("no document of events"))
}

/// Reads an answer as each kind of answer.
#[cfg(feature = "fuzzing")]
pub(super) fn read(answer: &MetadataResponse) {
    drop(machine(answer));
    for event in events(answer).unwrap_or_default() {
        drop(notice(&event, answer.now()));
    }
}

/// Reads an event. Its time is compared with the service's own clock.
fn notice(event: &Event, now: OffsetDateTime) -> Notice {
    let kind: String = event.event_type.chars().take(TYPE_CHARS_MAX).collect();
    let times = match event.event_type.as_str() {
        "Preempt" => notice_times::AZURE,
        "Reboot" | "Redeploy" | "Terminate" => notice_times::AZURE_MAINTENANCE,
        // `Freeze` pauses the machine for seconds; other types are unknown.
        _ => return Notice::MayGo { what: format!("scheduled event ({kind})") },
    };
    let begun = event.event_status == "Started";
    let within = match OffsetDateTime::parse(&event.not_before, &Rfc2822) {
        Ok(end) if !begun => times.within(end, now),
        Err(_) if !begun => times.budget,
        _ => times.within(now, now),
    };
    Notice::Goes { within, what: format!("scheduled event ({kind})") }
}

#[cfg(test)]
mod tests;
