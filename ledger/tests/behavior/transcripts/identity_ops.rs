//! Operations on namespaces, tokens, API keys and revocations.

use super::args::{Args, Parsed};
use rollout_ledger::{
    ApiKeySpec, KeyLimits, KeyRole, OpKind, Quota, RevocationAuthor, Revoked, TokenOp, TokenRole,
    TokenSpec, op,
};

pub(crate) fn quota(args: &mut Args) -> Parsed<OpKind> {
    fn number<T: std::str::FromStr>(args: &mut Args, key: &str) -> Parsed<Option<T>> {
        let parse = |text: String| text.parse().map_err(|_| format!("{text} is no number"));
        args.get(key).map(parse).transpose()
    }
    Ok(OpKind::SetQuota(Quota {
        namespace: args.text("name")?,
        create: args.number("create", 0)? > 0,
        pending_rows_max: number(args, "pending")?,
        running_rows_max: number(args, "running")?,
        runs_max: number(args, "runs")?,
    }))
}

/// `by=admin/ann since=1000`
pub(crate) fn author(args: &mut Args) -> Parsed<Option<RevocationAuthor>> {
    let Some(identity) = args.get("by") else { return Ok(None) };
    Ok(Some(RevocationAuthor { identity, not_before_s: args.number("since", 0)? }))
}

pub(crate) fn whose_certificates(args: &mut Args) -> Revoked {
    args.get("of").map_or(Revoked::Everyone, Revoked::Identity)
}

pub(crate) fn create_token(args: &mut Args) -> Parsed<OpKind> {
    let role = match args.text_or("role", "worker").as_str() {
        "worker" => TokenRole::Worker,
        "client" => TokenRole::Client,
        other => return Err(format!("{other} gets no token")),
    };
    Ok(OpKind::Token(TokenOp::Create {
        name: args.text("name")?,
        secret_hash: [args.number("secret", 1)?; 32],
        spec: TokenSpec {
            role,
            holder: args.get("holder"),
            namespaces: args.list("namespaces"),
            labels: args.labels("labels")?,
            ttl_ms: args.number("ttl", 1000)?,
            uses_max: args.number("uses", 1)?,
        },
    }))
}

pub(crate) fn create_api_key(args: &mut Args) -> Parsed<OpKind> {
    let role = match args.text_or("role", "client").as_str() {
        "viewer" => KeyRole::Viewer,
        "client" => KeyRole::Client,
        "admin" => KeyRole::Admin,
        other => return Err(format!("{other} is no role of a key")),
    };
    Ok(OpKind::CreateApiKey(op::CreateApiKey {
        id: args.text("id")?,
        secret_hash: [args.number("secret", 1)?; 32],
        spec: ApiKeySpec {
            name: args.text("name")?,
            namespace: args.text_or("namespace", "default"),
            role,
            ttl_ms: args.number("ttl", 0)?,
            limits: KeyLimits {
                open_batches: args.number("batches", 0)?,
                waiting_rows: args.number("rows", 0)?,
                stored_bytes: args.number("stored", 0)?,
                ..KeyLimits::default()
            },
        },
    }))
}
