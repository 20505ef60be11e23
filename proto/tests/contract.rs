//! `rollout.v1` never changes incompatibly: what was part of it stays as it was.
//!
//! Invariant: a line of `testdata/rollout.v1.txt` is a message's field, an enum's value or a service's method, as
//! released clients have compiled it in. A line that is gone or changed would break them, and is refused whatever the
//! environment says. Record additions with `ROLLOUT_REWRITE=1 cargo test -p rollout-proto --test contract`. To break
//! the contract on purpose, remove the line by hand.
//! Absent: names of messages on their own; encoded bytes do not contain them.

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

/// Maps the name of an item to its definition: `field M 3` to `name: optional uint64`.
type Contract = BTreeMap<String, String>;

fn now() -> Contract {
    let set = FileDescriptorSet::decode(rollout_proto::v1::DESCRIPTORS).expect("descriptors");
    let mut contract = Contract::new();
    for file in set.file.iter().filter(|file| file.package() == "rollout.v1") {
        file.message_type.iter().for_each(|message| add_message(&mut contract, "", message));
        file.enum_type.iter().for_each(|each| add_enum(&mut contract, "", each));
        file.service.iter().for_each(|service| add_service(&mut contract, service));
    }
    contract
}

fn add_message(contract: &mut Contract, path: &str, message: &DescriptorProto) {
    let path = format!("{path}{}", message.name());
    contract.insert(format!("message {path}"), String::new());
    for field in &message.field {
        let text = field_text(message, field);
        contract.insert(format!("field   {path} {:>4}", field.number()), text);
    }
    let inner = format!("{path}.");
    message.nested_type.iter().for_each(|nested| add_message(contract, &inner, nested));
    message.enum_type.iter().for_each(|each| add_enum(contract, &inner, each));
}

fn field_text(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let kind = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().trim_start_matches('.').to_owned(),
        other => other.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    let label = match field.label() {
        Label::Repeated => "repeated ",
        _ if field.proto3_optional() => "optional ",
        _ => "",
    };
    let one_of = field.oneof_index.filter(|_| !field.proto3_optional());
    let one_of = one_of.and_then(|index| message.oneof_decl.get(index as usize));
    let one_of = one_of.map_or(String::new(), |one| format!(" of {}", one.name()));
    format!("{}: {label}{kind}{one_of}", field.name())
}

fn add_enum(contract: &mut Contract, path: &str, each: &EnumDescriptorProto) {
    let path = format!("{path}{}", each.name());
    for value in &each.value {
        contract.insert(format!("value   {path} {:>4}", value.number()), value.name().to_owned());
    }
}

fn add_service(contract: &mut Contract, service: &ServiceDescriptorProto) {
    for method in &service.method {
        let stream = |streams: bool| if streams { "stream " } else { "" };
        let text = format!(
            "{}{} -> {}{}",
            stream(method.client_streaming()),
            method.input_type().trim_start_matches('.'),
            stream(method.server_streaming()),
            method.output_type().trim_start_matches('.')
        );
        contract.insert(format!("method  {}.{}", service.name(), method.name()), text);
    }
}

fn text(contract: &Contract) -> String {
    contract.iter().map(|(key, is)| format!("{key}  {is}").trim_end().to_owned() + "\n").collect()
}

fn read(text: &str) -> Contract {
    let line = |line: &str| {
        // A key has at most three words. Two spaces separate it from the definition; a key of a message contains more
        // spaces.
        let (key, is) = match line.starts_with("message ") {
            true => (line, ""),
            false => line.rsplit_once("  ").unwrap_or((line, "")),
        };
        (key.to_owned(), is.to_owned())
    };
    text.lines().map(line).collect()
}

/// The items of `kept` that `now` lacks or has changed: each breaks a promise.
fn broken(kept: &Contract, now: &Contract) -> Vec<String> {
    let mut broken = Vec::new();
    for (key, was) in kept {
        match now.get(key) {
            None => broken.push(format!("{key} is gone; it was: {was}")),
            Some(is) if is != was => broken.push(format!("{key} was: {was}; it is: {is}")),
            Some(_) => {}
        }
    }
    broken
}

#[test]
fn nothing_of_rollout_v1_was_taken_back() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/rollout.v1.txt");
    let now = now();
    assert!(now.len() > 500, "the descriptors were read: {}", now.len());
    let kept = read(&std::fs::read_to_string(&path).unwrap_or_default());
    let broken = broken(&kept, &now);
    assert!(broken.is_empty(), "incompatible with {}:\n{}", path.display(), broken.join("\n"));
    if rollout_recorded::rewrites() {
        std::fs::write(&path, text(&now)).expect("written");
        return;
    }
    let new: Vec<&String> = now.keys().filter(|key| !kept.contains_key(*key)).collect();
    assert!(new.is_empty(), "new, to be recorded with ROLLOUT_REWRITE=1: {new:#?}");
}

#[test]
fn a_change_of_number_type_or_name_and_a_removal_are_refused_and_an_addition_is_not() {
    let contract = now();
    assert_eq!(read(&text(&contract)), contract, "what is written is what is read");
    let (key, is) = contract.iter().find(|(key, _)| key.starts_with("field")).expect("a field");
    let changed = |change: &dyn Fn(&mut Contract)| {
        let mut other = contract.clone();
        change(&mut other);
        broken(&contract, &other).len()
    };
    assert_eq!(changed(&|c| drop(c.remove(key))), 1, "removed");
    assert_eq!(changed(&|c| drop(c.insert(key.clone(), format!("{is}x")))), 1, "retyped");
    let renumbered = |c: &mut Contract| {
        c.remove(key);
        c.insert(format!("{key}9"), is.clone());
    };
    assert_eq!(changed(&renumbered), 1, "renumbered");
    assert_eq!(changed(&|c| drop(c.insert("field   New    1".into(), "a: bool".into()))), 0);
    for kind in ["method", "value", "message"] {
        let key = contract.keys().find(|key| key.starts_with(kind)).expect(kind);
        assert_eq!(changed(&|c| drop(c.remove(key))), 1, "{kind}");
    }
}
