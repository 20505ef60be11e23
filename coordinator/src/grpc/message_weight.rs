//! Estimates the memory that a decoded message takes, from its bytes while they arrive.
//!
//! *Invariant:* the estimate counts every element that decoding allocates: each nested message and byte string at
//! [`ELEMENT_BYTES`]; a string at its place in a list that doubles, plus what the allocator rounds its bytes up to;
//! packed numbers at eight bytes. It counts bytes as they arrive, not the lengths that a message claims. An empty
//! element takes two bytes on the wire and a hundred times that in memory, so a message has at most [`ELEMENTS_MAX`] of
//! them. Elements behind the place where the decoder stops do not count. The decoder does not stop at once if a field
//! is longer than the message that contains it: it decodes the field, and stops at the field's end.
//!
//! Deliberately absent: how much memory callers may take (`body_budget`), and refusing bytes that are not a message
//! (the services do).

use bytes::Buf;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use rollout_proto::{RpcError, v1};
use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

/// The weight of one element; the largest generated types have about 250 bytes.
const ELEMENT_BYTES: usize = 256;
/// The weight of a string besides its bytes: while a list doubles, it has three places for each.
const STRING_BYTES: usize = 3 * size_of::<String>();
/// The most that counts for rounding up by the allocator. For a longer string, the bytes of the request count as much,
/// and they are freed once it is decoded.
const SLACK_BYTES_MAX: u64 = 4096;
/// The weight of a number.
const NUMBER_BYTES: usize = 8;
/// The most elements of one message: 64 slots that hold 4,096 single rows each.
const ELEMENTS_MAX: usize = 524_288;
/// The deepest nesting of messages; the decoder refuses more than 100.
const DEPTH_MAX: usize = 100;
/// Bits of a varint's last byte.
const LAST_SHIFT: u32 = 63;

/// The content of one field, as the contract declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A message of that number.
    Message(usize),
    /// Repeated numbers.
    Packed,
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
        for (_, message) in &messages {
            let kinds = message.field.iter().map(|f| (f.number() as u64, kind(&numbers, f)));
            contract.types.push(kinds.collect());
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
    match field.r#type() {
        Type::Message => numbers.get(field.type_name()).map_or(Kind::Opaque, |&n| Kind::Message(n)),
        Type::String => Kind::Text,
        Type::Bytes | Type::Group => Kind::Opaque,
        _ if field.label() == Label::Repeated => Kind::Packed,
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
    /// Bytes that are not parsed, each of which counts `factor` times.
    Skip {
        left: u64,
        factor: usize,
    },
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
            if let State::Skip { left, factor } = &mut self.state {
                let taken = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                weight += taken * (*factor - 1);
                bytes.advance(taken);
                *left -= taken as u64;
                self.at += taken as u64;
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
        match key & 7 {
            0 => self.state = State::Varint,
            1 => self.skip(8, 1)?,
            2 => {
                let of = self.levels.last()?.of;
                let known = CONTRACT.types.get(of).and_then(|kinds| kinds.get(&(key >> 3)));
                let kind = known.copied().filter(|_| self.groups == 0);
                self.state = State::Length(kind.unwrap_or(Kind::Opaque));
                return Some(0);
            }
            3 => self.groups += 1,
            4 => self.groups = self.groups.checked_sub(1)?,
            5 => self.skip(4, 1)?,
            _ => return None,
        }
        Some(NUMBER_BYTES)
    }

    /// Begins an element of this length.
    fn enter(&mut self, kind: Kind, bytes: u64) -> Option<usize> {
        self.elements += 1;
        match kind {
            Kind::Message(_) if self.levels.len() > DEPTH_MAX => return None,
            Kind::Message(of) => {
                let end = self.end_of(bytes)?;
                self.levels.push(Level { of, end });
                self.state = State::Key;
            }
            Kind::Packed => self.skip(bytes, NUMBER_BYTES)?,
            Kind::Text => {
                // They count once as they arrive, and once when they are decoded.
                self.skip(bytes, 2)?;
                return Some(STRING_BYTES + slack(bytes));
            }
            Kind::Opaque => self.skip(bytes, 1)?,
        }
        Some(ELEMENT_BYTES)
    }

    /// Skips this many bytes, each of which counts `factor` times.
    fn skip(&mut self, bytes: u64, factor: usize) -> Option<()> {
        self.end_of(bytes)?;
        self.state = State::Skip { left: bytes, factor };
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
mod tests {
    use super::*;

    fn weigh(path: &str, bytes: &[u8]) -> Result<usize, RpcError> {
        let mut weighing = Weighing::new(method(path).expect("a method"), bytes.len());
        // In pieces, some of which end within a number.
        bytes.chunks(3).try_fold(0, |sum, piece| Ok(sum + weighing.add(piece)?))
    }

    fn varint(number: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        prost::encoding::encode_varint(number as u64, &mut bytes);
        bytes
    }

    fn held(rows: u64) -> v1::HeldRows {
        let rows = v1::Rows { starts: (0..rows).collect(), lens: vec![1; rows as usize] };
        v1::HeldRows { run: 1, attempt: 300, rows: Some(rows) }
    }

    #[test]
    fn every_method_of_the_contract_is_known() {
        let set = FileDescriptorSet::decode(v1::DESCRIPTORS).expect("descriptors");
        let services = set.file.iter().flat_map(|file| &file.service);
        assert_eq!(
            CONTRACT.methods.len(),
            services.map(|service| service.method.len()).sum::<usize>()
        );
        assert!(CONTRACT.methods.len() > 20 && method("/rollout.v1.Runs/None").is_none());
        assert!(method("/rollout.v1.Worker/Work").expect("it is there").streams);
        assert!(!method("/rollout.v1.Runs/AddSegments").expect("it is there").streams);
        assert!(COUNTING.iter().all(|path| method(path).is_some_and(|method| method.counts)));
    }

    #[test]
    fn elements_are_counted_however_deep_they_are() {
        let exchange = v1::Exchange { nacks: vec![held(2); 100], ..v1::Exchange::default() };
        let kind = Some(v1::worker_message::Kind::Exchange(exchange));
        let message = v1::WorkerMessage { session: 7, coord_epoch: 1, kind, instance: u64::MAX };
        let bytes = message.encode_to_vec();
        let weight = weigh("/rollout.v1.Worker/Work", &bytes).expect("it is a message");
        // The exchange and, for each nack, itself, its rows, their starts and their lengths.
        let elements = 1 + 100 * 4;
        assert!(weight > bytes.len() + elements * ELEMENT_BYTES, "{weight}");
        assert!(weight < bytes.len() + (elements + 50) * ELEMENT_BYTES, "{weight}");
    }

    #[test]
    fn opaque_bytes_weigh_their_length() {
        // Bytes that would have many elements if they were a message.
        let value = [0x0a_u8, 0x00].repeat(100_000);
        let pair = v1::StorePair { key: "k".into(), value: value.into() };
        let set = v1::store_op::Kind::Set(v1::StoreSet { pairs: vec![pair] });
        let ops = vec![v1::StoreOp { kind: Some(set) }];
        let bytes = v1::StoreApplyRequest { ops, ..Default::default() }.encode_to_vec();
        let weight = weigh("/rollout.v1.Store/Apply", &bytes).expect("it is a message");
        assert_eq!(weight, bytes.len() + 5 * ELEMENT_BYTES);
    }

    #[test]
    fn many_short_strings_weigh_about_what_they_take_when_decoded() {
        for (count, len) in [1000, 1024, 1025]
            .into_iter()
            .flat_map(|count| [0, 1, 4, 8, 9, 17, 100, 129, 1000].map(|len| (count, len)))
        {
            let stores = vec!["s".repeat(len); count];
            let bytes = v1::RegisterRequest { stores, ..Default::default() }.encode_to_vec();
            let weight = weigh("/rollout.v1.Worker/Register", &bytes).expect("it may have as many");
            let decoded = v1::RegisterRequest::decode(&bytes[..]).expect("it is a message");
            let texts: usize = decoded.stores.iter().map(String::capacity).sum();
            let real = decoded.stores.capacity() * size_of::<String>() + texts;
            // The request's bytes count in addition to the decoded ones.
            let estimate = weight - bytes.len();
            assert!(estimate >= real, "{count} strings of {len}: {estimate} for {real}");
            assert!(estimate <= 3 * real, "{count} strings of {len}: {estimate} for {real}");
        }
    }

    #[test]
    fn a_string_counts_as_its_bytes_arrive_and_not_by_the_length_that_it_claims() {
        const CLAIMED: usize = 8 << 20;
        let begun = [&[0x5a][..], &varint(CLAIMED), b"s"].concat();
        let method = method("/rollout.v1.Worker/Register").expect("a method");
        let mut weighing = Weighing::new(method, begun.len() + CLAIMED);
        let weight = weighing.add(&begun).expect("it may have one");
        assert!(weight < 2 * SLACK_BYTES_MAX as usize, "{weight}");
    }

    #[test]
    fn a_message_of_too_many_empty_elements_is_refused() {
        // Field 3 of AddSegmentsRequest, with no bytes.
        let bytes = [0x1a_u8, 0x00].repeat(ELEMENTS_MAX);
        let weight = weigh("/rollout.v1.Runs/AddSegments", &bytes).expect("it may have as many");
        assert_eq!(weight, ELEMENTS_MAX * (2 + ELEMENT_BYTES));
        let bytes = [0x1a_u8, 0x00].repeat(ELEMENTS_MAX + 1);
        let why = weigh("/rollout.v1.Runs/AddSegments", &bytes).expect_err("one too many");
        assert!(why.message.contains("split it"), "{why:?}");
    }

    #[test]
    fn elements_that_are_decoded_in_a_field_longer_than_its_message_are_counted() {
        const MANY: usize = 10_000;
        let pairs = [0x0a_u8, 0x00].repeat(MANY);
        // A request has operations (3), one of which sets (1) pairs (1).
        let set = [&[0x0a][..], &varint(pairs.len()), &pairs].concat();
        // The operation ends after the key of its content, within the content's length, and after that.
        for op in [1_u8, 2, 4] {
            let bytes = [&[0x1a, op][..], &set].concat();
            v1::StoreApplyRequest::decode(&bytes[..]).expect_err("the decoder sees it at the end");
            let weight = weigh("/rollout.v1.Store/Apply", &bytes).expect("few elements");
            assert!(weight > MANY * ELEMENT_BYTES, "{weight}");
            let behind = [&bytes[..], &[0x1a, 0x00].repeat(MANY)].concat();
            let more = weigh("/rollout.v1.Store/Apply", &behind).expect("few elements");
            assert_eq!(more - weight, 2 * MANY, "the decoder does not get there");
        }
        let too_many = [0x0a_u8, 0x00].repeat(ELEMENTS_MAX + 1);
        let bytes = [&[0x1a, 0x01, 0x0a][..], &varint(too_many.len()), &too_many].concat();
        weigh("/rollout.v1.Store/Apply", &bytes).expect_err("all of them would be decoded");
    }

    #[test]
    fn elements_are_counted_behind_groups_and_up_to_where_the_bytes_are_no_message() {
        let few = [0x1a_u8, 0x00].repeat(10);
        let weight = |before: &[u8]| {
            let bytes = [before, &few[..]].concat();
            let weight = weigh("/rollout.v1.Runs/AddSegments", &bytes).expect("few elements");
            (weight - bytes.len()) / ELEMENT_BYTES
        };
        assert_eq!(weight(&[]), 10);
        // A group with a string in it, which the decoder skips.
        assert_eq!(weight(&[0x7b, 0x1a, 0x01, 0x1a, 0x7c]), 11);
        let broken: [&[u8]; 6] = [
            &[0x0f],                         // of an unknown kind
            &[0x7c],                         // the end of a group without its beginning
            &[0xff; 11],                     // a number without an end
            &[0x1a, 0x7f],                   // longer than the message
            &[0x1a, 0x03, 0x1a, 0x05, 0x00], // longer than the message that contains it
            &[0x1a, 0x02, 0x08, 0x80],       // ends within a number
        ];
        for bytes in broken {
            assert!(weight(bytes) <= 2, "{bytes:?}");
        }
    }

    #[test]
    fn noise_never_panics() {
        for seed in 0..200_u64 {
            let noise: Vec<u8> = (0..64_u64)
                .map(|n| (seed * 31 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0])
                .collect();
            weigh("/rollout.v1.Worker/Work", &noise).expect("few elements");
        }
    }
}
