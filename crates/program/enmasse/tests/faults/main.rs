//! Faults on schedule: real runs are killed, stopped, cut, corrupted and denied their disk, each at a system call that a
//! seed draws. After each fault the exit code, the cause, the leftovers and the resumed bits are checked.
//!
//! `ENMASSE_TEST_FAULTS=0..1000` runs these seeds; a failure names the command that repeats it.

mod fault;
mod held_calls;
mod injection;
mod outcome;
mod run;
mod table;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use fault::{Act, Draws, Fault, Kind, Moment, Place, Scenario, Victims};
use run::Reference;
use rustix::io::Errno;
use table::Table;

/// Names the seeds to run.
const SEEDS: &str = "ENMASSE_TEST_FAULTS";

/// Runs scenarios, two at a time, and prints their table.
#[track_caller]
fn survive(reference: &Reference, scenarios: &[(String, Scenario)]) {
    let next = AtomicU64::new(0);
    let table = Mutex::new(Table::default());
    let problems = Mutex::new(Vec::new());
    let work = || {
        while let Some((name, scenario)) = scenarios.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let outcome = outcome::run(reference, scenario);
            table.lock().expect("no panic").add(scenario.kind, &outcome);
            if let Err(problem) = outcome {
                println!("{name}: {problem}");
                problems.lock().expect("no panic").push(format!("{name}: {problem}"));
            }
        }
    };
    thread::scope(|scope| [scope.spawn(work), scope.spawn(work)].map(|thread| thread.join().expect("no panic")));
    println!("{}", table.into_inner().expect("no panic"));
    let problems = problems.into_inner().expect("no panic");
    assert!(problems.is_empty(), "{} of {} failed:\n{}", problems.len(), scenarios.len(), problems.join("\n"));
}

/// The seeds that the environment names.
fn named_seeds() -> Option<Range<u64>> {
    let text = std::env::var(SEEDS).ok()?;
    let parsed = match text.split_once("..") {
        Some((first, end)) => first.parse().ok().zip(end.parse().ok()).map(|(first, end)| first..end),
        None => text.parse().ok().map(|seed| seed..seed + 1),
    };
    Some(parsed.unwrap_or_else(|| panic!("{SEEDS}={text}: give a seed, or seeds as 0..1000")))
}

#[test]
fn runs_survive_faults_of_every_kind() {
    let Some(reference) = Reference::open() else { return };
    let scenarios = Kind::ALL.map(|(kind, _)| {
        let scenario = Scenario::of_kind(kind, &mut Draws(7), &reference.calls);
        (kind.to_string(), scenario)
    });
    survive(&reference, &scenarios);
}

/// A checkpoint in the middle of an epoch; in the long form also the end of the epoch, with its record, its charts, and the
/// best and the last checkpoint.
#[test]
fn every_call_of_a_checkpoint_may_fail_or_be_the_last() {
    let Some(reference) = Reference::open() else { return };
    let is_checkpoint = |(name, path): &(&str, PathBuf)| *name == "rename" && path.ends_with("last.safetensors");
    let renames = (1..).zip(&reference.writes).filter(|(_, write)| is_checkpoint(write)).map(|(nth, _)| nth);
    let renames: Vec<u64> = renames.collect();
    // The folder is opened and synced after the rename.
    let until = renames[if test_support::time() { 2 } else { 1 }] + 2;
    let scenarios: Vec<_> = (renames[0] + 3..=until)
        .flat_map(|nth| {
            let moment = Moment { rank: 0, place: Place::Run, nth };
            let acts = [(Kind::FailedCall, Act::Fail(Errno::IO)), (Kind::KillRank, Act::Kill(Victims::Rank))];
            acts.map(|(kind, act)| (format!("call {nth}"), Scenario::of_fault(kind, Fault { moment, act })))
        })
        .collect();
    survive(&reference, &scenarios);
}

/// Over TCP each part of a step sends something: the sums of its gradients, those of a validation, the words between them.
#[test]
fn a_killed_rank_costs_no_finished_step() {
    for ranks in [2, 3] {
        let Some(reference) = Reference::of_ranks(ranks) else { return };
        let scenarios = (0..ranks).flat_map(|rank| {
            let sends = reference.calls[1][&(rank, Place::Link)];
            // From the fourth step to the second epoch.
            let first = sends / 9;
            let last = sends * 4 / 9;
            let apart = (last - first).div_ceil(if test_support::time() { 24 } else { 4 });
            (first..last).step_by(apart as usize).map(move |nth| {
                let fault = Fault { moment: Moment { rank, place: Place::Link, nth }, act: Act::Kill(Victims::Rank) };
                (format!("{ranks} ranks, send {nth} of rank {rank}"), Scenario::of_fault(Kind::KillRank, fault))
            })
        });
        survive(&reference, &scenarios.collect::<Vec<_>>());
    }
}

/// A rank that saves in the place of another one is killed at each of the calls by which it does so, and leaves that to the third.
#[test]
fn a_survivor_may_be_killed_while_it_saves() {
    let Some(reference) = Reference::of_ranks(3) else { return };
    let scenarios: Vec<_> = (1..=12)
        .map(|nth| {
            let rank = nth as usize % 3;
            let moment = Moment { rank, place: Place::Images, nth: reference.calls[1][&(rank, Place::Images)] / 2 };
            let fault = Fault { moment, act: Act::KillSurvivorToo { nth } };
            (format!("call {nth} of a survivor"), Scenario::of_fault(Kind::KillRanks, fault))
        })
        .collect();
    survive(&reference, &scenarios);
}

/// The second rank is killed in the run that the first one's death has left.
#[test]
fn ranks_may_be_killed_twice_in_a_row() {
    let Some(reference) = Reference::open() else { return };
    let scenarios = [(0, 1), (1, 0), (0, 0), (1, 1)].map(|(first, second)| {
        let kill = |rank: usize, share: u64| {
            let nth = reference.calls[0][&(rank, Place::Images)] / share;
            Fault { moment: Moment { rank, place: Place::Images, nth }, act: Act::Kill(Victims::Rank) }
        };
        let scenario = Scenario { second: Some(kill(second, 4)), ..Scenario::of_fault(Kind::KillRank, kill(first, 2)) };
        (format!("rank {first}, then {second}"), scenario)
    });
    survive(&reference, &scenarios);
}

/// Regression test: each rank printed such a cause, and the launcher another line.
#[test]
fn a_cause_from_before_the_ranks_have_met_is_told_once() {
    let Some(reference) = Reference::open() else { return };
    let scenarios = [7, 9].map(|nth| {
        let moment = Moment { rank: 1, place: Place::Link, nth };
        let act = Act::Flip { bit: 12_615_993_421_004_055_590 };
        (format!("send {nth}"), Scenario::of_fault(Kind::FlippedLink, Fault { moment, act }))
    });
    survive(&reference, &scenarios);
}

/// Regression test: the other rank had left by then, and the launcher waited for ever.
#[test]
fn a_rank_that_stands_still_at_its_last_file_is_named() {
    let Some(reference) = Reference::open() else { return };
    let moment = Moment { rank: 0, place: Place::Run, nth: reference.writes.len() as u64 };
    survive(
        &reference,
        &[("the last file".to_owned(), Scenario::of_fault(Kind::Hang, Fault { moment, act: Act::Hang }))],
    );
}

/// Regression test: the job ended with code 143 and without a word, as if it had saved.
#[test]
fn a_save_that_fails_after_a_request_to_stop_is_told() {
    let Some(reference) = Reference::open() else { return };
    // In the middle of the run.
    let moment = Moment { rank: 0, place: Place::Images, nth: reference.calls[0][&(0, Place::Images)] / 2 };
    let fault = Fault { moment, act: Act::AskAndFillDisk };
    survive(&reference, &[("the last save".to_owned(), Scenario::of_fault(Kind::FullDisk, fault))]);
}

#[test]
fn runs_survive_the_faults_of_seeds() {
    let seeds = match named_seeds() {
        Some(seeds) => seeds,
        None if test_support::time() => 0..40,
        None => return,
    };
    let Some(reference) = Reference::open() else { return };
    let command = |seed| format!("{SEEDS}={seed} cargo test -p enmasse --test faults seeds");
    let scenarios: Vec<_> = seeds.map(|seed| (command(seed), Scenario::of_seed(seed, &reference.calls))).collect();
    survive(&reference, &scenarios);
}
