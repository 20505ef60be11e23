//! Two of three members are dead or unreachable: the third stays alive, serves no requests that need a quorum, and
//! reports all that it can without the others.

use anyhow::{Context, Result, ensure};
use rollout_tests::{
    Batch, Fleet, FleetOptions, Process, Terminal, WorkerOptions, eventually, eventually_or_show,
    json_lines,
};
use std::process::Output;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `rolloutctl` with a context, not started yet.
fn operator(fleet: &Fleet, args: &[&str]) -> std::process::Command {
    let mut command = fleet.program("rolloutctl");
    command.arg("--context").arg(fleet.path("operator.toml")).args(args);
    command
}

/// Waits until a probe gets this answer.
fn probed(fleet: &Fleet, member: &str, path: &str, wanted: (u16, &str)) {
    eventually_or_show("a probe is answered as it should be", PATIENCE, |seen| {
        let answer = fleet.http(member, path).ok()?;
        *seen = format!("{member}{path}: {answer:?}");
        (answer == (wanted.0, format!("{}\n", wanted.1))).then_some(())
    });
}

/// Waits until all of this is on the screen.
fn on_screen(top: &Terminal, wanted: &[&str]) {
    eventually_or_show("it is on the screen", PATIENCE, |seen| {
        *seen = top.screen();
        wanted.iter().all(|text| seen.contains(text)).then_some(())
    });
}

/// Waits until the last line of a watch reports this health.
fn watched(watch: &Process, health: &str) {
    eventually_or_show("the watch says so", PATIENCE, |seen| {
        let lines = json_lines(&std::fs::read_to_string(&watch.log).ok()?);
        let last = lines.last()?["data"]["health"].as_str()?.to_owned();
        *seen = last;
        (seen == health && lines.len() >= 2).then_some(())
    });
}

/// Waits until all of a member's outputs agree on whether it hears a leader.
fn says_of_a_leader(fleet: &Fleet, member: &str, hears: bool, ready: (u16, &str)) {
    probed(fleet, member, "/readyz", ready);
    eventually_or_show("its metrics and its status say so", PATIENCE, |seen| {
        let leader = fleet.counted(member, "rollout_raft_has_leader");
        let alarm = fleet.counted(member, "rollout_alarm{kind=\"no_leader\"}");
        let out = fleet.ctl(&["--timeout", "2s", "-o", "json", "status"]).ok()?;
        let told: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
        let members = told["data"]["members"].as_array()?;
        let own = members.iter().find(|m| m["name"] == *member)?;
        *seen = format!("{leader:?} {alarm:?} {own}");
        let quorum = own["says"]["hasQuorum"].as_bool()?;
        (leader == Some(hears.into()) && alarm == Some((!hears).into()) && quorum == hears)
            .then_some(())
    });
}

/// Checks that read-only commands work and mark the members' data as unconfirmed, and that a change reports that
/// there is no leader.
fn what_is_said(fleet: &Fleet, alone: &str, dead: &[String]) -> Result<()> {
    let ctl =
        |args: &[&str]| -> Result<Output> { fleet.ctl(&[&["--timeout", "2s"], args].concat()) };
    let alarms = fleet.ctl_json(&["--timeout", "2s", "alarm", "list"])?;
    let of = |kind: &str| -> Vec<&str> {
        let all = alarms["alarms"].as_array().into_iter().flatten();
        all.filter(|a| a["kind"] == kind).map(|a| a["member"].as_str().unwrap_or("-")).collect()
    };
    ensure!(of("NO_LEADER") == ["-"] && of("MEMBER_UNREACHABLE") == dead, "{alarms}");
    ensure!(ctl(&["alarm", "list", "--exit-code"])?.status.code() == Some(1));
    let stats = fleet.ctl_json(&["--timeout", "2s", "storage", "stats"])?;
    for member in stats["members"].as_array().context("members")? {
        let answers = member["name"] == *alone;
        ensure!(member["problem"].is_null() == answers, "{member}");
        ensure!((member["residentBytes"] != "0") == answers, "{member}");
    }
    // All three members, as the last one knows them, marked as unconfirmed.
    let list = ctl(&["member", "list", "-o", "name"])?;
    ensure!(list.status.code() == Some(3) && text(&list.stdout) == "c1\nc2\nc3\n", "{list:?}");
    ensure!(text(&list.stderr).contains("not confirmed"), "{list:?}");
    let run = fleet.ctl(&["--timeout", "2s", "-o", "json", "run", "describe", "eval"])?;
    let told: serde_json::Value = serde_json::from_slice(&run.stdout)?;
    ensure!(
        run.status.code() == Some(3) && told["data"]["run"]["counts"]["done"] == "600",
        "{told}"
    );
    ensure!(told["data"]["unconfirmed"]["member"] == *alone, "{told}");
    let unconfirmed = |args: &[&str]| -> Result<serde_json::Value> {
        let out = fleet.ctl(&[&["--timeout", "2s", "-o", "json"], args].concat())?;
        ensure!(out.status.code() == Some(3), "{args:?}: {out:?}");
        let told: serde_json::Value = serde_json::from_slice(&out.stdout)?;
        ensure!(told["data"]["unconfirmed"]["member"] == *alone, "{args:?}: {told}");
        Ok(told["data"].clone())
    };
    // Two pages, both from the same member.
    let done = unconfirmed(&["item", "list", "eval", "--state", "done", "--limit", "0"])?;
    ensure!(done["items"].as_array().map(Vec::len) == Some(600), "{done}");
    let item = unconfirmed(&["item", "describe", "eval", "7"])?;
    ensure!(item["row"] == "7" && item["state"] == "done", "{item}");
    let datasets = unconfirmed(&["dataset", "list"])?;
    ensure!(datasets["datasets"][0]["name"] == "pile", "{datasets}");
    let dataset = unconfirmed(&["dataset", "describe", "pile"])?;
    ensure!(dataset["dataset"]["name"] == "pile", "{dataset}");
    ensure!(unconfirmed(&["shard", "list"])?["jobs"] == serde_json::json!([]));
    ensure!(unconfirmed(&["checkpoint", "list"])?["checkpoints"] == serde_json::json!([]));
    let none = ctl(&["dataset", "describe", "none"])?;
    ensure!(none.status.code() == Some(3) && none.stdout.is_empty(), "{none:?}");
    let pause = ctl(&["run", "pause", "eval"])?;
    ensure!(pause.status.code() == Some(3), "{pause:?}");
    Ok(())
}

#[test]
fn a_lone_member_is_alive_and_not_ready_and_says_what_it_can() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    Batch::submit(&fleet, "eval", 600, "")?.finish(&fleet)?;
    let pile = ["dataset", "create", "pile", "--uri", "file:///data/{shard:3}", "--samples", "95"];
    let made = fleet.ctl(&[&pile[..], &["--shard-samples", "10"]].concat())?;
    ensure!(made.status.success(), "{made:?}");
    let alone = fleet.leader();
    let dead: Vec<String> = fleet.member_names().into_iter().filter(|n| *n != alone).collect();
    probed(&fleet, &alone, "/readyz", (200, "leading"));
    for name in &dead {
        probed(&fleet, name, "/readyz", (200, &format!("following {alone}")));
    }
    for name in fleet.member_names() {
        probed(&fleet, &name, "/healthz", (200, "ok"));
    }
    let log = fleet.path("watch.log");
    let watch = operator(&fleet, &["--timeout", "2s", "status", "--watch=200ms", "-o", "json"]);
    let mut watch = Process::start(watch, &log)?;
    watched(&watch, "healthy");
    let top = operator(&fleet, &["top", "--every", "200ms"]);
    let mut top = Terminal::start(top, &fleet.path("top.log"))?;
    on_screen(&top, &["healthy", "eval", "w1", "c1", "c2", "c3"]);

    for name in &dead {
        fleet.member_process(name).kill();
    }
    probed(&fleet, &alone, "/readyz", (503, "no leader"));
    probed(&fleet, &alone, "/healthz", (200, "ok"));
    eventually("its metrics say so too", PATIENCE, || {
        (fleet.counted(&alone, "rollout_raft_is_leader") == Some(0)).then_some(())
    });
    watched(&watch, "no leader");
    on_screen(&top, &["no leader", "runs     unknown:", "workers  unknown:"]);
    what_is_said(&fleet, &alone, &dead)?;
    // No supervisor restarts the member for that: it is still alive after all of these requests.
    ensure!(fleet.member_process(&alone).runs());

    fleet.start_member(&dead[0])?;
    watched(&watch, "degraded");
    on_screen(&top, &["degraded", "eval", "w1"]);
    let leader = fleet.leader();
    probed(&fleet, &leader, "/readyz", (200, "leading"));
    ensure!(watch.interrupt(PATIENCE)?.success(), "{}", watch.log_tail());
    top.press("?")?;
    on_screen(&top, &["sort by another column"]);
    top.press("?s")?;
    on_screen(&top, &["by name", "q quit"]);
    top.press("q")?;
    ensure!(top.process.wait(PATIENCE)?.success(), "{}", top.shown());
    let restored = |top: &Terminal| {
        eventually("the terminal is as it was before", PATIENCE, || {
            top.shown().trim_end().ends_with("\x1b[?25h\x1b[?1049l").then_some(())
        });
    };
    restored(&top);

    // A signal ends it too, and without colors it sends no color codes.
    let mut plain = operator(&fleet, &["top", "--every", "200ms"]);
    plain.env("NO_COLOR", "1");
    let mut top = Terminal::start(plain, &fleet.path("plain.log"))?;
    on_screen(&top, &["degraded", "eval"]);
    ensure!(top.process.interrupt(PATIENCE)?.success(), "{}", top.shown());
    restored(&top);
    let styles = ["\x1b[38;5;", "\x1b[1m", "\x1b[2m", "\x1b[7m"];
    ensure!(!styles.iter().any(|style| top.shown().contains(style)), "{}", top.shown());
    fleet.passed()
}

#[test]
fn a_follower_that_is_left_over_or_cut_off_says_that_it_hears_no_leader() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
    let leader = fleet.leader();
    let mut others = fleet.member_names().into_iter().filter(|name| *name != leader);
    let (alone, other) = (others.next().context("a follower")?, others.next().context("another")?);
    let following = format!("following {leader}");
    says_of_a_leader(&fleet, &alone, true, (200, &following));

    // The member that it reaches still hears the leader, so the two elect no other leader.
    fleet.set_cut(&alone, &leader, true);
    says_of_a_leader(&fleet, &alone, false, (503, "no leader"));
    says_of_a_leader(&fleet, &other, true, (200, &following));
    fleet.set_cut(&alone, &leader, false);
    says_of_a_leader(&fleet, &alone, true, (200, &following));
    ensure!(fleet.leader() == leader, "the member that was cut off deposed the leader");

    // Both others are dead, the leader last: no other member became leader.
    fleet.member_process(&other).kill();
    fleet.member_process(&leader).kill();
    says_of_a_leader(&fleet, &alone, false, (503, "no leader"));
    probed(&fleet, &alone, "/healthz", (200, "ok"));
    fleet.start_member(&other)?;
    let next = fleet.leader();
    says_of_a_leader(&fleet, &next, true, (200, "leading"));
    fleet.passed()
}
