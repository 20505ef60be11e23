//! Operations on rendezvous, barriers and shared stores.

use super::args::{self, Args, Parsed};
use super::world::World;
use rollout_ledger::id::SessionId;
use rollout_ledger::{
    BarrierMembers, BarrierSpec, JobName, OpKind, ParticipantDecl, Policy, StoreName, StoreOp, op,
};

pub(crate) fn job_name(args: &mut Args) -> Parsed<JobName> {
    Ok(JobName { namespace: args.text_or("namespace", "default"), job: args.text("job")? })
}

pub(crate) fn participant(args: &mut Args) -> Parsed<Box<ParticipantDecl>> {
    let name = args.text("as")?;
    Ok(Box::new(ParticipantDecl {
        host: args.text_or("host", &format!("{name}.example")),
        addr: args.text_or("addr", ""),
        name,
        local_world_size: args.number("local", 1)?,
        keep_alive_ms: args.number("alive", 15_000)?,
    }))
}

/// The ticket that a participant has now, or one by its number.
pub(crate) fn incarnation(world: &World, args: &mut Args) -> Parsed<SessionId> {
    if let Some(text) = args.get("ticket") {
        return Ok(SessionId(args::stamp(&text)?));
    }
    let (job, name) = (job_name(args)?, args.text("as")?);
    let view = world.ledger.job(&job).ok_or("no such job")?;
    let found = view.participants().find(|p| p.decl.name == name);
    found.map(|p| p.incarnation).ok_or_else(|| format!("{name} takes no part"))
}

// Example: arrive job=t barrier=epoch generation=1 as=n1 members=n1,n2 shrink timeout=300000; or count=2, or
//          neither: the round's members; or ticket=3.0
pub(crate) fn arrive(args: &mut Args) -> Parsed<OpKind> {
    let (members, count) = (args.list("members"), args.number("count", 0)?);
    let members = match (members.is_empty(), count) {
        (false, _) => BarrierMembers::Members(members),
        (true, 0) => BarrierMembers::Round,
        (true, count) => BarrierMembers::Count(count),
    };
    let policy = if args.flag("shrink") { Policy::Shrink } else { Policy::Fail };
    let spec = BarrierSpec { members, policy, timeout_ms: args.number("timeout", 300_000)? };
    let incarnation = args.get("ticket").map(|text| args::stamp(&text)).transpose()?.map(SessionId);
    Ok(OpKind::Arrive(op::Arrive {
        job: job_name(args)?,
        barrier: args.text("barrier")?,
        generation: args.number("generation", 1)?,
        participant: match incarnation {
            Some(_) => Box::default(),
            None => participant(args)?,
        },
        incarnation,
        spec,
    }))
}

pub(crate) fn store_name(args: &mut Args) -> Parsed<StoreName> {
    Ok(StoreName {
        namespace: args.text_or("namespace", "default"),
        job: args.text("job")?,
        round: args.number("round", 0)?,
    })
}

/// What is given is done in this order: set, add, compare, append, delete, push, pop.
pub(crate) fn store(args: &mut Args) -> Parsed<OpKind> {
    let store = store_name(args)?;
    let two = |text: &str| {
        let (key, value) = text.split_once(':').ok_or_else(|| format!("{text} is no key:value"))?;
        Ok::<_, String>((key.as_bytes().to_vec(), value.as_bytes().to_vec()))
    };
    let mut ops = Vec::new();
    let pairs = args.list("set").iter().map(|t| two(t)).collect::<Parsed<Vec<_>>>()?;
    if !pairs.is_empty() {
        ops.push(StoreOp::Set { pairs });
    }
    for text in args.list("add") {
        let (key, delta) = text.rsplit_once(':').ok_or_else(|| format!("{text} is no key:n"))?;
        let delta = delta.parse().map_err(|_| format!("{delta} is no number"))?;
        ops.push(StoreOp::Add { key: key.as_bytes().to_vec(), delta });
    }
    for text in args.list("compare") {
        let parts: Vec<Vec<u8>> = text.split(':').map(|p| p.as_bytes().to_vec()).collect();
        let [key, expected, desired] =
            parts.try_into().map_err(|_| format!("{text} is no key:expected:desired"))?;
        ops.push(StoreOp::CompareSet { key, expected, desired });
    }
    for text in args.list("append") {
        let (key, value) = two(&text)?;
        ops.push(StoreOp::Append { key, value });
    }
    ops.extend(args.list("delete").into_iter().map(|k| StoreOp::Delete { key: k.into_bytes() }));
    for text in args.list("push") {
        let (queue, value) = two(&text)?;
        ops.push(StoreOp::Push { queue, value });
    }
    ops.extend(args.list("pop").into_iter().map(|q| StoreOp::Pop { queue: q.into_bytes() }));
    // Example: long=2000, a key of this many bytes
    if let Some(bytes) = args.get("long") {
        let bytes: usize = bytes.parse().map_err(|_| format!("{bytes} is no number"))?;
        ops.push(StoreOp::Set { pairs: vec![(vec![b'k'; bytes], Vec::new())] });
    }
    // Example: of=3.0, the ticket of a member of the round
    let of = args.get("of").map(|text| args::stamp(&text)).transpose()?.map(SessionId);
    Ok(match of {
        Some(incarnation) => OpKind::RoundStore(op::UseRoundStore { store, incarnation, ops }),
        None => OpKind::Store(op::UseStore { store, ops }),
    })
}
