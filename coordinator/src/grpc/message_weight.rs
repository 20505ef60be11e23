//! Estimates the memory that a decoded message takes, from its bytes while they arrive.
//!
//! *Invariant:* the estimate is never less than what decoding allocates. An element of a list (a message, a string, a
//! number) counts with [`PLACES`] times its size, because a list reserves more than it has, and a string also with its
//! bytes and what the allocator rounds them up to. Each message and byte string counts with at least
//! [`ELEMENT_BYTES`]. It counts bytes as they arrive, not the lengths that a message claims. An empty element takes two
//! bytes on the wire and hundreds of times that in memory, so a message has at most [`ELEMENTS_MAX`] of them. Elements
//! behind the place where the decoder stops do not count. The decoder does not stop at once if a field is longer than
//! the message that contains it: it decodes the field, and stops at the field's end.
//!
//! Absent: how much memory callers may take (`body_budget`), and refusing bytes that are not a message
//! (the services do).

use crate::grpc::decoded_size::{Sizes, number_bytes};
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use rollout_proto::{RpcError, v1};
use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

/// The places of a list for each of its elements: a list reserves four for its first element, and while a longer one
/// doubles, its old and its new buffer together have three for each.
const PLACES: usize = 4;
/// The least weight of a message or byte string. It covers the table of a map with one entry.
const ELEMENT_BYTES: usize = 256;
/// The weight of a string besides its bytes.
const STRING_BYTES: usize = PLACES * size_of::<String>();
/// The most that counts for rounding up by the allocator. For a longer string, the bytes of the request count as much,
/// and they are freed once it is decoded.
const SLACK_BYTES_MAX: u64 = 4096;
/// The most elements of one message: 64 slots that hold 4,096 single rows each.
const ELEMENTS_MAX: usize = 524_288;
/// The deepest nesting of messages; the decoder refuses more than 100.
const DEPTH_MAX: usize = 100;
/// Bits of a varint's last byte.
const LAST_SHIFT: u32 = 63;

/// The content of one field, as the contract declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A message of that number, which is a part of the message that contains it.
    Message(usize),
    /// A list of messages of that number.
    Messages(usize),
    /// A list of numbers that have so many bytes in memory.
    Numbers(usize),
    /// A string, which decoding copies.
    Text,
    /// Bytes, which decoding does not copy, or a field that is unknown.
    Opaque,
}

/// One method of the contract.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method {
    /// The index of its request's type.
    request: usize,
    /// Whether the caller sends a stream of requests.
    pub(crate) streams: bool,
    /// Whether its service counts the elements of requests that it has not answered.
    pub(crate) counts: bool,
}

/// Methods that hold requests for long and whose services count their elements (`grpc::store_waits`). Otherwise
/// waiting requests would take the room of arriving ones.
const COUNTING: [&str; 1] = ["/rollout.v1.Store/Wait"];

/// The part of the contract that the estimate needs.
#[derive(Default)]
struct Contract {
    /// The fields of each type of message, by their numbers. Other fields are opaque.
    types: Vec<BTreeMap<u64, Kind>>,
    /// The weight of a message of each type in a list, without its content.
    listed: Vec<usize>,
    methods: HashMap<String, Method>,
}

static CONTRACT: LazyLock<Contract> = LazyLock::new(Contract::read);

/// The method of that path; `None` if the contract has none.
pub(crate) fn method(path: &str) -> Option<Method> {
    CONTRACT.methods.get(path).copied()
}

impl Contract {
    fn read() -> Self {
        // invariant: the build wrote the descriptors, and a test looks up every method.
        let set = FileDescriptorSet::decode(v1::DESCRIPTORS).unwrap_or_default();
        let mut messages: Vec<(String, &DescriptorProto)> = Vec::new();
        for file in &set.file {
            for message in &file.message_type {
                add_messages(&mut messages, &format!(".{}", file.package()), message);
            }
        }
        let numbers: HashMap<&str, usize> =
            messages.iter().enumerate().map(|(n, (name, _))| (name.as_str(), n)).collect();
        let mut contract = Self::default();
        let sizes = Sizes { messages: &messages, numbers: &numbers };
        for (_, message) in &messages {
            let kinds = message.field.iter().map(|f| (f.number() as u64, kind(&numbers, f)));
            contract.types.push(kinds.collect());
            contract.listed.push(ELEMENT_BYTES.max(PLACES * sizes.of(message)));
        }
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    let Some(&request) = numbers.get(method.input_type()) else { continue };
                    let streams = method.client_streaming();
                    let counts = COUNTING.contains(&path.as_str());
                    contract.methods.insert(path, Method { request, streams, counts });
                }
            }
        }
        contract
    }
}

/// Adds a message and those that are declared within it, with their full names.
fn add_messages<'a>(
    messages: &mut Vec<(String, &'a DescriptorProto)>,
    within: &str,
    message: &'a DescriptorProto,
) {
    let name = format!("{within}.{}", message.name());
    for nested in &message.nested_type {
        add_messages(messages, &name, nested);
    }
    messages.push((name, message));
}

fn kind(numbers: &HashMap<&str, usize>, field: &FieldDescriptorProto) -> Kind {
    let repeated = field.label() == Label::Repeated;
    match field.r#type() {
        Type::Message => match numbers.get(field.type_name()) {
            Some(&number) if repeated => Kind::Messages(number),
            Some(&number) => Kind::Message(number),
            None => Kind::Opaque,
        },
        Type::String => Kind::Text,
        Type::Bytes | Type::Group => Kind::Opaque,
        number if repeated => Kind::Numbers(number_bytes(number)),
        _ => Kind::Opaque,
    }
}

/// A message that has not fully arrived.
struct Level {
    /// The index of its type.
    of: usize,
    /// Where it ends, in bytes from the start of the request.
    end: u64,
}

/// The meaning of the next bytes.
#[derive(Clone, Copy)]
enum State {
    Key,
    /// A number whose value does not matter.
    Varint,
    /// The length of a field.
    Length(Kind),
    /// Bytes that are not parsed.
    Skip {
        left: u64,
        counts: Counts,
    },
}

/// What bytes that are not parsed weigh.
#[derive(Clone, Copy)]
enum Counts {
    /// Once, as they arrive.
    Once,
    /// Again once they are decoded.
    Twice,
    /// Once, and each number that ends among them this much more.
    Numbers(usize),
}

impl Counts {
    /// What these bytes weigh besides their length.
    fn more(self, bytes: &[u8]) -> usize {
        match self {
            Self::Once => 0,
            Self::Twice => bytes.len(),
            Self::Numbers(weight) => weight * bytes.iter().filter(|byte| **byte < 0x80).count(),
        }
    }
}

/// The weight of one message while it arrives.
pub(crate) struct Weighing {
    levels: Vec<Level>,
    /// Bytes that were read.
    at: u64,
    /// Bytes of the request.
    bytes: u64,
    /// Open groups. The contract has none, so the decoder skips their content.
    groups: usize,
    state: State,
    varint: u64,
    shift: u32,
    elements: usize,
    /// The decoder stops here.
    malformed: bool,
}

impl Weighing {
    /// A request of that method, with a length of `bytes`.
    pub(crate) fn new(method: Method, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self {
            levels: vec![Level { of: method.request, end: bytes }],
            at: 0,
            bytes,
            groups: 0,
            state: State::Key,
            varint: 0,
            shift: 0,
            elements: 0,
            malformed: false,
        }
    }

    /// Reads the next bytes of the message. Returns what they add to its weight.
    ///
    /// # Errors
    /// The message has too many elements.
    pub(crate) fn add(&mut self, mut bytes: &[u8]) -> Result<usize, RpcError> {
        let mut weight = bytes.len();
        while !self.malformed {
            if let State::Skip { left, counts } = &mut self.state {
                let whole = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                let (taken, rest) = bytes.split_at(whole);
                weight += counts.more(taken);
                bytes = rest;
                *left -= taken.len() as u64;
                self.at += taken.len() as u64;
                if *left > 0 {
                    break;
                }
                self.state = State::Key;
            }
            self.leave();
            if self.malformed {
                break;
            }
            let Some((&byte, rest)) = bytes.split_first() else { break };
            bytes = rest;
            match self.step(byte) {
                Some(more) => weight += more,
                None => self.malformed = true,
            }
            if self.elements > ELEMENTS_MAX {
                return Err(crate::grpc::convert::invalid(format!(
                    "the request has more than {ELEMENTS_MAX} elements (messages, strings, byte strings): split it"
                )));
            }
        }
        Ok(weight)
    }

    /// Leaves the messages that end here. The decoder checks for their ends only between fields.
    fn leave(&mut self) {
        if !matches!(self.state, State::Key) || self.shift > 0 || self.groups > 0 {
            return;
        }
        while let Some(level) = self.levels.last().filter(|level| level.end <= self.at) {
            if level.end < self.at {
                self.malformed = true;
                return;
            }
            self.levels.pop();
        }
    }

    /// Reads one byte of a number, and acts on the number when that byte ends it. Returns the weight that this adds;
    /// `None` if the bytes are not a message.
    fn step(&mut self, byte: u8) -> Option<usize> {
        self.levels.last()?;
        self.at += 1;
        if self.shift > LAST_SHIFT {
            return None;
        }
        self.varint |= u64::from(byte & 0x7f) << self.shift;
        if byte & 0x80 != 0 {
            self.shift += 7;
            return Some(0);
        }
        self.shift = 0;
        let value = std::mem::take(&mut self.varint);
        match self.state {
            State::Key => self.key(value),
            State::Length(kind) => self.enter(kind, value),
            State::Varint | State::Skip { .. } => {
                self.state = State::Key;
                Some(0)
            }
        }
    }

    fn key(&mut self, key: u64) -> Option<usize> {
        let of = self.levels.last()?.of;
        let declared = CONTRACT.types.get(of).and_then(|kinds| kinds.get(&(key >> 3)));
        let kind = declared.copied().filter(|_| self.groups == 0).unwrap_or(Kind::Opaque);
        match key & 7 {
            0 => self.state = State::Varint,
            1 => self.skip(8, Counts::Once)?,
            2 => {
                self.state = State::Length(kind);
                return Some(0);
            }
            3 => self.groups += 1,
            4 => self.groups = self.groups.checked_sub(1)?,
            5 => self.skip(4, Counts::Once)?,
            _ => return None,
        }
        Some(match kind {
            // Numbers of a list may also come one by one.
            Kind::Numbers(bytes) => PLACES * bytes,
            // A single number has its place in the message.
            _ => 0,
        })
    }

    /// Begins an element of this length.
    fn enter(&mut self, kind: Kind, bytes: u64) -> Option<usize> {
        self.elements += 1;
        match kind {
            Kind::Message(of) => self.descend(of, bytes)?,
            Kind::Messages(of) => {
                self.descend(of, bytes)?;
                return CONTRACT.listed.get(of).copied();
            }
            Kind::Numbers(size) => self.skip(bytes, Counts::Numbers(PLACES * size))?,
            Kind::Text => {
                self.skip(bytes, Counts::Twice)?;
                return Some(STRING_BYTES + slack(bytes));
            }
            Kind::Opaque => self.skip(bytes, Counts::Once)?,
        }
        Some(ELEMENT_BYTES)
    }

    /// Begins a message of that type and length.
    fn descend(&mut self, of: usize, bytes: u64) -> Option<()> {
        if self.levels.len() > DEPTH_MAX {
            return None;
        }
        let end = self.end_of(bytes)?;
        self.levels.push(Level { of, end });
        self.state = State::Key;
        Some(())
    }

    /// Skips this many bytes.
    fn skip(&mut self, bytes: u64, counts: Counts) -> Option<()> {
        self.end_of(bytes)?;
        self.state = State::Skip { left: bytes, counts };
        Some(())
    }

    /// Where a field of this length ends that starts here; `None` if it is longer than the request.
    fn end_of(&self, bytes: u64) -> Option<u64> {
        self.at.checked_add(bytes).filter(|end| *end <= self.bytes)
    }
}

/// The bytes by which the allocator rounds up a string of this length. It gives 8, then multiples of 16, and from 128
/// on four sizes for each doubling.
fn slack(bytes: u64) -> usize {
    let slack = match bytes {
        0 => 0,
        1..=8 => 8 - bytes,
        9..=128 => bytes.next_multiple_of(16) - bytes,
        _ => (bytes / 4).min(SLACK_BYTES_MAX),
    };
    slack as usize
}

#[cfg(test)]
mod tests;
