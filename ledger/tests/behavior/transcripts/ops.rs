//! Turns a line of input into an operation.

use super::args::{self, Args, Parsed};
use super::batch_ops::batch;
use super::file_ops::file;
use super::identity_ops::{author, create_api_key, create_token, quota, whose_certificates};
use super::job_ops::{arrive, incarnation, job_name, participant, store, store_name};
use super::member_ops::member;
use super::run_ops::{close, control, create, reuse_results, seal, segments};
use super::training;
use super::world::World;
use rollout_ledger::id::{Attempt, RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{
    BlobRef, Evidence, FailureClass, HeldRows, Op, OpKind, PartDecl, Registration,
    RendezvousConfig, RequestId, RevocationOp, RunAction, SettingOp, SlotOffer, TokenOp, TokenUse,
    op,
};

pub(crate) fn op(world: &World, line: &str) -> Parsed<Op> {
    // Example: request client=c1 seq=1 ack=0 create name=chat
    let (request, line) = match line.strip_prefix("request ") {
        Some(rest) => {
            let mut words = rest.splitn(4, ' ');
            let head: Vec<&str> = words.by_ref().take(3).collect();
            let mut args = Args::parse(&format!("request {}", head.join(" ")))?;
            let session = world.client(&args.text("client")?)?;
            let id = RequestId {
                session,
                seq: args.number("seq", 0)?,
                ack_upto: args.number("ack", 0)?,
            };
            args.finish()?;
            (Some(id), words.next().unwrap_or_default())
        }
        None => (None, line),
    };
    let mut args = Args::parse(line)?;
    let kind = kind(world, &mut args)?;
    args.finish()?;
    Ok(Op { request, kind })
}

fn kind(world: &World, args: &mut Args) -> Parsed<OpKind> {
    if let Some(kind) = member(args)? {
        return Ok(kind);
    }
    if let Some(kind) = file(args)? {
        return Ok(kind);
    }
    if let Some(kind) = batch(&world.ledger, args)? {
        return Ok(kind);
    }
    let name = args.name.clone();
    Ok(match name.as_str() {
        // Example: namespace name=team-a cap=100
        "namespace" => OpKind::SetNamespace(op::SetNamespace {
            name: args.text("name")?,
            running_rows_max: args.number("cap", 0)?,
        }),
        // Example: quota name=team pending=100 running=10 runs=2 create=1
        "quota" => quota(args)?,
        // Example: token name=rack role=worker holder=w1 namespaces=a,b labels=k:v uses=2 ttl=60000 secret=1
        "token" => create_token(args)?,
        // Example: key id=aB3dE6gH name=ci namespace=team role=viewer ttl=60000 secret=1
        "key" => create_api_key(args)?,
        // Example: revoke-key id=aB3dE6gH
        "revoke-key" => OpKind::RevokeApiKey(op::RevokeApiKey { id: args.text("id")? }),
        // Example: revoke token=rack
        "revoke" => OpKind::Token(TokenOp::Revoke { name: args.text("token")? }),
        // Example: spend token=rack holder=w1 key=1 secret=1
        "spend" => OpKind::Token(TokenOp::Spend(TokenUse {
            token: args.text("token")?,
            secret_hash: [args.number("secret", 1)?; 32],
            holder: args.text("holder")?,
            key_hash: [args.number("key", 1)?; 32],
        })),
        // Example: revoke-certificates of=worker/gpu-7 before=1764200000 reason=stolen
        "revoke-certificates" => OpKind::Revocation(RevocationOp::Revoke {
            whose: whose_certificates(args),
            issued_before_s: match args.number("before", 0)? {
                0 => None,
                before => Some(before),
            },
            reason: args.text_or("reason", ""),
            by: author(args)?,
        }),
        // Example: accept-certificates of=worker/gpu-7
        "accept-certificates" => {
            let (whose, by) = (whose_certificates(args), author(args)?);
            OpKind::Revocation(RevocationOp::Withdraw { whose, by })
        }
        // Example: setting cordon-after=5
        "setting" => OpKind::Setting(SettingOp::CordonAfter(args.number("cordon-after", 0)?)),
        // Example: noticed run=chat index=4 delivered=1
        "noticed" => OpKind::SettleWebhook(op::SettleWebhook {
            run: run(world, &args.text("run")?)?,
            index: args.number("index", 0)?,
            delivered: args.number("delivered", 0)? > 0,
        }),
        // Example: client name=c1
        "client" => OpKind::OpenClient(op::OpenClient {
            name: args.text("name")?,
            holder: args.text_or("holder", ""),
        }),
        "create" => create(args)?,
        "segments" => segments(world, args)?,
        "close" => close(world, args)?,
        // Example: pause run=chat reason="the store is full"
        "pause" => control(world, args, RunAction::Pause)?,
        "resume" => control(world, args, RunAction::Resume)?,
        "cancel" => control(world, args, RunAction::Cancel)?,
        // Example: set-deadline run=chat deadline=60000, from its creation; 0 for none
        "set-deadline" => OpKind::SetDeadline(op::SetDeadline {
            run: run(world, &args.text("run")?)?,
            deadline_ms: args.number("deadline", 0)?,
        }),
        // Example: set-weight run=chat weight=3
        "set-weight" => OpKind::SetWeight(op::SetWeight {
            run: run(world, &args.text("run")?)?,
            weight: args.number("weight", 0)?,
        }),
        // Example: seal run=chat at=7, with a manifest as of its end at 7; without `at`: as of now
        "seal" => seal(world, args)?,
        "swept" => OpKind::Swept(op::Swept { run: run(world, &args.text("run")?)? }),
        "delete" => OpKind::DeleteRun(op::DeleteRun { run: run(world, &args.text("run")?)? }),
        "forget" => OpKind::ForgetRun(op::ForgetRun { run: run(world, &args.text("run")?)? }),
        "register" => register(world, args)?,
        "died" => died(world, args)?,
        // Example: cordon worker=w1 slot=1 reason="hot"; without a slot, all of the worker
        "cordon" | "uncordon" => OpKind::Cordon(op::Cordon {
            slot: match args.get("slot") {
                Some(n) => Some(SlotNo(n.parse().map_err(|_| format!("{n} is no slot"))?)),
                None => None,
            },
            session: session(world, args)?,
            cordoned: name == "cordon",
            reason: args.text_or("reason", ""),
        }),
        // Example: retry run=chat rows=3,5; without rows, all that failed
        "retry" => OpKind::RetryRows(op::RetryRows {
            run: run(world, &args.text("run")?)?,
            rows: args.get("rows").map(|rows| args::rows(&rows)).transpose()?,
        }),
        // Example: deregister worker=w1
        "deregister" => OpKind::Deregister(op::Deregister { session: session(world, args)? }),
        // Example: suspect worker=w1 started=chat:6.0:0-1 grace=60000
        "suspect" => OpKind::Suspect(op::Suspect {
            session: session(world, args)?,
            started: held(world, &args.text_or("started", ""))?,
            grace_ms: args.number("grace", 60_000)?,
        }),
        // Example: suspect-unheard worker=w1 started=chat:6.0:0-1 unheard=chat:6.0:2 grace=60000
        "suspect-unheard" => OpKind::SuspectWithUnreportedStarts(op::SuspectWithUnreportedStarts {
            session: session(world, args)?,
            started: held(world, &args.text_or("started", ""))?,
            unreported_starts: held(world, &args.text_or("unheard", ""))?,
            grace_ms: args.number("grace", 60_000)?,
        }),
        "unsuspect" => OpKind::Unsuspect(op::Unsuspect { session: session(world, args)? }),
        // Example: drain worker=w1 deadline=60000
        "drain" => OpKind::Drain(op::DrainWorker {
            session: session(world, args)?,
            deadline_ms: args.number("deadline", 0)?,
        }),
        // Example: claim worker=w1 slot=0 seq=1 max=4
        "claim" => OpKind::Claim(op::Claim {
            slot: slot(world, args)?,
            instance: args.number("instance", 1)?,
            seq: args.number("seq", 0)?,
            rows_max: args.number("max", 4)?,
        }),
        "complete" => complete(world, args)?,
        "carry" => reuse_results(world, args)?,
        // Example: fail worker=w1 held=chat:6.0:2 class=transient code=timeout
        "fail" => {
            let slot = slot(world, args)?;
            let [held]: [HeldRows; 1] = held(world, &args.text("held")?)?
                .try_into()
                .map_err(|_| "a failure speaks of one set".to_owned())?;
            let class = class(&args.text("class")?)?;
            let (code, message) = (args.text_or("code", "e"), args.text_or("message", ""));
            OpKind::Fail(op::Fail {
                slot,
                held,
                class,
                code,
                message,
                evidence: Evidence::default(),
            })
        }
        // Example: nack worker=w1 held=chat:6.0:0-1;chat:7.0:4
        "nack" => OpKind::Nack(op::Nack {
            slot: slot(world, args)?,
            held: held(world, &args.text("held")?)?,
        }),
        // Example: steal worker=w1 held=chat:6.0:2-3 idle=w2 idle-slot=0 seq=4
        "steal" => {
            let idle_slot = SlotRef {
                session: world.session(&args.text("idle")?)?,
                slot: SlotNo(args.number("idle-slot", 0)?),
            };
            let (instance, seq) = (args.number("instance", 1)?, args.number("seq", 0)?);
            let (victim, held) = (slot(world, args)?, held(world, &args.text("held")?)?);
            OpKind::Steal(op::Steal { victim, held, idle_slot, instance, seq })
        }
        // Example: duplicate worker=w2 slot=0 seq=1 max=4
        "duplicate" => OpKind::ClaimSpeculatively(op::ClaimSpeculatively {
            slot: slot(world, args)?,
            instance: args.number("instance", 1)?,
            seq: args.number("seq", 0)?,
            rows_max: args.number("max", 4)?,
        }),
        // Example: store job=t round=1 set=a:1,b:2 add=n:5 compare=a:1:9 append=a:x delete=b push=q:1 pop=q
        "store" => store(args)?,
        "drop-store" => OpKind::DropStore(op::DropStore { store: store_name(args)? }),
        // Example: join job=t as=n1 min=2 max=3 timeout=600000 call=30000 host=h1 alive=15000
        "join" => OpKind::Join(op::Join {
            job: job_name(args)?,
            participant: participant(args)?,
            config: RendezvousConfig {
                min: args.number("min", 1)?,
                max: args.number("max", 2)?,
                join_timeout_ms: args.number("timeout", 600_000)?,
                last_call_ms: args.number("call", 30_000)?,
            },
        }),
        "participate" => OpKind::Participate(op::Participate {
            job: job_name(args)?,
            participant: participant(args)?,
        }),
        // Example: leave job=t as=n1; or ticket=3.0
        "leave" => OpKind::Leave(op::Leave { incarnation: incarnation(world, args)? }),
        // Example: lose job=t as=n1 silent=15000; without, the leader has never heard it
        "lose" => OpKind::LoseParticipant(op::LoseParticipant {
            incarnation: incarnation(world, args)?,
            silent_ms: match args.number("silent", 0)? {
                0 => None,
                ms => Some(ms),
            },
        }),
        "close-rendezvous" => OpKind::CloseRendezvous(op::CloseRendezvous { job: job_name(args)? }),
        "arrive" => arrive(args)?,
        // Example: abort job=t barrier=epoch generation=1 reason="no more"
        "abort" => OpKind::AbortBarrier(op::AbortBarrier {
            job: job_name(args)?,
            barrier: args.text("barrier")?,
            generation: args.number("generation", 0)?,
            reason: args.text_or("reason", ""),
        }),
        other => match training::kind(world, other, args)? {
            Some(kind) => kind,
            None => return Err(format!("no such command: {other}")),
        },
    })
}

// Example: register worker=w1 slots=2 models=m labels=gpu:h100 instance=7 alive resume
//          held=chat:6.0:0-1
fn register(world: &World, args: &mut Args) -> Parsed<OpKind> {
    let name = args.text("worker")?;
    let offer = SlotOffer {
        models: args.text_or("models", "m").split(',').map(str::to_owned).collect(),
        labels: args.labels("labels")?,
        versions: args.labels("versions")?,
        ineligible: args.text_or("ineligible", ""),
        engine: "mock".into(),
        ..SlotOffer::default()
    };
    let slots: usize = args.number("slots", 1)?;
    let resume = match args.get("resume") {
        Some(text) if text.is_empty() => Some(world.session(&name)?),
        Some(text) => Some(SessionId(args::stamp(&text)?)),
        None => None,
    };
    Ok(OpKind::Register(Box::new(Registration {
        namespace: args.text_or("namespace", "default"),
        address: args.text_or("address", &format!("{name}.example")),
        name,
        instance: args.number("instance", 1)?,
        resume,
        holder_alive: args.flag("alive"),
        slots: vec![offer; slots],
        held: held(world, &args.text_or("held", ""))?,
        started: held(world, &args.text_or("started", ""))?,
        stores: args.list("stores"),
        ..Registration::default()
    })))
}

// Example: died worker=w1 started=chat:6.0:0-3 class=oom code=sigkill number=2; without started, with all
//          that its worker holds
fn died(world: &World, args: &mut Args) -> Parsed<OpKind> {
    let slot = slot(world, args)?;
    let started = match args.get("started") {
        Some(sets) => held(world, &sets)?,
        None => world.ledger.held_rows(slot.session),
    };
    Ok(OpKind::EngineDied(op::EngineDied {
        slot,
        number: args.number("number", 0)?,
        started,
        class: class(&args.text_or("class", "died"))?,
        code: args.text_or("code", "sigkill"),
        message: args.text_or("message", ""),
        evidence: Evidence { signal: Some(9), ..Evidence::default() },
    }))
}

// Example: complete worker=w1 run=chat sets=6.0:0-1;7.0:4 part=p1 in=10 out=20; without sets, all
//          that its worker holds of the run
fn complete(world: &World, args: &mut Args) -> Parsed<OpKind> {
    let (slot, name) = (slot(world, args)?, args.text("run")?);
    let no = run(world, &name)?;
    let held_now = world.ledger.held_rows(slot.session).into_iter().filter(|h| h.run == no);
    let sets = match args.get("sets") {
        Some(sets) => {
            let sets: Vec<String> = sets.split(';').map(|s| format!("{name}:{s}")).collect();
            held(world, &sets.join(";"))?
        }
        None => held_now.collect(),
    };
    let part = PartDecl {
        blob: blob(&args.text("part")?),
        tokens_in: args.number("in", 0)?,
        tokens_out: args.number("out", 0)?,
    };
    Ok(OpKind::Complete(op::Complete { slot, run: no, part, sets }))
}

pub(crate) fn blob(label: &str) -> BlobRef {
    BlobRef { digest: *blake3::hash(label.as_bytes()).as_bytes(), bytes: label.len() as u32 }
}

fn class(text: &str) -> Parsed<FailureClass> {
    Ok(match text {
        "invalid" => FailureClass::InvalidRow,
        "transient" => FailureClass::Transient,
        "oom" => FailureClass::OutOfMemory,
        "died" => FailureClass::EngineDied,
        "input" => FailureClass::InputUnreadable,
        "store" => FailureClass::StoreRefused,
        other => return Err(format!("no such class: {other}")),
    })
}

/// `namespace/name`, `name`, or the number of a run that need not exist.
pub(crate) fn run(world: &World, text: &str) -> Parsed<RunNo> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    let number = || text.parse().map(RunNo).map_err(|_| format!("no run {text}"));
    world.ledger.find_run(namespace, name).map_or_else(number, Ok)
}

fn session(world: &World, args: &mut Args) -> Parsed<SessionId> {
    match args.get("session") {
        Some(text) => Ok(SessionId(args::stamp(&text)?)),
        None => world.session(&args.text("worker")?),
    }
}

pub(crate) fn slot(world: &World, args: &mut Args) -> Parsed<SlotRef> {
    let slot = SlotNo(args.number("slot", 0)?);
    Ok(SlotRef { session: session(world, args)?, slot })
}

pub(crate) fn held(world: &World, text: &str) -> Parsed<Vec<HeldRows>> {
    let sets = text.split(';').filter(|t| !t.is_empty());
    sets.map(|set| {
        let words: Vec<&str> = set.split(':').collect();
        let [name, attempt, rows] = words[..] else { return Err(format!("{set} is no set")) };
        Ok(HeldRows {
            run: run(world, name)?,
            attempt: Attempt(args::stamp(attempt)?),
            rows: args::rows(rows)?,
        })
    })
    .collect()
}
