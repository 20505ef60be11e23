//! Compares the index with a comparison of every run with every slot.

use super::*;
use crate::batch::spec::EngineSpec;
use crate::kernel::id::{SessionId, SlotNo};
use crate::kernel::visits::visits_of;
use crate::machine::version_gate::SCHEDULING_VERSION;
use proptest::prelude::*;

const NAMESPACES: [&str; 2] = ["a", "b"];
const STORE: &str = "s3://other";

fn labels(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

/// One of the needs of runs.
fn spec(kind: u8) -> RunSpec {
    let engine = |model: &str, revision: &str| EngineSpec {
        model: model.into(),
        revision: revision.into(),
        ..EngineSpec::default()
    };
    let mut spec = RunSpec { engine: engine("m", ""), ..RunSpec::default() };
    match kind {
        0..3 => spec.engine.model = ["m", "n", "nobody-has"][kind as usize].into(),
        3 => spec.engine = engine("m", "r1"),
        4 => spec.engine.task = "embed".into(),
        5 => spec.selector = labels(&[("zone", "x")]),
        6 => spec.selector = labels(&[("zone", "y")]),
        7 => spec.selector = labels(&[("host", "1")]),
        8 => spec.require = labels(&[("vllm", ">=0.5")]),
        11 => spec.require_route("/v1/embeddings"),
        12 => {
            spec.require = labels(&[("vllm", ">=0.5")]);
            spec.require_route("/v1/score");
        }
        _ => {
            // Hosts with stores name their tasks.
            spec.engine.task = "generate".into();
            spec.store_url = if kind == 9 { STORE.into() } else { format!("{STORE}/below") };
        }
    }
    spec
}

/// One of the things that slots of a host offer, with the stores of its worker.
fn offer(kind: u8, host: u8) -> (SlotOffer, StoreAccess) {
    let models: &[&str] = match kind {
        0 => &["m"],
        1 => &["n"],
        2 => &["*"],
        3 => &["m@r1", "n"],
        4 => &["m@r2"],
        _ => &["m"],
    };
    let mut offer = SlotOffer {
        models: models.iter().map(|m| (*m).to_owned()).collect(),
        labels: labels(&[("host", &host.to_string()), ("zone", ["x", "y"][host as usize % 2])]),
        engine: format!("engine-{host}"),
        ..SlotOffer::default()
    };
    if kind == 5 {
        offer.ineligible = format!("host {host} is too old");
    }
    if host > 2 {
        offer.versions = labels(&[("vllm", "0.6.0")]);
        offer.tasks = vec!["generate".into(), "embed".into()];
    }
    match host {
        0 => offer.labels.extend(labels(&[("routes", "/v1/embeddings")])),
        2 => offer.versions.extend(labels(&[("routes", "/v1/score /v1/embeddings /v1/score")])),
        4 => offer.versions.extend(labels(&[("routes", "/v1/score")])),
        _ => {}
    }
    let stores = match host {
        4 => StoreAccess::new(&[STORE.to_owned()], SCHEDULING_VERSION - 1),
        5 => StoreAccess::new(&[STORE.to_owned()], SCHEDULING_VERSION),
        _ => StoreAccess::default(),
    };
    (offer, stores)
}

#[derive(Clone, Debug)]
enum Act {
    /// A run comes, is served, or has no rows to give for now.
    SetRun(u8, u8, u8, Option<(u8, u8)>),
    EndRun(u8),
    /// A host with slots comes.
    AddHost(u8, u8, u8, u8),
    RemoveHost(u8),
    /// It comes back with the same or with other slots.
    Resume(u8, u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let turn = || proptest::option::weighted(0.8, (0_u8..3, 0_u8..20));
    let act = prop_oneof![
        6 => (0_u8..12, 0_u8..2, 0_u8..13, turn()).prop_map(|(r, n, s, t)| Act::SetRun(r, n, s, t)),
        2 => (0_u8..12).prop_map(Act::EndRun),
        3 => (0_u8..8, 0_u8..2, 0_u8..6, 1_u8..4).prop_map(|(h, n, o, s)| Act::AddHost(h, n, o, s)),
        1 => (0_u8..8).prop_map(Act::RemoveHost),
        1 => (0_u8..8, 0_u8..6).prop_map(|(h, o)| Act::Resume(h, o)),
    ];
    proptest::collection::vec(act, 1..120)
}

struct Host {
    session: SessionId,
    namespace: &'static str,
    offer: (SlotOffer, StoreAccess),
    numbers: Vec<OfferNo>,
}

struct OpenRun {
    namespace: &'static str,
    spec: RunSpec,
    turn: Option<Turn>,
}

/// The index, and the changes that it has seen.
#[derive(Default)]
struct Both {
    index: Eligibility,
    runs: BTreeMap<RunNo, OpenRun>,
    hosts: BTreeMap<u8, Host>,
    sessions: u64,
}

fn slot_of(session: SessionId, number: usize) -> SlotRef {
    SlotRef { session, slot: SlotNo(number as u16) }
}

impl Both {
    fn act(&mut self, act: &Act) {
        match *act {
            Act::SetRun(run, namespace, kind, turn) => {
                let no = RunNo(run.into());
                let namespace = NAMESPACES[namespace as usize];
                let run = self.runs.entry(no).or_insert_with(|| {
                    let spec = RunSpec { priority: kind % 3, ..spec(kind) };
                    OpenRun { namespace, spec, turn: None }
                });
                run.turn = turn.map(|(priority, time)| Turn {
                    priority: Reverse(priority),
                    time: time.into(),
                    run: no,
                });
                self.index.set_run(no, (run.namespace, &run.spec), run.turn);
            }
            Act::EndRun(run) => {
                self.runs.remove(&RunNo(run.into()));
                self.index.remove_run(RunNo(run.into()));
            }
            Act::AddHost(host, namespace, kind, slots) => {
                if !self.hosts.contains_key(&host) {
                    let namespace = NAMESPACES[namespace as usize];
                    self.sessions += 1;
                    let session = SessionId(self.sessions);
                    self.add((host, session), namespace, offer(kind, host), slots.into());
                }
            }
            Act::RemoveHost(host) => {
                self.remove(host);
            }
            Act::Resume(host, kind) => {
                if let Some(Host { session, namespace, numbers, .. }) = self.remove(host) {
                    self.add((host, session), namespace, offer(kind, host), numbers.len());
                }
            }
        }
    }

    fn add(
        &mut self,
        (host, session): (u8, SessionId),
        namespace: &'static str,
        offer: (SlotOffer, StoreAccess),
        slots: usize,
    ) {
        let add =
            |number| self.index.add_slot(namespace, &offer.0, &offer.1, slot_of(session, number));
        let numbers = (0..slots).map(add).collect();
        self.hosts.insert(host, Host { session, namespace, offer, numbers });
    }

    fn remove(&mut self, host: u8) -> Option<Host> {
        let gone = self.hosts.remove(&host)?;
        for (number, offer) in gone.numbers.iter().enumerate() {
            self.index.remove_slot(*offer, slot_of(gone.session, number));
        }
        Some(gone)
    }

    fn slots(&self) -> impl Iterator<Item = (SlotRef, OfferNo, &Host)> {
        self.hosts.values().flat_map(|host| {
            let slots = host.numbers.iter().enumerate();
            slots.map(move |(number, offer)| (slot_of(host.session, number), *offer, host))
        })
    }

    fn cohorts(&self) -> BTreeMap<SlotRef, CohortNo> {
        let cohort = |offer| self.index.cohort(offer).expect("each slot has one");
        self.slots().map(|(slot, offer, _)| (slot, cohort(offer))).collect()
    }

    fn fits(host: &Host, run: &OpenRun) -> bool {
        host.namespace == run.namespace && host.offer.0.fits(&run.spec, &host.offer.1).is_ok()
    }

    /// Compares the index with the expected result.
    fn check(&self) {
        let needs = |host: &Host| -> BTreeSet<NeedKey> {
            let fitting = self.runs.values().filter(|run| Self::fits(host, run));
            fitting.map(|run| NeedKey::of(run.namespace, &run.spec)).collect()
        };
        let (mut of_cohort, mut of_needs) = (BTreeMap::new(), BTreeMap::new());
        for (slot, offer, host) in self.slots() {
            let cohort = self.index.cohort(offer).expect("a cohort");
            let key = (host.namespace, needs(host));
            assert_eq!(of_cohort.entry(cohort).or_insert(key.clone()), &key, "{slot:?}");
            assert_eq!(of_needs.entry(key).or_insert(cohort), &cohort, "{slot:?}");
            let fitting = self.runs.values().filter(|run| Self::fits(host, run));
            let mut turns: Vec<Turn> = fitting.filter_map(|run| run.turn).collect();
            turns.sort_unstable();
            assert_eq!(self.index.turns_at(cohort).collect::<Vec<_>>(), turns, "{slot:?}");
            for priority in 0..3 {
                let of_priority = turns.iter().filter(|turn| turn.priority.0 == priority).copied();
                let listed: Vec<Turn> = self.index.turns_of_priority(cohort, priority).collect();
                assert_eq!(listed, of_priority.collect::<Vec<_>>(), "{slot:?}");
            }
            let giving: Vec<_> = self.index.giving(cohort, None).collect();
            let mut firsts = BTreeMap::new();
            for turn in &turns {
                firsts.entry(self.index.need(turn.run).expect("a need")).or_insert(*turn);
            }
            let mut firsts: Vec<_> = firsts.into_iter().map(|(need, turn)| (turn, need)).collect();
            firsts.sort_unstable();
            assert_eq!(giving, firsts, "{slot:?}");
            for at in 0..giving.len() {
                let after: Vec<_> = self.index.giving(cohort, Some(giving[at].0)).collect();
                assert_eq!(after, giving[at + 1..]);
            }
        }
        for (no, run) in &self.runs {
            let fitting = self.slots().filter(|(_, _, host)| Self::fits(host, run));
            let fitting: BTreeSet<SlotRef> = fitting.map(|(slot, _, _)| slot).collect();
            let listed: Vec<SlotRef> = self.index.slots_for(*no).collect();
            assert_eq!(listed.len(), fitting.len(), "a slot is listed twice");
            assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), fitting, "{no}");
            for (slot, offer, host) in self.slots() {
                assert_eq!(self.index.fits(offer, *no), Self::fits(host, run), "{slot:?} {no}");
            }
            let cohorts: BTreeSet<CohortNo> = self.index.cohorts(*no).collect();
            let of_slots = self.cohorts();
            assert_eq!(cohorts, fitting.iter().map(|slot| of_slots[slot]).collect());
        }
        for namespace in NAMESPACES {
            let turns = self.runs.values().filter(|run| run.namespace == namespace);
            let turns = turns.filter_map(|run| run.turn);
            let priorities: BTreeSet<u8> = turns.map(|turn| turn.priority.0).collect();
            assert_eq!(self.index.priorities(namespace), priorities);
            let cohorts: BTreeSet<CohortNo> = self.index.cohorts_in(namespace).collect();
            let of = self.index.cohorts.iter().filter(|(_, c)| c.namespace == namespace);
            assert_eq!(cohorts, of.map(|(number, _)| *number).collect());
            let of = self.slots().filter(|(_, _, host)| host.namespace == namespace);
            let routes: BTreeSet<String> = of
                .flat_map(|(_, _, host)| host.offer.0.routes().into_iter().map(str::to_owned))
                .collect();
            assert!(self.index.routes(namespace).eq(routes.iter().map(String::as_str)));
            for route in ["/v1/embeddings", "/v1/score", "/v1/responses"] {
                assert_eq!(self.index.has_route(namespace, route), routes.contains(route));
            }
            let shapes = self.index.shapes_in(namespace);
            let mut listed: Vec<SlotRef> = shapes
                .flat_map(|(shape, offers)| {
                    offers.inspect(|(offer, _, _)| {
                        assert_eq!(offer.models, shape.models);
                        assert_eq!(offer.tasks, shape.tasks);
                        assert_eq!(offer.ineligible, shape.ineligible);
                        assert_eq!(offer.routes(), shape.routes());
                    })
                })
                .flat_map(|(_, _, slots)| slots.iter().copied())
                .collect();
            listed.sort_unstable();
            let mine = self.slots().filter(|(_, _, host)| host.namespace == namespace);
            let mut mine: Vec<SlotRef> = mine.map(|(slot, _, _)| slot).collect();
            mine.sort_unstable();
            assert_eq!(listed, mine);
        }
        self.index.check_parts();
    }
}

impl Eligibility {
    /// Each thing that is kept twice is the same in both places, and nothing is left of what is gone.
    fn check_parts(&self) {
        for (number, cohort) in &self.cohorts {
            let key = (cohort.namespace.clone(), cohort.needs.clone());
            assert_eq!(self.cohort_numbers.get(&key), Some(number));
            assert!(!cohort.offers.is_empty() && cohort.offers.values().all(|o| !o.is_empty()));
            for (shape, offers) in &cohort.offers {
                for offer in offers {
                    assert_eq!(
                        (self.offers[offer].cohort, self.offers[offer].shape),
                        (*number, *shape)
                    );
                    assert!(self.shapes[shape].offers.contains(offer));
                }
            }
            let listed = cohort.firsts.is_some();
            assert_eq!(listed, cohort.needs.len() > turns::FEW_NEEDS);
            let mut firsts = BTreeMap::new();
            for need in &cohort.needs {
                assert!(self.family_of(*need).is_some_and(|f| f.cohorts.contains(number)));
                assert_eq!(self.needs[need].listed.contains(number), listed);
                for turn in &self.needs[need].turns {
                    let known = firsts.iter().any(|(first, of): (&Turn, &NeedNo)| {
                        of == need && first.priority == turn.priority
                    });
                    if !known {
                        firsts.insert(*turn, *need);
                    }
                }
            }
            assert!(cohort.firsts.as_ref().is_none_or(|kept| *kept == firsts));
        }
        for (number, need) in &self.needs {
            assert_eq!(self.need_numbers.get(&need.key), Some(number));
            let cohorts = &self.families[&need.family].cohorts;
            assert!(cohorts.iter().all(|c| self.cohorts[c].needs.contains(number)));
            assert!(need.listed.is_subset(cohorts));
        }
        self.check_families();
        let in_cohorts = self.cohorts.values().flat_map(|c| c.offers.values());
        assert_eq!(in_cohorts.map(BTreeSet::len).sum::<usize>(), self.offers.len());
        let in_shapes = self.shapes.values().map(|shape| shape.offers.len());
        assert_eq!(in_shapes.sum::<usize>(), self.offers.len());
        assert_eq!(self.cohort_numbers.len(), self.cohorts.len());
        assert_eq!(self.need_numbers.len(), self.needs.len());
        assert_eq!(self.offer_numbers.len(), self.offers.len());
        assert_eq!(self.shape_numbers.len(), self.shapes.len());
        let mut routes = routes::RouteCounts::default();
        self.offers.values().for_each(|offer| routes.add(&offer.key.namespace, &offer.key.offer));
        assert_eq!(self.routes, routes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_index_equals_a_comparison_of_every_run_with_every_slot(acts in acts()) {
        let mut both = Both::default();
        for act in acts {
            let (before, version) = (both.cohorts(), both.index.version());
            both.act(&act);
            both.check();
            let after = both.cohorts();
            let moved = after.iter().any(|(slot, now)| {
                before.get(slot).is_some_and(|before| before != now)
            });
            prop_assert_eq!(both.index.version() != version, moved, "{:?}", act);
        }
    }
}

/// An index with this many hosts of one slot, each with its own label. `model_of` gives the model that each offers.
fn fleet(hosts: u32, model_of: impl Fn(u32) -> &'static str) -> Eligibility {
    let mut index = Eligibility::default();
    for host in 0..hosts {
        let offer = SlotOffer {
            models: vec![model_of(host).into()],
            labels: labels(&[("instance_id", &format!("i-{host}"))]),
            ..SlotOffer::default()
        };
        let slot = SlotRef { session: SessionId(host.into()), slot: SlotNo(0) };
        index.add_slot("a", &offer, &StoreAccess::default(), slot);
    }
    index.work = Work::default();
    index
}

impl Eligibility {
    /// The cost of adding or removing the first run of a need.
    fn cost_of(&mut self, change: impl FnOnce(&mut Self)) -> (usize, usize, usize) {
        self.work = Work::default();
        change(self);
        let Work { rekeyed, moved, compared } = self.work;
        (rekeyed, moved, compared)
    }
}

#[test]
fn a_need_that_comes_or_goes_moves_no_host_where_all_meet_it() {
    let mut index = fleet(1000, |_| "*");
    let model = |n: u32| {
        let engine = EngineSpec { model: format!("m{n}"), ..EngineSpec::default() };
        RunSpec { engine, ..RunSpec::default() }
    };
    let version = index.version();
    for n in 0..50 {
        let cost = index.cost_of(|index| index.set_run(RunNo(n), ("a", &model(n)), None));
        assert_eq!(cost, (1, 0, 0), "rekeyed, moved, compared");
    }
    for n in 0..50 {
        assert_eq!(index.cost_of(|index| index.remove_run(RunNo(n))), (1, 0, 0));
    }
    assert_eq!(index.version(), version, "no slot is in another cohort");
    assert_eq!(index.cohorts.len(), 1);
}

#[test]
fn a_run_that_needs_a_route_is_compared_with_no_host_one_by_one() {
    let mut index = Eligibility::default();
    let slot = |host: u32| SlotRef { session: SessionId(host.into()), slot: SlotNo(0) };
    for host in 0..1000 {
        let routes = if host < 300 { "/v1/embeddings /v1/score" } else { "/v1/chat/completions" };
        let offer = SlotOffer {
            models: vec!["m".into()],
            labels: labels(&[("instance_id", &format!("i-{host}"))]),
            versions: labels(&[("routes", routes)]),
            ..SlotOffer::default()
        };
        index.add_slot("a", &offer, &StoreAccess::default(), slot(host));
    }
    let mut embeds = spec(0);
    embeds.require_route("/v1/embeddings");
    let cost = index.cost_of(|index| index.set_run(RunNo(1), ("a", &embeds), None));
    assert_eq!(cost, (1, 300, 0), "rekeyed, moved, compared");
    assert!(index.slots_for(RunNo(1)).eq((0..300).map(slot)));
    let mut none = spec(0);
    none.require_route("/v1/responses");
    assert_eq!(index.cost_of(|index| index.set_run(RunNo(2), ("a", &none), None)), (0, 0, 0));
    assert_eq!(index.slots_for(RunNo(2)).count(), 0);
    index.check_parts();
}

#[test]
fn a_need_that_some_hosts_meet_moves_the_smaller_side() {
    let mut index = fleet(1000, |host| if host < 300 { "m" } else { "n" });
    let run = |kind| (RunNo(kind), spec(kind as u8));
    let comes = |index: &mut Eligibility, kind| {
        let (no, spec) = run(kind);
        index.cost_of(|index| index.set_run(no, ("a", &spec), None))
    };
    assert_eq!(comes(&mut index, 0), (1, 300, 0), "those of m leave the others");
    assert_eq!(comes(&mut index, 1), (1, 0, 0), "those of n are a cohort already");
    assert_eq!(comes(&mut index, 2), (0, 0, 0), "no slot has it");
    // Hosts are compared one by one if a need depends on what differs between them.
    let pinned = RunSpec { selector: labels(&[("instance_id", "i-7")]), ..spec(0) };
    let cost = index.cost_of(|index| index.set_run(RunNo(9), ("a", &pinned), None));
    assert_eq!(cost, (1, 1, 300));
    assert_eq!(index.cost_of(|index| index.remove_run(RunNo(9))), (1, 1, 0));
    assert_eq!(index.cost_of(|index| index.remove_run(RunNo(0))), (1, 0, 0));
    assert_eq!(
        index.cost_of(|index| index.remove_run(RunNo(1))),
        (1, 300, 0),
        "they are one again"
    );
    index.check_parts();
}

#[test]
fn the_next_turn_of_a_priority_costs_the_same_for_any_number_of_needs() {
    let mut index = fleet(10, |_| "*");
    for n in 0..500 {
        let (priority, run) = (Reverse((n % 10) as u8), RunNo(n));
        let engine = EngineSpec { model: format!("m{n}"), ..EngineSpec::default() };
        let spec = RunSpec { engine, ..RunSpec::default() };
        let turn = Turn { priority, time: u64::from(1000 - n), run };
        index.set_run(run, ("a", &spec), Some(turn));
    }
    let cohort = index.cohorts_in("a").next().expect("one");
    for priority in 0..10 {
        let visits = visits_of(|| {
            let next = index.turns_of_priority(cohort, priority).next().expect("it has some");
            assert_eq!(next.run, RunNo(490 + u32::from(priority)));
        });
        assert!(visits <= 2, "{visits} visits");
    }
}
