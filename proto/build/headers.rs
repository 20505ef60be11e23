//! Owns: which messages of the contract have the header that describes a cluster.

use std::fmt::Write as _;

use protox::prost_reflect::{DescriptorPool, Kind, MessageDescriptor};

use crate::methods::PACKAGE;

/// A call of the macro `with_header` of `src/client/answer.rs` for each message with a header.
pub(crate) fn calls(pool: &DescriptorPool) -> String {
    let messages = pool.all_messages().filter(|message| message.package_name() == PACKAGE);
    messages.filter(has_header).fold(String::new(), |mut text, message| {
        let _ = writeln!(text, "with_header!({});", message.name());
        text
    })
}

fn has_header(message: &MessageDescriptor) -> bool {
    let header = message.get_field_by_name("header").map(|field| field.kind());
    matches!(header, Some(Kind::Message(kind)) if kind.name() == "ClusterHeader")
}
