use super::positional::{SAMPLING_PARAMS_SCHEMA_VERSION, SamplingParamsV1, sample_id};
use super::*;

fn hex(id: [u8; 32]) -> String {
    blake3::Hash::from_bytes(id).to_hex().to_string()
}

fn model() -> ModelId {
    ModelId::new("Qwen/Qwen2.5-0.5B-Instruct", "main", "generate", "{}")
}

#[test]
fn golden_item_ids_never_change() {
    assert_eq!(
        model().to_hex(),
        "ce09ff0ad59c62229ef586462f2291e05293428f3b59df13163d1a1b7712cd4d"
    );
    let mut ids = ItemIds::new(model(), "{\"max_tokens\":64,\"temperature\":0.7}");
    let found: Vec<String> = [
        ids.item_id("\"hello\"", Key::Occurrence(0)),
        ids.item_id("\"hello\"", Key::Occurrence(1)),
        ids.item_id("\"hello\"", Key::Own("\"a\"")),
        ids.item_id("[{\"content\":\"hi\",\"role\":\"user\"}]", Key::Own("7")),
    ]
    .map(hex)
    .to_vec();
    let locked = [
        "02c91e8466ca000054507f345795dd41f98ea63af29038ee0d9850a266a3c1eb",
        "70c66a150fc141d1eba2b8d5481898daec63d99e85ad898ab5dbcee5e34ad05e",
        "855192eaa5d3fe9a6875d9e3ec2ea1695cf78d039b65f95ef962d10c6861ba6d",
        "6209820d7f8a00abb1bb02b4b3d54878df9e75c3494e2c12ee84b3220d53d4b7",
    ];
    assert_eq!(found, locked);
}

#[test]
fn a_rows_own_parameters_are_the_runs_where_they_are_equal() {
    let sampling = "{\"max_tokens\":64,\"temperature\":0.7}";
    let mut ids = ItemIds::new(model(), sampling);
    let plain = ids.item_id("\"hello\"", Key::Occurrence(0));
    assert_eq!(ids.item_id_sampled("\"hello\"", sampling, Key::Occurrence(0)), plain);
    let other = ids.item_id_sampled("\"hello\"", "{\"max_tokens\":65}", Key::Occurrence(0));
    assert_ne!(other, plain);
    assert_eq!(
        other,
        ItemIds::new(model(), "{\"max_tokens\":65}").item_id("\"hello\"", Key::Occurrence(0))
    );
}

#[test]
fn every_component_of_an_item_alters_its_id() {
    let base = ItemIds::new(model(), "{}").item_id("\"p\"", Key::Occurrence(0));
    let other = ModelId::new("other", "main", "generate", "{}");
    let variants = [
        ItemIds::new(other, "{}").item_id("\"p\"", Key::Occurrence(0)),
        ItemIds::new(model(), "{\"seed\":1}").item_id("\"p\"", Key::Occurrence(0)),
        ItemIds::new(model(), "{}").item_id("\"q\"", Key::Occurrence(0)),
        ItemIds::new(model(), "{}").item_id("\"p\"", Key::Occurrence(1)),
        ItemIds::new(model(), "{}").item_id("\"p\"", Key::Own("0")),
        ItemIds::new(model(), "{}").item_id("\"p\"", Key::Own("\"0\"")),
    ];
    for (index, variant) in variants.iter().enumerate() {
        assert_ne!(*variant, base, "variant {index}");
        assert!(!variants[..index].contains(variant), "variant {index}");
    }
    let fields = [("a", "b"), ("ab", ""), ("", "ab")];
    let models: Vec<_> = fields.iter().map(|(uri, rev)| ModelId::new(uri, rev, "t", "")).collect();
    assert!(models[0] != models[1] && models[1] != models[2] && models[0] != models[2]);
}

#[test]
fn the_positional_v1_formula_has_its_locked_digest() {
    let params = SamplingParamsV1::default();
    // The digest in the original's own test for this input.
    let model = *blake3::hash(b"phase-3-fixed-model").as_bytes();
    let original = sample_id(&model, "hello", &params, 0).unwrap();
    assert_eq!(hex(original), "aed11582cbb156d052a7ad784812a87794c76569c734a73999b63394ab460f2c");
    let id = sample_id(&[7; 32], "hello", &params, 0).unwrap();
    let mut bytes = vec![SAMPLING_PARAMS_SCHEMA_VERSION];
    bytes.extend_from_slice(&[7; 32]);
    bytes.extend_from_slice(b"hello");
    bytes.extend_from_slice(&postcard::to_stdvec(&params).unwrap());
    bytes.extend_from_slice(&0u64.to_le_bytes());
    assert_eq!(id, *blake3::hash(&bytes).as_bytes(), "the version byte comes first");
    assert_ne!(id, sample_id(&[7; 32], "hello", &params, 1).unwrap());
    let seeded = SamplingParamsV1 { seed: Some(0), ..params };
    assert_ne!(id, sample_id(&[7; 32], "hello", &seeded, 0).unwrap());
}
