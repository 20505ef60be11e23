//! Tests of keeping and reporting rows of bugs.

use super::*;

fn conditions() -> Conditions {
    let (workloads, nemesis) = (vec!["item".to_owned()], "kill".to_owned());
    let (member, suite) = ("aa".to_owned(), "bb".to_owned());
    Conditions { seeds: 5, secs: 90, workloads, nemesis, member, suite }
}

fn row(bug: &str) -> Row {
    Row::new(bug, conditions())
}

fn open(dir: &Path) -> Matrix {
    Matrix::open(dir, |_| conditions()).expect("a matrix").0
}

#[test]
fn an_unknown_or_cut_run_is_no_detection_and_earlier_detections_stay() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut matrix = open(dir.path());
    let mut cut = row("a");
    (cut.cut, cut.unknown) = (true, 1);
    matrix.add(cut).expect("a row");
    assert!(!matrix.is_decided("a"), "it has to be run again");
    assert_eq!(matrix.status(|_| true), 2);
    let alarms = vec!["2 different states at log index 7".to_owned()];
    let found = Some(Detection { seed: 1, workload: "item".into(), alarms });
    matrix.add(Row { found, ..row("a") }).expect("a row");
    assert_eq!(matrix.status(|_| true), 0);
    let again = open(dir.path());
    assert!(again.is_decided("a"));
    assert!(again.table().contains("digests"), "{}", again.table());
    matrix.add(Row { unknown: 1, ..row(super::super::CLEAN) }).expect("a row");
    assert_eq!(matrix.status(|_| true), 2, "a run that is no pass clears nobody");
    matrix.add(row(super::super::CLEAN)).expect("a row");
    assert_eq!(matrix.status(|_| true), 0);
    let alarms = vec!["c1 panicked".to_owned()];
    let found = Some(Detection { seed: 2, workload: "item".into(), alarms });
    matrix.add(Row { found, ..row(super::super::CLEAN) }).expect("a row");
    assert_eq!(matrix.status(|_| true), 1);
}

#[test]
fn a_result_of_other_programs_or_of_another_plan_is_measured_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut matrix = open(dir.path());
    for bug in ["a", super::super::CLEAN] {
        matrix.add(row(bug)).expect("a row");
    }
    let others: [fn(&mut Conditions); 6] = [
        |c| c.seeds = 2,
        |c| c.secs = 30,
        |c| c.workloads.push("run".into()),
        |c| c.nemesis = "none".into(),
        |c| c.member = "cc".into(),
        |c| c.suite = "cc".into(),
    ];
    for change in others {
        let mut other = conditions();
        change(&mut other);
        let (matrix, forgotten) = Matrix::open(dir.path(), |_| other.clone()).expect("a matrix");
        assert!(!matrix.is_decided("a") && forgotten == 2, "{other:?}");
    }
    let clean_alone = |bug: &str| match bug {
        super::super::CLEAN => conditions(),
        _ => Conditions { member: "cc".into(), ..conditions() },
    };
    let (matrix, forgotten) = Matrix::open(dir.path(), clean_alone).expect("a matrix");
    assert!(forgotten == 1 && matrix.is_decided(super::super::CLEAN) && !matrix.is_decided("a"));
    // A row of an older format does not have its conditions.
    let old = r#"{"bug":"a","found":null,"runs":1,"broken":0,"unknown":0,"secs":1,"cut":false}"#;
    std::fs::write(dir.path().join(ROWS), old).expect("a file");
    assert!(!open(dir.path()).is_decided("a"));
}

#[test]
fn the_status_covers_only_the_selected_bugs() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut matrix = open(dir.path());
    let found = || {
        let alarms = vec!["c1 panicked".to_owned()];
        Some(Detection { seed: 1, workload: "item".into(), alarms })
    };
    matrix.add(row("missed")).expect("a row");
    matrix.add(Row { found: found(), ..row("found") }).expect("a row");
    let status = |matrix: &Matrix, only: &[&str]| matrix.status(|bug| only.contains(&bug));
    assert_eq!(status(&matrix, &["found"]), 0);
    assert_eq!(status(&matrix, &["missed"]), 2);
    assert_eq!(status(&matrix, &["missed", "found"]), 2);
    let clean = super::super::CLEAN;
    matrix.add(Row { found: found(), ..row(clean) }).expect("a row");
    assert_eq!(status(&matrix, &["found"]), 0, "the alarm of an earlier call");
    assert_eq!(status(&matrix, &["found", clean]), 1);
}

#[test]
fn a_bug_with_failed_runs_and_no_detection_is_measured_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut matrix = open(dir.path());
    let alarms = vec!["c1 panicked".to_owned()];
    let found = Some(Detection { seed: 2, workload: "item".into(), alarms });
    let clean = super::super::CLEAN;
    for bug in ["missed", clean] {
        matrix.add(Row { broken: 1, runs: 40, ..row(bug) }).expect("a row");
        assert!(!open(dir.path()).is_decided(bug), "{bug}");
        assert_eq!(matrix.status(|one| one == bug), 2, "{bug}");
        matrix.add(Row { runs: 40, unknown: 1, ..row(bug) }).expect("a row");
        assert!(open(dir.path()).is_decided(bug), "{bug}: it was measured");
    }
    matrix.add(Row { broken: 1, found, ..row("found") }).expect("a row");
    assert!(open(dir.path()).is_decided("found"), "one run is enough");
}

#[test]
fn a_program_is_identified_by_its_content() {
    let dir = tempfile::tempdir().expect("a directory");
    let told = |text: &str| {
        std::fs::write(dir.path().join("p"), text).expect("a file");
        digest(&dir.path().join("p")).expect("a digest")
    };
    let (one, other) = (told("one"), told("other"));
    assert!(one != other && one == told("one") && one.len() == 16);
    assert!(digest(&dir.path().join("absent")).is_err());
}
