//! Owns: the sizes in memory of the types that the build generates from the contract.
//!
//! Invariant: no type has more bytes than this says. A test of `message_weight` compares the types of lists.
//! Absent: what a value has outside itself: buffers of lists and texts (`message_weight`).

use bytes::Bytes;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};
use std::collections::HashMap;

/// The deepest nesting of types. A type that contained itself would be behind a pointer.
const NESTING_MAX: usize = 16;

/// The types of the contract: each with its full name, and the number of each by that name.
pub(super) struct Sizes<'a> {
    pub(super) messages: &'a [(String, &'a DescriptorProto)],
    pub(super) numbers: &'a HashMap<&'a str, usize>,
}

/// At most how many bytes a value has.
#[derive(Clone, Copy, Default)]
struct Layout {
    bytes: usize,
    /// Whether it has so many unused bit patterns that an `Option` of it has no more bytes.
    niche: bool,
}

/// The bytes of a number.
pub(super) fn number_bytes(number: Type) -> usize {
    use Type::{Double, Fixed64, Int64, Sfixed64, Sint64, Uint64};
    match number {
        Double | Fixed64 | Int64 | Sfixed64 | Sint64 | Uint64 => 8,
        _ => 4,
    }
}

impl Sizes<'_> {
    /// The bytes of a message.
    pub(super) fn of(&self, message: &DescriptorProto) -> usize {
        self.layout(message, 0).bytes
    }

    fn layout(&self, message: &DescriptorProto, depth: usize) -> Layout {
        let mut whole = Layout::default();
        // Of the fields of a choice, only the largest counts.
        let mut choices = vec![0; message.oneof_decl.len()];
        for field in &message.field {
            let layout = self.field(field, depth);
            let choice = field.oneof_index.and_then(|n| choices.get_mut(usize::try_from(n).ok()?));
            match choice.filter(|_| !field.proto3_optional()) {
                Some(most) => *most = layout.bytes.max(*most),
                None => {
                    whole.bytes += layout.bytes;
                    whole.niche |= layout.niche;
                }
            }
        }
        // A choice also has a tag, which its `Option` uses too.
        let choices = choices.into_iter().filter(|most| *most > 0);
        whole.bytes += choices.map(|most| most.next_multiple_of(8) + 8).sum::<usize>();
        whole.bytes = whole.bytes.next_multiple_of(8);
        whole
    }

    fn field(&self, field: &FieldDescriptorProto, depth: usize) -> Layout {
        if field.label() == Label::Repeated {
            // A map has only one unused bit pattern.
            return match self.message(field).is_some_and(is_map_entry) {
                true => Layout { bytes: size_of::<HashMap<String, String>>(), niche: false },
                false => Layout { bytes: size_of::<Vec<String>>(), niche: true },
            };
        }
        match field.r#type() {
            Type::String => Layout { bytes: size_of::<String>(), niche: true },
            // They have only one unused bit pattern.
            Type::Bytes => Layout { bytes: size_of::<Bytes>(), niche: false },
            Type::Message => {
                let message = self.message(field).filter(|_| depth < NESTING_MAX);
                let inner = message.map(|message| self.layout(message, depth + 1));
                let Layout { bytes, niche } = inner.unwrap_or_default();
                Layout { bytes: if niche { bytes } else { bytes + 8 }, niche }
            }
            number => {
                let places = if field.proto3_optional() { 2 } else { 1 };
                Layout { bytes: places * number_bytes(number), niche: false }
            }
        }
    }

    /// The message that a field contains.
    fn message(&self, field: &FieldDescriptorProto) -> Option<&DescriptorProto> {
        let number = self.numbers.get(field.type_name())?;
        self.messages.get(*number).map(|(_, message)| *message)
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|options| options.map_entry())
}
