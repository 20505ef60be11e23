//! A leader's reports of members.

use super::args::{Args, Parsed};
use rollout_ledger::{LeaderCause, MemberOp, OpKind};

/// The operation that a line names, if it is one of members.
pub(crate) fn member(args: &mut Args) -> Parsed<Option<OpKind>> {
    let process = |args: &mut Args| Ok::<_, String>((id(args)?, args.number("process", 0)?));
    Ok(Some(OpKind::Member(match args.name.clone().as_str() {
        // Example: member-leads name=c1 cause=requested
        "member-leads" => {
            let (name, cause) = (args.text("name")?, args.text("cause")?);
            MemberOp::Leads { name, cause: leader_cause(&cause)? }
        }
        // Example: member-started id=1 name=c1 process=1000
        "member-started" => {
            let ((id, started_ms), name) = (process(args)?, args.text("name")?);
            MemberOp::Started { id, name, started_ms }
        }
        // Example: member-stopped id=1 process=1000
        "member-stopped" => {
            let (id, started_ms) = process(args)?;
            MemberOp::Stopped { id, started_ms }
        }
        "member-unreachable" => {
            let (id, started_ms) = process(args)?;
            MemberOp::Unreachable { id, started_ms }
        }
        "member-reachable" => {
            let (id, started_ms) = process(args)?;
            MemberOp::Reachable { id, started_ms }
        }
        // Example: member-removed id=1
        "member-removed" => MemberOp::Removed { id: id(args)? },
        _ => return Ok(None),
    })))
}

fn id(args: &mut Args) -> Parsed<u64> {
    args.number("id", 0)
}

fn leader_cause(word: &str) -> Parsed<LeaderCause> {
    let mut all = LeaderCause::ALL.into_iter();
    all.find(|cause| cause.word() == word).ok_or_else(|| format!("no cause {word}"))
}
