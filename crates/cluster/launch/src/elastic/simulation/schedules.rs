//! Seeded schedules of faults, and the conditions that must hold in the end.

use super::{Crash, Random, Simulation};
use crate::elastic::leader::Rules;
use crate::elastic::message::{Decision, WorkersEnd};
use crate::elastic::{Time, Timing};

const SCHEDULES: u64 = 1500;

fn rules(least: usize, most: usize, max_restarts: u32) -> Rules {
    Rules { least, most, max_restarts, timing: Timing::default(), endpoint_host: "n0".into(), agent: 0 }
}

fn seconds(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

fn failure() -> WorkersEnd {
    WorkersEnd::Failed { rank: None, code: 3, report: "exited with code 3".into() }
}

/// The faults of a schedule, besides nodes that join, crash and leave, slow messages and cut links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Menu {
    workers_fail: bool,
    leaders_crash: bool,
    /// The endpoint moves to another node while the old leader may live.
    two_leaders: bool,
}

/// One schedule: a minute or two of faults, then quiet.
fn check_schedule(seed: u64, menu: Menu) {
    let mut random = Random(seed ^ 0x5eed);
    let nodes = 2 + random.below(5);
    let least = 1 + random.below(nodes);
    let most = least + random.below(nodes + 1 - least);
    // If no worker fails by itself, no restart may be counted.
    let max_restarts = if menu.workers_fail { u32::MAX } else { 0 };
    let mut simulation = Simulation::new(seed, nodes, rules(least, most, max_restarts));
    simulation.one_leader = !menu.two_leaders;
    (0..nodes).for_each(|node| simulation.start(node));
    for _ in 0..random.below(40) {
        let pause = random.millis(1, 6000);
        simulation.run_until(simulation.now + pause);
        do_something(&mut simulation, &mut random, menu);
    }
    settle(&mut simulation, least, most);
}

fn do_something(simulation: &mut Simulation, random: &mut Random, menu: Menu) {
    let node = random.below(simulation.nodes.len());
    let alive = simulation.nodes[node].alive;
    let is_endpoint = node == simulation.endpoint;
    let leads = simulation.nodes[node].leader.is_some();
    let may_crash = alive && (menu.leaders_crash || (!is_endpoint && !leads));
    let how = if random.below(2) == 0 { Crash::Process } else { Crash::Machine };
    match random.below(10) {
        0 | 1 if may_crash => simulation.crash(node, how),
        0..=3 if !alive => simulation.start(node),
        2 => simulation.part[node] ^= 1,
        3 => simulation.part.fill(0),
        4 => simulation.pause(node, random.millis(1, 900), true),
        5 => simulation.pause(node, random.millis(1, 30_000), false),
        6 => simulation.delay = random.millis(0, 7000),
        7 => simulation.delay = random.millis(0, 20),
        8 if menu.workers_fail => simulation.end_workers(node, failure()),
        8 if may_crash && !leads => simulation.ask_to_stop(node),
        9 if !menu.two_leaders => simulation.drain(node),
        9 if menu.two_leaders && random.below(3) == 0 => {
            if alive {
                simulation.crash(node, how);
            }
            simulation.endpoint = node;
            simulation.start(node);
        }
        _ => {}
    }
}

/// Ends all faults. A world of as many nodes as possible must run, continue, and end successfully.
fn settle(simulation: &mut Simulation, least: usize, most: usize) {
    simulation.part.fill(0);
    simulation.delay = Time::from_millis(20);
    // The longest pause.
    simulation.run_until(simulation.now + seconds(30));
    for node in 0..simulation.nodes.len() {
        if !simulation.nodes[node].alive {
            assert!(matches!(
                simulation.nodes[node].exit,
                None | Some(Decision::Interrupted { .. } | Decision::Drained)
            ));
            simulation.start(node);
        }
    }
    simulation.run_until(simulation.now + seconds(100));
    let running = simulation.running();
    let expected = simulation.nodes.len().min(most).max(least);
    assert_eq!(running.len(), expected, "{running:?}");
    assert!(running.iter().all(|(_, world)| *world == running[0].1), "{running:?}");
    let members = &simulation.worlds[&running[0].1];
    assert_eq!(members.len(), expected);
    // Nothing changes as long as nothing happens.
    simulation.run_until(simulation.now + seconds(100));
    assert_eq!(simulation.running(), running);

    let order: Vec<usize> = running.iter().map(|(node, _)| *node).collect();
    for node in order {
        let pause = simulation.random.millis(1, 3000);
        simulation.run_until(simulation.now + pause);
        simulation.end_workers(node, WorkersEnd::Done);
    }
    simulation.run_until(simulation.now + seconds(30));
    for (index, node) in simulation.nodes.iter().enumerate() {
        assert_eq!(node.exit, Some(Decision::Done), "node {index}");
        assert!(!node.alive, "node {index}");
    }
}

fn check_schedules(menu: Menu) {
    for seed in 0..SCHEDULES {
        let run = std::panic::AssertUnwindSafe(|| check_schedule(seed, menu));
        if let Err(error) = std::panic::catch_unwind(run) {
            eprintln!("seed {seed} of {menu:?}");
            std::panic::resume_unwind(error);
        }
    }
}

const NODES_ONLY: Menu = Menu { workers_fail: false, leaders_crash: false, two_leaders: false };

#[test]
fn nodes_come_and_go() {
    check_schedules(NODES_ONLY);
}

#[test]
fn leaders_crash_too() {
    check_schedules(Menu { leaders_crash: true, ..NODES_ONLY });
}

#[test]
fn workers_fail_too() {
    check_schedules(Menu { workers_fail: true, leaders_crash: true, two_leaders: false });
}

#[test]
fn there_may_be_two_leaders() {
    check_schedules(Menu { leaders_crash: true, two_leaders: true, workers_fail: true });
}

/// A number of nodes, started one after another, at their first attempt.
fn started(nodes: usize, rules: Rules) -> Simulation {
    let mut simulation = Simulation::new(7, nodes, rules);
    for node in 0..nodes {
        simulation.start(node);
        simulation.run_until(simulation.now + Time::from_millis(300));
    }
    simulation.run_until(simulation.now + seconds(10));
    simulation
}

/// Nodes by rank, and the attempt.
fn places(simulation: &Simulation) -> (Vec<usize>, u32) {
    let (_, world) = simulation.running()[0];
    let mut members = simulation.worlds[&world].clone();
    members.sort_by_key(|(_, assigned)| assigned.node_rank);
    (members.into_iter().map(|(node, _)| node).collect(), world.1)
}

#[test]
fn survivors_keep_their_order_and_spares_wait() {
    let mut simulation = started(4, rules(1, 3, 0));
    assert_eq!(places(&simulation), (vec![0, 1, 2], 0));
    // The last one waits for a place, and nothing is stopped for it.
    simulation.crash(1, Crash::Process);
    simulation.run_until(simulation.now + seconds(20));
    assert_eq!(places(&simulation), (vec![0, 2, 3], 1));
    simulation.start(1);
    simulation.run_until(simulation.now + seconds(20));
    assert_eq!(places(&simulation), (vec![0, 2, 3], 1));
    simulation.ask_to_stop(2);
    simulation.run_until(simulation.now + seconds(20));
    assert_eq!(places(&simulation), (vec![0, 3, 1], 2));
    assert_eq!(simulation.nodes[2].exit, Some(Decision::Interrupted { signal: 15 }));
}

#[test]
fn new_nodes_are_admitted_together() {
    let mut simulation = Simulation::new(7, 4, rules(1, 4, 0));
    simulation.start(0);
    simulation.run_until(seconds(10));
    assert_eq!(places(&simulation), (vec![0], 0));
    for node in 1..4 {
        simulation.start(node);
        simulation.run_until(simulation.now + seconds(1));
    }
    simulation.run_until(simulation.now + seconds(20));
    assert_eq!(places(&simulation), (vec![0, 1, 2, 3], 1));
}

#[test]
fn restarts_are_counted_and_the_last_failure_ends_the_job() {
    let mut simulation = started(3, rules(2, 3, 1));
    let failed = |rank, code| WorkersEnd::Failed { rank, code, report: format!("code {code}") };
    simulation.end_workers(2, failed(None, 3));
    simulation.run_until(simulation.now + seconds(30));
    assert_eq!(places(&simulation), (vec![0, 1, 2], 1));
    // A lost node is not counted.
    simulation.crash(2, Crash::Machine);
    simulation.run_until(simulation.now + seconds(30));
    assert_eq!(places(&simulation), (vec![0, 1], 2));
    // Node 0 has rank 0, node 1 ranks 1 and 2. A report about the node's own rank is believed over one about another's.
    simulation.end_workers(0, failed(Some(2), 4));
    simulation.end_workers(1, failed(Some(2), 5));
    simulation.run_until(simulation.now + seconds(30));
    let decision = Decision::Failed { host: "n1".into(), code: 5, report: "code 5".into() };
    assert_eq!(simulation.nodes[0].exit, Some(decision.clone()));
    assert_eq!(simulation.nodes[1].exit, Some(decision));
}

#[test]
fn waiting_ends() {
    let wait = |nodes: &[usize]| {
        let mut simulation = Simulation::new(7, 3, rules(3, 3, 0));
        nodes.iter().for_each(|&node| simulation.start(node));
        simulation.run_until(seconds(620));
        nodes.iter().map(|&node| simulation.nodes[node].exit.clone()).collect::<Vec<_>>()
    };
    let too_few = Some(Decision::TooFew { here: 2, least: 3 });
    assert_eq!(wait(&[0, 1]), [too_few.clone(), too_few]);
    assert_eq!(wait(&[2]), [Some(Decision::NoLeader { why: "no listener".into() })]);
}

#[test]
fn a_stopped_leader_ends_the_job() {
    let mut simulation = started(3, rules(1, 3, 0));
    simulation.ask_to_stop(0);
    simulation.run_until(simulation.now + seconds(30));
    for node in &simulation.nodes {
        assert_eq!((&node.exit, node.alive), (&Some(Decision::Interrupted { signal: 15 }), false));
    }
}
