//! Converts requests of clients and registrations of workers to the types of the ledger. Bad input ends here, as
//! `InvalidArgument`.
//!
//! Absent: what the leader's exchanges and garbage collection convert too (`leader::convert`).

pub(crate) use crate::leader::convert::{
    Checked, Kind, blob_in, blob_out, class_name, digest_in, evidence_out, failed_row_out, held_in,
    held_out, invalid, results_out, rows_in, rows_out, run_out, segment_out, spec_for_workers,
    spec_out,
};
use rollout_ledger::id::{RunNo, SegmentNo, SessionId};
use rollout_ledger::{
    EngineSpec, OpKind, PartDecl, RequestId, RunSpec, SegmentDecl, SlotOffer, op,
};
use rollout_proto::{Identity, Role, v1};
use url::Url;

pub(crate) fn request_in(request: Option<&v1::RequestId>) -> Checked<RequestId> {
    let r = request.ok_or_else(|| invalid("a request id is missing"))?;
    if r.seq == 0 || r.ack_upto >= r.seq {
        return Err(invalid("a request's seq must be at least 1 and greater than ack_upto"));
    }
    Ok(RequestId { session: SessionId(r.session), seq: r.seq, ack_upto: r.ack_upto })
}

pub(crate) fn spec_in(spec: Option<v1::RunSpec>) -> Checked<RunSpec> {
    let spec = spec.ok_or_else(|| invalid("the spec is missing"))?;
    let engine = spec.engine.ok_or_else(|| invalid("spec.engine is missing"))?;
    Ok(RunSpec {
        engine: EngineSpec {
            model: engine.model,
            revision: engine.revision,
            task: engine.task,
            options_json: engine.options_json,
        },
        sampling_json: spec.sampling_json,
        selector: spec.selector.into_iter().collect(),
        priority: u8::try_from(spec.priority).map_err(|_| invalid("priority is over 9"))?,
        weight: spec.weight,
        running_rows_max: spec.running_rows_max.into(),
        attempt_timeout_ms: spec.attempt_timeout_ms,
        failures_max: spec.failures_max.into(),
        attempts_max: spec.attempts_max,
        store_url: spec.store_url,
        input_name: spec.input_name,
        options_json: spec.options_json,
        tail_duplicates: spec.tail_duplicates,
        canary_rows: spec.canary_rows,
        canary_failures_max: spec.canary_failures_max,
        run_ttl_ms: spec.run_ttl_ms,
        retention_ms: spec.retention_ms,
        require: spec.require.into_iter().collect(),
        deadline_ms: spec.deadline_ms,
        notify_url: spec.notify_url,
    })
}

/// The spec for a caller that reads the run. Only roles that submit runs see all of `notify_url`, because its path and
/// query may contain a secret. Others see its origin.
pub(crate) fn spec_for(caller: &Identity, spec: &RunSpec) -> v1::RunSpec {
    let whole = spec_out(spec);
    match caller.acts_as(Role::Client) || caller.acts_as(Role::Admin) {
        true => whole,
        false => v1::RunSpec { notify_url: origin_of(&spec.notify_url), ..whole },
    }
}

fn origin_of(url: &str) -> String {
    Url::parse(url).map(|url| url.origin().ascii_serialization()).unwrap_or_default()
}

pub(crate) fn segment_in(decl: &v1::SegmentDecl) -> Checked<SegmentDecl> {
    let blob = blob_in(decl.blob.as_ref())?;
    Ok(SegmentDecl { number: SegmentNo(decl.number), rows: decl.rows, blob })
}

/// Results reused from an earlier run, which counted their tokens.
pub(crate) fn reuse_in(run: RunNo, carried: &v1::CarriedPart) -> Checked<OpKind> {
    let blob = blob_in(carried.blob.as_ref())?;
    Ok(OpKind::ReuseResults(op::ReuseResults {
        run,
        segment: SegmentNo(carried.segment),
        segment_digest: digest_in(&carried.segment_digest)?,
        part: PartDecl { blob, tokens_in: 0, tokens_out: 0 },
        rows: rows_in(carried.rows.as_ref())?,
    }))
}

pub(crate) fn offer_in(offer: &v1::SlotOffer) -> SlotOffer {
    SlotOffer {
        models: offer.models.clone(),
        tasks: offer.tasks.clone(),
        labels: offer.labels.clone().into_iter().collect(),
        engine: offer.engine.clone(),
        ineligible: offer.ineligible.clone(),
        versions: offer.versions.clone().into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_that_submit_no_runs_see_only_the_origin_of_a_notify_url() {
        let spec = |url: &str| RunSpec { notify_url: url.into(), ..RunSpec::default() };
        let url = "https://ann:pw@hooks.example:8443/services/T0/secret?token=secret#secret";
        let seen = |role, url: &str| {
            let caller = Identity::new(role, "ann", Vec::new()).unwrap();
            spec_for(&caller, &spec(url)).notify_url
        };
        for role in [Role::Client, Role::Admin] {
            assert_eq!(seen(role, url), url);
        }
        for role in [Role::Viewer, Role::Worker, Role::Member] {
            assert_eq!(seen(role, url), "https://hooks.example:8443");
            assert_eq!(seen(role, ""), "");
            assert_eq!(seen(role, "no url"), "");
        }
        assert_eq!(spec_for_workers(&spec(url)).notify_url, "");
    }
}
