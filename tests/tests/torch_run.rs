//! torchrun's agents and their trainers, with gloo. `make test-torch` runs this, and fails if torch is not available.

use anyhow::{Result, ensure};
use rollout_tests::torch::{Running, SLOW, gateway, python, script};
use rollout_tests::{Fleet, FleetOptions, eventually, output};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// An agent with two trainers, each of which all-reduces `steps` times.
fn agent(name: &str, rendezvous: &[&str], steps: u32) -> Command {
    let mut command = python();
    command.args(["-m", "torch.distributed.run"]);
    with_trainers(command, name, rendezvous, steps)
}

fn with_trainers(mut command: Command, name: &str, rendezvous: &[&str], steps: u32) -> Command {
    // A trainer whose agent is dead has no parent, and would outlive a failed test.
    command.env("TEST_PID", std::process::id().to_string()).env("TEST_AGENT", name);
    command.args(["--nproc-per-node=2", "--max-restarts=5", "--local-addr=127.0.0.1"]);
    command.args(rendezvous).arg(script("train.py")).arg(steps.to_string());
    command
}

#[test]
fn stock_agents_meet_through_gateways_though_the_leader_is_killed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let (_one, first) = gateway(&fleet, "gateway-1")?;
    let (_two, second) = gateway(&fleet, "gateway-2")?;
    let options = |addr: &str| {
        let endpoint = format!("--rdzv-endpoint={addr}");
        let conf = "--rdzv-conf=is_host=0,last_call_timeout=1";
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=stock", conf, &endpoint].map(str::to_owned)
    };
    let start = |fleet: &Fleet, name: &str, addr: &str| {
        let options = options(addr);
        Running::start(fleet, name, agent(name, &options.each_ref().map(String::as_str), 400))
    };
    let mut agents = vec![start(&fleet, "agent-1", &first)?];
    // Kill during the rendezvous: one agent has written its part, the other has not.
    let mut state = Running::script(
        &fleet,
        "state",
        "store.py",
        &["await_key", &first, "torch.rendezvous.stock"],
    )?;
    state.finish()?;
    let killed = fleet.leader();
    fleet.member_process(&killed).kill();
    agents.push(start(&fleet, "agent-2", &second)?);
    agents.iter().for_each(|agent| drop(agent.until_it_says("step 50 of world 4")));
    fleet.start_member(&killed)?;
    // Kill again during the job.
    let killed = fleet.leader();
    fleet.member_process(&killed).kill();
    for agent in &mut agents {
        agent.finish()?;
        assert_eq!(agent.lines("finished").len(), 2, "{}", agent.process.log_tail());
        assert_eq!(agent.lines("joined").len(), 2, "nobody had to begin again");
    }
    fleet.start_member(&killed)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn torchrun_finds_the_plug_in_and_its_options_mean_what_they_say() -> Result<()> {
    let mut command = python();
    command.arg(script("handler.py"));
    let ran = output(command, SLOW)?;
    let stderr = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success() && stderr.contains("test_defaults_are_torchs"), "{stderr}");
    Ok(())
}

/// Agents of the plug-in, each with two trainers that all-reduce until [`Job::stop`].
struct Job {
    options: Vec<String>,
    stop: PathBuf,
}

impl Job {
    fn new(fleet: &Fleet, nodes: &str) -> Self {
        let members = fleet.member_names();
        let members: Vec<_> = members.iter().map(|name| fleet.client_addr(name)).collect();
        let context = fleet.path("user.toml");
        let conf = format!(
            "--rdzv-conf=context={},last_call_timeout=2,keep_alive_interval=2",
            context.display()
        );
        let options = vec![
            "--rdzv-backend=rollout".to_owned(),
            "--rdzv-id=elastic".to_owned(),
            format!("--nnodes={nodes}"),
            format!("--rdzv-endpoint={}", members.join(",")),
            conf,
        ];
        Self { options, stop: fleet.path("stop") }
    }

    fn agent(&self, fleet: &Fleet, name: &str) -> Result<Running> {
        Running::start(fleet, name, self.command(name))
    }

    fn command(&self, name: &str) -> Command {
        let options: Vec<_> = self.options.iter().map(String::as_str).collect();
        let mut command = agent(name, &options, 1_000_000);
        command.env("TEST_STOP", &self.stop);
        command
    }

    /// An agent that waits at most this long for the others when its trainers have ended.
    fn impatient(&self, name: &str, exit_barrier_s: u64) -> Command {
        let options: Vec<_> = self.options.iter().map(String::as_str).collect();
        let mut command = python();
        command.arg(script("agent.py")).env("TEST_EXIT_BARRIER", exit_barrier_s.to_string());
        let mut command = with_trainers(command, name, &options, 1_000_000);
        command.env("TEST_STOP", &self.stop);
        command
    }

    /// The trainers see it, and all end with the same step.
    fn stop(&self, agents: &mut [Running]) -> Result<()> {
        std::fs::write(&self.stop, "")?;
        for agent in agents {
            agent.finish()?;
            assert_eq!(agent.lines("finished").len(), 2, "{}", agent.process.log_tail());
        }
        Ok(())
    }
}

/// The processes of all trainers that an agent has started.
fn trainers(agent: &Running) -> Vec<i32> {
    let lines = agent.lines("joined");
    let pid = |line: &String| line.split(" pid ").nth(1)?.split(' ').next()?.parse().ok();
    lines.iter().filter_map(pid).collect()
}

/// Those that still run.
fn living(agent: &Running) -> Vec<i32> {
    trainers(agent).into_iter().filter(|pid| runs(*pid)).collect()
}

fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z")
}

fn kill(pids: &[i32]) {
    for pid in pids.iter().filter(|pid| runs(**pid)) {
        // SAFETY: a signal to a process that this test's agent started.
        unsafe { libc::kill(*pid, libc::SIGKILL) };
    }
}

/// The output of trainers of a single agent.
const SMALLER: &str = "step 20 of world 2";

/// Waits until there are more than `before` such lines, because the job may have started with one agent.
fn until_again(agent: &Running, begin: &str, before: usize) {
    eventually(&format!("{begin:?} again"), SLOW, || {
        (agent.lines(begin).len() > before).then_some(())
    });
}

fn until_participants(fleet: &Fleet, name: &str, count: &str) -> Result<()> {
    let context = fleet.path("user.toml").display().to_string();
    Running::script(fleet, name, "participants.py", &[&context, "elastic", count])?.finish()
}

#[test]
fn agents_of_the_plug_in_meet_though_the_leader_is_killed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let job = Job::new(&fleet, "2");
    let mut agents = vec![job.agent(&fleet, "agent-1")?];
    until_participants(&fleet, "joining", "1")?;
    // Kill during the rendezvous: one agent waits for the other.
    let killed = fleet.leader();
    fleet.member_process(&killed).kill();
    agents.push(job.agent(&fleet, "agent-2")?);
    agents.iter().for_each(|agent| drop(agent.until_it_says("step 50 of world 4")));
    fleet.start_member(&killed)?;
    // Kill again during the job: no trainer has to start again.
    let killed = fleet.leader();
    fleet.member_process(&killed).kill();
    fleet.leader_other_than(&killed);
    agents.iter().for_each(|agent| drop(agent.until_it_says("step 400 of world 4")));
    job.stop(&mut agents)?;
    for agent in &agents {
        assert_eq!(agent.lines("joined").len(), 2, "{}", agent.process.log_tail());
        assert!(agent.says("joined").is_some_and(|line| line.contains(" of store 127.")));
    }
    fleet.start_member(&killed)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_lost_host_is_done_without_and_taken_in_again() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let job = Job::new(&fleet, "1:2");
    let mut agents = vec![job.agent(&fleet, "agent-1")?, job.agent(&fleet, "agent-2")?];
    agents.iter().for_each(|agent| drop(agent.until_it_says("step 20 of world 4")));
    let lost = trainers(&agents[1]);
    let smaller = agents[0].lines(SMALLER).len();
    agents[1].process.kill();
    kill(&lost);
    until_again(&agents[0], SMALLER, smaller);
    // It is back, and the job grows.
    let before = agents[0].lines("joined agent-1").len();
    agents[1] = job.agent(&fleet, "agent-2-again")?;
    agents[1].until_it_says("step 20 of world 4");
    let grown = agents[0].lines("joined agent-1").split_off(before);
    assert!(grown.iter().all(|line| line.contains(" of 4 ")), "{grown:?}");
    job.stop(&mut agents)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn trainers_work_on_when_another_host_has_ended_and_waits_for_them_no_longer() -> Result<()> {
    const EXIT_BARRIER_S: u64 = 2;
    let fleet = Fleet::start(FleetOptions::default())?;
    let job = Job::new(&fleet, "2");
    let enough = fleet.path("enough");
    let mut second = job.impatient("agent-2", EXIT_BARRIER_S);
    second.env("TEST_WORKS_ON", &enough);
    let mut second = Running::start(&fleet, "agent-2", second)?;
    let first = job.impatient("agent-1", EXIT_BARRIER_S);
    let mut first = Running::start(&fleet, "agent-1", first)?;
    [&first, &second].iter().for_each(|agent| drop(agent.until_it_says("step 20 of world 4")));
    std::fs::write(&job.stop, "")?;
    second.until_it_says("works on");
    // Its agent has closed and left the rendezvous.
    first.finish()?;
    assert_eq!(first.lines("finished").len(), 2, "{}", first.process.log_tail());
    // torchrun checks ten times a second whether a new round is due.
    std::thread::sleep(Duration::from_secs(5));
    assert!(second.says("finished").is_none(), "they were to work until now");
    std::fs::write(&enough, "")?;
    second.finish()?;
    assert_eq!(second.lines("finished").len(), 2, "{}", second.process.log_tail());
    for agent in [first, second] {
        assert_eq!(agent.lines("joined").len(), 2, "nobody had to begin again");
    }
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn orphaned_trainers_of_an_agent_that_was_killed_do_not_join_the_next_round() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let job = Job::new(&fleet, "1:2");
    // The trainers of the second do not end when an all-reduce fails: they try to join again.
    let enough = fleet.path("enough");
    let mut second = job.command("agent-2");
    second.env("TEST_TRIES", &enough);
    let second = Running::start(&fleet, "agent-2", second)?;
    let mut agents = vec![job.agent(&fleet, "agent-1")?, second];
    agents.iter().for_each(|agent| drop(agent.until_it_says("step 20 of world 4")));
    let orphans = living(&agents[1]);
    assert_eq!(orphans.len(), 2, "{orphans:?}");
    let (smaller, said) = (agents[0].lines(SMALLER).len(), agents[1].lines("").len());
    agents[1].process.kill();
    until_again(&agents[0], SMALLER, smaller);
    // The other trainers are in the next round. Wait until each orphan has finished the attempt in progress and tried
    // once more.
    for pid in &orphans {
        let begin = format!("tried pid {pid}:");
        let before = agents[1].lines(&begin).len();
        until_again(&agents[1], &begin, before + 1);
    }
    std::fs::write(&enough, "")?;
    eventually("the orphans end", SLOW, || (!orphans.iter().any(|pid| runs(*pid))).then_some(()));
    let later = agents[1].lines("").split_off(said);
    assert!(!later.iter().any(|line| line.starts_with("joined")), "{later:?}");
    agents.truncate(1);
    job.stop(&mut agents)?;
    fleet.verify()?;
    fleet.passed()
}
