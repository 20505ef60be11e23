//! The replicated state machine of `rollout`: which worker has which row of which run, and nothing else.
//!
//! Every member applies the same commands in the same order and must end in the same state, so this crate is pure: no
//! clock, no I/O, no async, no randomness, no iteration over hash maps, no floating point. Time enters in commands
//! ([`clock`]); ids come from log positions ([`id`]).
//!
//! *Invariant:* [`Ledger::apply`] is the only way to change state. A client's mistake causes a [`Rejection`], an
//! ordinary reply; a panic here would repeat on every member.
//!
//! Absent on purpose: payloads (inputs and results live in the object store; the ledger names them by digest),
//! heartbeats (the leader keeps them in memory; only their consequences arrive here), and anything that knows of
//! Raft, disks or the network.

#![deny(clippy::disallowed_types, clippy::disallowed_methods, clippy::float_arithmetic)]

mod batch;
pub(crate) use batch::abrupt_end;
mod machine;
pub(crate) use machine::apply;
pub(crate) use batch::attempts;
pub(crate) use batch::avoided;
mod training;
pub(crate) use training::barrier;
pub(crate) use training::barrier_ops;
pub(crate) use batch::blame;
pub(crate) use batch::blocked;
mod kernel;
pub(crate) use kernel::bytes_field;
pub(crate) use batch::canary;
pub(crate) use batch::carry;
pub(crate) use training::checkpoint;
pub(crate) use training::checkpoint_ops;
pub use batch::claim;
mod identity;
pub(crate) use identity::client;
pub use machine::clock;
pub(crate) use kernel::codec;
pub(crate) use machine::command;
pub(crate) use batch::complete;
pub(crate) use kernel::condition;
mod fleet;
pub(crate) use fleet::cordon;
pub(crate) use kernel::counted;
pub(crate) use kernel::counts;
pub(crate) use training::dataset;
pub(crate) use batch::deadline;
pub(crate) use machine::digest;
pub(crate) use batch::disjoint;
pub(crate) use kernel::due;
pub(crate) use batch::duplicate;
pub(crate) use batch::eligibility;
pub(crate) use batch::eligibility_view;
pub(crate) use batch::engine_death;
pub(crate) use machine::event;
pub(crate) use batch::fail;
pub(crate) use batch::fleet_guard;
pub(crate) use batch::flight_image;
pub(crate) use batch::forget;
pub(crate) use machine::gate;
pub(crate) use batch::grant;
pub(crate) use machine::heavy;
pub use kernel::id;
pub(crate) use machine::image;
pub(crate) use machine::image_load;
pub(crate) use batch::incident;
pub(crate) use batch::incident_slots;
pub(crate) use machine::invariants;
pub(crate) use batch::item_view;
pub(crate) use training::job;
pub(crate) use training::job_ops;
pub(crate) use training::job_view;
pub(crate) use machine::ledger;
pub use kernel::limits;
pub(crate) use kernel::looks;
pub(crate) use kernel::marks;
pub(crate) use identity::member;
pub(crate) use kernel::namespace;
pub(crate) use batch::notice;
pub(crate) use batch::outcome_image;
pub(crate) use batch::outlook;
pub(crate) use training::pass;
pub(crate) use fleet::pool_view;
pub(crate) use identity::quota;
pub(crate) use identity::remembered;
pub(crate) use training::rendezvous;
pub(crate) use kernel::reply;
pub(crate) use machine::restore;
pub(crate) use batch::retry;
pub(crate) use batch::returned;
pub(crate) use identity::revocation;
pub(crate) use training::round_access;
pub(crate) use kernel::rows;
pub(crate) use batch::run;
pub(crate) use batch::run_ops;
pub(crate) use batch::schedule;
pub(crate) use batch::second_slot;
pub use machine::seeded;
pub(crate) use batch::segment;
pub(crate) use batch::session_leases;
pub(crate) use identity::session_room;
pub(crate) use fleet::setting;
pub(crate) use machine::settle;
pub(crate) use training::shard;
pub(crate) use training::shard_order;
pub(crate) use training::shard_ring;
pub(crate) use fleet::slot_image;
pub(crate) use batch::slot_incidents;
pub(crate) use batch::spec;
pub(crate) use batch::steal;
pub(crate) use training::store;
pub(crate) use batch::store_access;
pub(crate) use training::store_ops;
pub(crate) use batch::store_refusal;
pub(crate) use batch::tail;
pub(crate) use batch::tally;
pub(crate) use identity::token;
pub(crate) use training::trainer;
pub(crate) use training::training_image;
pub(crate) use kernel::training_refusal;
pub(crate) use training::training_view;
pub(crate) use batch::trial;
pub(crate) use batch::trouble;
pub(crate) use batch::unheard;
pub use machine::view;
pub(crate) use fleet::worker;
pub(crate) use fleet::worker_ops;

pub use barrier::{Among, BarrierEnd, BarrierFailure, BarrierSpec, Generation, Policy};
pub use blocked::StuckRun;
pub use checkpoint::{CheckpointOp, CheckpointState, RankReport, ShardProgress};
pub use command::{
    BlobRef, Body, Command, Evidence, FailureClass, HeldRows, Op, OpKind, PartDecl, Registration,
    RequestId, RunAction, SegmentDecl, StoreName, StoreOp,
};
pub use dataset::{DatasetOp, DatasetSpec, DatasetView};
pub use digest::digest_records;
pub use eligibility::{CohortNo, NeedNo};
pub use eligibility_view::Tail;
pub use event::{Event, EventKind};
pub use forget::{Forgettable, Sealed};
pub use gate::{SCHEDULING_VERSION, check_body_version, check_version};
pub use image::ImageDelta;
pub use image_load::LoadError;
pub use job::{Departed, Departure, JobName, Participant, ParticipantDecl};
pub use job_view::JobView;
pub use ledger::{EntryId, Ledger, UnknownCommand};
pub use member::{LeaderCause, MemberOp, MemberState, Members, SeenMember};
pub use notice::{DueNotice, Notice};
pub use outlook::Outlook;
pub use pass::PassCounts;
#[doc(hidden)]
pub use quota::is_bounded;
pub use quota::{NamespaceView, Quota};
pub use rendezvous::{Rendezvous, RoundMember, Standing, Terms};
pub use reply::{GrantedRows, Outrun, RefusedRows, Rejection, Reply, SegmentRef, StoreAnswer};
pub use restore::ANCESTORS_MAX;
pub use revocation::{Revocation, RevocationAuthor, RevocationOp, Revoked};
pub use rows::Rows;
pub use session_room::MakesRoom;
pub use setting::{SettingOp, SettingView, Settings};
pub use shard::{ShardOp, ShardRef};
pub use shard_order::ORDER_VERSION;
pub use spec::{EngineSpec, RunSpec, SlotOffer};
pub use store::StoreView;
pub use token::{TokenOp, TokenRole, TokenSpec, TokenUse, TokenView};
pub use trainer::{TrainerDecl, TrainerOp};
pub use training::{LossPolicy, TrainerRef, TrainingName};
pub use training_refusal::TrainingRefusal;
pub use training_view::{
    CheckpointView, LineageView, PassView, ShardView, TrainerView, TrainingView,
};
