//! Fuzzes connections of torch's TCPStore client.

pub(crate) fn run(bytes: &[u8]) {
    let _ = futures::executor::block_on(rollout_gateway::fuzzing::read(bytes));
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let count = |count: u64| count.to_le_bytes().to_vec();
    vec![
        [vec![1], text("key"), text("value")].concat(),
        [vec![2], text("key"), text("old"), text("new")].concat(),
        [vec![10], count(2), text("a"), text("b")].concat(),
        [vec![11], count(1), text("a"), text("b"), vec![3], text("a")].concat(),
    ]
}
