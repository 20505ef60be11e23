//! The namespaces within which an operation's caller may act.
//!
//! *Invariant:* a scope comes from the identity that the connection proved, never from the request. The leader adds it
//! to the command, so that every member checks the same scope.
//! Absent: the check (`machine/namespace_rule.rs`), and reads, whose handlers check the caller themselves.

use super::{Body, Op};
use serde::{Deserialize, Serialize};

/// The namespaces whose objects a caller may change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// Every namespace, and what belongs to none: for the leader's own operations, and for callers whose certificates
    /// list no namespaces.
    #[default]
    All,
    /// Only these.
    Namespaces(Vec<String>),
}

/// An operation, and where its caller may act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopedOp {
    /// The scope of the caller.
    pub scope: Scope,
    /// The operation.
    pub op: Op,
}

impl From<Op> for ScopedOp {
    fn from(op: Op) -> Self {
        Self { scope: Scope::All, op }
    }
}

impl Body {
    /// Operations with their scopes, in the form that the lowest cluster version allows.
    pub fn scoped(ops: Vec<ScopedOp>) -> Self {
        match ops.iter().all(|scoped| scoped.scope == Scope::All) {
            true => Self::Ops(ops.into_iter().map(|scoped| scoped.op).collect()),
            false => Self::ScopedOps(ops),
        }
    }

    /// Its operations; none for a body of another kind.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        let plain = if let Self::Ops(ops) = self { ops.as_slice() } else { &[] };
        let scoped = if let Self::ScopedOps(ops) = self { ops.as_slice() } else { &[] };
        plain.iter().chain(scoped.iter().map(|scoped| &scoped.op))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::id::RunNo;
    use crate::machine::command::{OpKind, op};

    #[test]
    fn only_operations_of_limited_callers_need_the_later_form() {
        let op = |run| Op::from(OpKind::DeleteRun(op::DeleteRun { run: RunNo(run) }));
        let plain = vec![ScopedOp::from(op(1)), ScopedOp::from(op(2))];
        let body = Body::scoped(plain.clone());
        assert_eq!(body, Body::Ops(vec![op(1), op(2)]));
        assert_eq!(body.came_with(), 1);
        let mut mixed = plain;
        mixed[1].scope = Scope::Namespaces(vec!["team".into()]);
        let body = Body::scoped(mixed.clone());
        assert_eq!(body, Body::ScopedOps(mixed));
        assert_eq!(body.came_with(), 4);
        assert_eq!(body.ops().cloned().collect::<Vec<_>>(), [op(1), op(2)]);
        assert_eq!(Body::Tick.ops().count(), 0);
    }
}
