//! Compares the estimate with what decoding allocates, and shows which elements count.

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
    assert_eq!(CONTRACT.methods.len(), services.map(|service| service.method.len()).sum::<usize>());
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
    // The operation, its content, the pair, its key and its value.
    let elements = weight - bytes.len();
    assert!((5 * ELEMENT_BYTES..6 * ELEMENT_BYTES).contains(&elements), "{elements}");
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
        assert!(estimate <= 4 * real, "{count} strings of {len}: {estimate} for {real}");
    }
}

/// The bytes of a list's buffers while it doubles for the last time.
fn buffers(capacity: usize, element: usize) -> usize {
    let before = if capacity > 4 { capacity / 2 } else { 0 };
    (capacity + before) * element
}

/// The bytes that decoding has allocated for failures.
fn allocated(failures: &[v1::FailedAttempt]) -> usize {
    let of_rows = |rows: &v1::Rows| {
        let starts = buffers(rows.starts.capacity(), size_of::<u64>());
        starts + buffers(rows.lens.capacity(), size_of::<u32>())
    };
    let of_evidence = |evidence: &v1::Evidence| {
        let text = evidence.text.as_ref().map_or(0, |text| text.key.capacity());
        evidence.exception.capacity() + text
    };
    let contents = failures.iter().map(|failure| {
        let rows = failure.rows.as_ref().map_or(0, of_rows);
        let evidence = failure.evidence.as_ref().map_or(0, of_evidence);
        rows + evidence + failure.code.capacity() + failure.message.capacity()
    });
    contents.sum()
}

#[test]
fn large_messages_in_a_list_weigh_no_less_than_decoding_allocates_for_them() {
    let text = |len| "t".repeat(len);
    let full = |len| v1::FailedAttempt {
        rows: Some(v1::Rows { starts: vec![3; len], lens: vec![1; len] }),
        code: text(len),
        message: text(len),
        evidence: Some(v1::Evidence {
            exception: text(len),
            text: Some(v1::BlobRef { key: text(len), ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let failures = [v1::FailedAttempt::default(), full(0), full(1), full(5), full(33)];
    for count in [1, 2, 4, 5, 1000, 1024, 1025] {
        for failure in &failures {
            let failures = vec![failure.clone(); count];
            let exchange = v1::Exchange { failures, ..Default::default() };
            let kind = Some(v1::worker_message::Kind::Exchange(exchange));
            let bytes = v1::WorkerMessage { kind, ..Default::default() }.encode_to_vec();
            let weight = weigh("/rollout.v1.Worker/Work", &bytes).expect("it may have as many");
            let decoded = v1::WorkerMessage::decode(&bytes[..]).expect("it is a message");
            let Some(v1::worker_message::Kind::Exchange(exchange)) = decoded.kind else {
                panic!("it is an exchange");
            };
            let places = exchange.failures.capacity();
            let list = buffers(places, size_of::<v1::FailedAttempt>());
            let real = list + allocated(&exchange.failures);
            // The request's bytes count in addition to the decoded ones.
            let estimate = weight - bytes.len();
            assert!(estimate >= real, "{count} of {failure:?}: {estimate} for {real}");
        }
    }
}

#[test]
fn numbers_of_one_byte_weigh_no_less_than_decoding_allocates_for_them() {
    for count in [1, 4, 5, 1000, 1024, 1025] {
        let rows = v1::Rows { starts: vec![1; count], lens: vec![1; count] };
        let nacks = vec![v1::HeldRows { rows: Some(rows), ..Default::default() }];
        let packed = v1::DeregisterRequest { nacks, ..Default::default() }.encode_to_vec();
        // The same numbers one by one, which takes more bytes: a start in field 1, a length in field 2.
        let rows = [0x08_u8, 1, 0x10, 1].repeat(count);
        let held = [&[0x1a][..], &varint(rows.len()), &rows].concat();
        let single = [&[0x12][..], &varint(held.len()), &held].concat();
        for bytes in [packed, single] {
            let weight = weigh("/rollout.v1.Worker/Deregister", &bytes).expect("few elements");
            let decoded = v1::DeregisterRequest::decode(&bytes[..]).expect("it is a message");
            let rows = decoded.nacks[0].rows.as_ref().expect("it has rows");
            assert_eq!((rows.starts.len(), rows.lens.len()), (count, count));
            let list = buffers(decoded.nacks.capacity(), size_of::<v1::HeldRows>());
            let starts = buffers(rows.starts.capacity(), size_of::<u64>());
            let lens = buffers(rows.lens.capacity(), size_of::<u32>());
            let (real, estimate) = (list + starts + lens, weight - bytes.len());
            assert!(estimate >= real, "{count} numbers: {estimate} for {real}");
        }
    }
}

#[test]
fn a_message_in_a_list_weighs_its_size_for_each_place() {
    // An empty element of that field.
    let listed = |path: &str, field: u8| {
        let bytes = [(field << 3) | 2, 0];
        weigh(path, &bytes).expect("one element") - bytes.len()
    };
    // The same within the exchange of a worker, which is an element too.
    let in_exchange = |field: u8| {
        let bytes = [0x22, 0x02, (field << 3) | 2, 0];
        let weight = weigh("/rollout.v1.Worker/Work", &bytes).expect("two elements");
        weight - bytes.len() - ELEMENT_BYTES
    };
    let cases = [
        (listed("/rollout.v1.Runs/AddSegments", 3), size_of::<v1::SegmentDecl>()),
        (listed("/rollout.v1.Runs/AddSegments", 4), size_of::<v1::CarriedPart>()),
        (listed("/rollout.v1.Worker/Register", 7), size_of::<v1::SlotOffer>()),
        (listed("/rollout.v1.Worker/Register", 8), size_of::<v1::HeldRows>()),
        (listed("/rollout.v1.Store/Apply", 3), size_of::<v1::StoreOp>()),
        (listed("/rollout.v1.Store/Wait", 2), size_of::<v1::StoreAwaited>()),
        (listed("/rollout.v1.Rendezvous/KeepAlive", 1), size_of::<v1::ParticipantRef>()),
        (listed("/rollout.v1.Checkpoints/ReportCheckpoint", 7), size_of::<v1::ShardProgress>()),
        (in_exchange(3), size_of::<v1::PartResult>()),
        (in_exchange(4), size_of::<v1::FailedAttempt>()),
        (in_exchange(5), size_of::<v1::HeldRows>()),
        (in_exchange(9), size_of::<v1::EngineDeath>()),
    ];
    for (number, (weight, size)) in cases.into_iter().enumerate() {
        assert!(weight >= PLACES * size, "case {number}: {weight} for {size}");
        let most = ELEMENT_BYTES.max(PLACES * (size + 16));
        assert!(weight <= most, "case {number}: {weight} for {size}");
    }
}

#[test]
fn no_list_of_the_contract_has_numbers_of_a_fixed_width() {
    use Type::{Double, Fixed32, Fixed64, Float, Sfixed32, Sfixed64};
    // `Counts::Numbers` finds the ends of varints.
    let set = FileDescriptorSet::decode(v1::DESCRIPTORS).expect("descriptors");
    let mut messages = Vec::new();
    for file in &set.file {
        for message in &file.message_type {
            add_messages(&mut messages, "", message);
        }
    }
    let fields = messages.iter().flat_map(|(_, message)| &message.field);
    for field in fields.filter(|field| field.label() == Label::Repeated) {
        let fixed = [Double, Fixed32, Fixed64, Float, Sfixed32, Sfixed64];
        assert!(!fixed.contains(&field.r#type()), "{field:?}");
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
    // Field 2 of DeregisterRequest, with no bytes.
    let bytes = [0x12_u8, 0x00].repeat(ELEMENTS_MAX);
    let weight = weigh("/rollout.v1.Worker/Deregister", &bytes).expect("it may have as many");
    assert_eq!(weight, ELEMENTS_MAX * (2 + ELEMENT_BYTES));
    let bytes = [0x12_u8, 0x00].repeat(ELEMENTS_MAX + 1);
    let why = weigh("/rollout.v1.Worker/Deregister", &bytes).expect_err("one too many");
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
    let few = [0x12_u8, 0x00].repeat(10);
    let weight = |before: &[u8]| {
        let bytes = [before, &few[..]].concat();
        let weight = weigh("/rollout.v1.Worker/Deregister", &bytes).expect("few elements");
        (weight - bytes.len()) / ELEMENT_BYTES
    };
    assert_eq!(weight(&[]), 10);
    // A group with a string in it, which the decoder skips.
    assert_eq!(weight(&[0x7b, 0x1a, 0x01, 0x1a, 0x7c]), 11);
    let broken: [&[u8]; 6] = [
        &[0x0f],                         // of an unknown kind
        &[0x7c],                         // the end of a group without its beginning
        &[0xff; 11],                     // a number without an end
        &[0x12, 0x7f],                   // longer than the message
        &[0x12, 0x03, 0x1a, 0x05, 0x00], // longer than the message that contains it
        &[0x12, 0x02, 0x08, 0x80],       // ends within a number
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
