//! Tests of the plans and verdicts of a matrix.

use super::*;
use std::collections::BTreeSet;

fn args() -> Args {
    Args {
        budget: Duration::from_secs(3600),
        out: PathBuf::new(),
        secs: 60,
        seed: 7,
        workload: Vec::new(),
        nemesis: vec![Family::All, Family::Rolling, Family::Membership],
        all_pairs: false,
        jobs: 1,
        bin: None,
    }
}

#[test]
fn a_matrix_has_every_workload_under_each_family_and_under_all_with_a_seed_of_its_own() {
    let families = Family::expanded(&args().nemesis);
    let cells = WorkloadName::ALL.len() * (families.len() + 1);
    let plans: Vec<Plan> = (0..cells as u64).map(|number| plan(&args(), number)).collect();
    let seen: BTreeSet<_> =
        plans.iter().map(|plan| (plan.workload.name(), plan.nemesis.clone())).collect();
    assert_eq!(seen.len(), cells);
    let seeds: Vec<u64> = plans.iter().map(|plan| plan.seed).collect();
    assert_eq!(seeds, (7..7 + cells as u64).collect::<Vec<_>>());
    let long = |plan: &Plan| plan.nemesis.len() > 1 || plan.nemesis == [Family::Membership];
    assert!(plans.iter().all(|plan| plan.secs == if long(plan) { 90 } else { 60 }));
    let again = plan(&args(), cells as u64);
    assert_eq!((again.workload, again.nemesis), (plans[0].workload, plans[0].nemesis.clone()));
}

#[test]
fn a_violation_outweighs_what_is_unknown_and_what_could_not_be_made_is_no_pass() {
    let dir = tempfile::tempdir().unwrap();
    let status = |ends: &[Option<i32>]| {
        let pairs = [("item", "kill"), ("item", "power")];
        let pairs = pairs.map(|(workload, kind)| (workload.to_owned(), kind.to_owned()));
        let mut index = Index::new(dir.path(), pairs.to_vec());
        for (number, end) in ends.iter().enumerate() {
            let (name, took) = (format!("{number:03}"), Duration::from_secs(1));
            let run = dir.path().join(&name);
            index.add(Cell::of(name, "item", "kill", 1, *end, &run, took).unwrap()).unwrap();
        }
        let names: Vec<&str> =
            index.without_a_run().into_iter().map(|(_, kind)| kind.as_str()).collect();
        let made = ends.iter().any(|end| matches!(end, Some(0..=2)));
        assert_eq!(names, if made { vec!["power"] } else { vec!["kill", "power"] });
        assert_eq!(
            index.status(true),
            index.status(false).max(if index.status(false) == 1 { 1 } else { 2 })
        );
        index.status(false)
    };
    assert_eq!(status(&[None]), 2);
    assert_eq!(status(&[Some(0), Some(0)]), 0);
    assert_eq!(status(&[Some(0), Some(2)]), 2);
    assert_eq!(status(&[Some(0), Some(70)]), 2);
    assert_eq!(status(&[Some(0), None]), 2);
    assert_eq!(status(&[Some(2), Some(1), Some(0)]), 1);
    let page = std::fs::read_to_string(dir.path().join(index::PAGE)).unwrap();
    assert!(page.contains("3 runs: 1 passed, 1 violations, 1 unknown"), "{page}");
    assert!(
        page.contains("1 of 2 pairs had no run") && page.contains("no run of item under power"),
        "{page}"
    );
}

#[test]
fn a_budget_has_a_unit() {
    assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
    assert_eq!(span("45m"), Ok(Duration::from_secs(2700)));
    assert_eq!(span("1h"), Ok(Duration::from_secs(3600)));
    for wrong in ["", "1", "h", "1d", "-1s"] {
        assert!(span(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn few_runs_reach_each_workload_and_each_kind_of_fault_for_any_selection() {
    let plans: Vec<Plan> = (0..12).map(|number| plan(&args(), number)).collect();
    let kinds: BTreeSet<_> = plans.iter().map(|plan| plan.nemesis.clone()).collect();
    let workloads: BTreeSet<_> = plans[..8].iter().map(|plan| plan.workload.name()).collect();
    assert_eq!((kinds.len(), workloads.len()), (12, 8));
    // Includes cases in which one number divides the other, or both share a divisor.
    for (workloads, families) in [(8, 10), (4, 6), (3, 3), (1, 5), (6, 4), (8, 8)] {
        let nemesis = Family::expanded(&args().nemesis)[..families].to_vec();
        let workload = WorkloadName::ALL[..workloads].to_vec();
        let args = Args { workload, nemesis, ..args() };
        let all = pairs(&args);
        let seen: BTreeSet<_> = (0..all.len() as u64)
            .map(|number| plan(&args, number))
            .map(|plan| (plan.workload.name().to_owned(), kind(&plan.nemesis)))
            .collect();
        assert_eq!(seen, all.into_iter().collect(), "{workloads} workloads, {families} families");
    }
    let calm = Args { nemesis: vec![Family::None], ..args() };
    assert_eq!((pairs(&calm).len(), plan(&calm, 9).nemesis), (8, Vec::new()));
}
