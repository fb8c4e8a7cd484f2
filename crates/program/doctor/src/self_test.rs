//! A test of the machine's ability to train: two ranks, as processes of this program, reduce numbers together.
//!
//! The doctor starts a launcher, which starts the ranks. So in any case only one process must be ended, and the others
//! end with it.

use std::fmt::Display;
use std::process::Command;
use std::time::{Duration, Instant};

use enmasse_comm::{CauseKind, Group, Rendezvous, TransportChoice};
use enmasse_launch::{Job, Outcome, Output, Store};
use rustix::process::Signal;
use serde_json::{Value, json};
use thiserror::Error;

use crate::bounded::{self, Ended};
use crate::environment::LAUNCHER_VARIABLES;
use crate::report::{Finding, Section};

/// The hidden flag that starts a part of the test.
pub const FLAG: &str = "self-test";

/// Reasons why a part of the test failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelfTestError {
    /// The test has no such part.
    #[error("--{FLAG} {0}: is reserved for the doctor, and not a part of its test")]
    UnknownPart(String),
    /// The part itself failed.
    #[error("{0}")]
    Failed(String),
    /// The ranks that it started failed; this is their message.
    #[error("{0}")]
    Ranks(String),
}

impl SelfTestError {
    fn failed(error: impl Display) -> Self {
        SelfTestError::Failed(error.to_string())
    }
}

/// Time limit per transport: ends a test that hangs, and not one that is slow because other programs use all cores.
const DEADLINE: Duration = Duration::from_secs(60);
/// Earlier than the deadline, so that the ranks can report the reason.
const JOIN_TIMEOUT: Duration = Duration::from_secs(50);

/// Number of reductions of one number that are timed.
const SMALL: usize = 100;
/// Elements of a large reduction: 16 MiB in f32, the size of a gradient bucket or a few of them.
const NUMBERS: usize = 4 << 20;
/// Number of large reductions that are timed.
const LARGE: usize = 3;

/// The transports, and the names of their parts.
const PARTS: [(&str, TransportChoice); 2] = [("shared memory", TransportChoice::Shared), ("TCP", TransportChoice::Tcp)];

pub fn section() -> Section {
    let findings = PARTS.iter().enumerate().map(|(number, (name, _))| test(name, number)).collect();
    Section { title: "all-reduce of 2 ranks", findings }
}

fn test(name: &'static str, number: usize) -> Finding {
    let remedy = "see the other findings; if they do not explain it, please report it with this page";
    let ended = match command(&format!("launch-{number}")).and_then(|mut command| bounded::run(&mut command, DEADLINE))
    {
        Ok(ended) => ended,
        Err(error) => return Finding::problem(name, format!("cannot start this program again: {error}"), remedy),
    };
    match result(&ended) {
        Ok(Times { join, small, large }) => {
            let rate = (NUMBERS * size_of::<f32>()) as f64 / large / 1e9;
            let text = format!(
                "right; joined after {:.0} ms, one number takes {:.1} us, 16 MiB take {:.1} ms ({rate:.2} GB/s)",
                join * 1e3,
                small * 1e6,
                large * 1e3
            );
            Finding::ok(name, text).fact("join_s", join).fact("small_s", small).fact("large_s", large)
        }
        Err(why) => Finding::problem(name, why, remedy),
    }
}

/// This program in one part of the test, without the place that a launcher may have given the doctor itself.
fn command(part: &str) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("doctor").arg(format!("--{FLAG}={part}"));
    for name in LAUNCHER_VARIABLES.split_whitespace() {
        command.env_remove(name);
    }
    Ok(command)
}

/// Times in seconds.
struct Times {
    /// From the start of a rank's own code until the group is formed.
    join: f64,
    /// The reduction of one number.
    small: f64,
    /// The reduction of [`NUMBERS`].
    large: f64,
}

/// Rank 0's measurements, or the reason for their absence.
fn result(ended: &Ended) -> Result<Times, String> {
    let error = ended.stderr.lines().find_map(|line| line.strip_prefix("error: "));
    let said = error.or_else(|| ended.last_line());
    if ended.status.is_none() {
        return Err(format!("no result within {} s: {}", DEADLINE.as_secs(), said.unwrap_or("it printed nothing")));
    }
    if !ended.is_success() {
        return Err(said.unwrap_or("it failed without a message").to_owned());
    }
    let measured = || -> Option<Times> {
        let object: Value = serde_json::from_str(ended.stdout.trim()).ok()?;
        let number = |name: &str| object[name].as_f64();
        Some(Times { join: number("join")?, small: number("small")?, large: number("large")? })
    };
    measured().ok_or_else(|| format!("it printed no figures, but {:?}", ended.stdout.trim()))
}

/// Plays a part of the test. The returned figures are to be printed on standard output, in one line.
///
/// # Errors
/// The test has no part of this name, or the part fails.
pub fn play(part: &str) -> Result<Option<Value>, SelfTestError> {
    let unknown = || SelfTestError::UnknownPart(part.to_owned());
    let (role, number) = part.split_once('-').ok_or_else(unknown)?;
    let index: usize = number.parse().map_err(|_| unknown())?;
    let (_, transport) = PARTS.get(index).ok_or_else(unknown)?;
    match role {
        "launch" => launch(number).map(|()| None),
        "rank" => rank(*transport),
        _ => Err(unknown()),
    }
}

fn launch(number: &str) -> Result<(), SelfTestError> {
    // If the doctor is killed, nothing else would end this process at its deadline.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(SelfTestError::failed)?;
    let program = std::env::current_exe().map_err(SelfTestError::failed)?;
    let arguments = ["doctor".to_owned(), format!("--{FLAG}=rank-{number}")];
    let job = Job::new(program, 2).args(arguments);
    let job = Job { store: Store::Inherited, output: Output::RankZero, ..job };
    let outcome = enmasse_launch::launch(&job).map_err(SelfTestError::failed)?;
    let Some(report) = outcome.report() else { return Ok(()) };
    Err(SelfTestError::Ranks(match outcome {
        // The rank's own last line says more than its exit status.
        Outcome::Failed(mut failure) => failure.stderr.pop().unwrap_or(report),
        Outcome::Done | Outcome::Interrupted { .. } | Outcome::Recalled => report,
    }))
}

fn rank(transport: TransportChoice) -> Result<Option<Value>, SelfTestError> {
    let began = Instant::now();
    let mut rendezvous = Rendezvous::from_environment().map_err(SelfTestError::failed)?;
    rendezvous.transport = transport;
    rendezvous.join_timeout = JOIN_TIMEOUT;
    let group = rendezvous.join().map_err(SelfTestError::failed)?;
    let join = began.elapsed().as_secs_f64();
    let (small, large) = measure(&group)?;
    group.barrier().map_err(SelfTestError::failed)?;
    Ok(group.is_main().then(|| json!({ "join": join, "small": small, "large": large })))
}

/// Median seconds of a small and of a large reduction; an error if a sum is wrong.
fn measure(group: &Group) -> Result<(f64, f64), SelfTestError> {
    let ranks = group.world_size();
    let own = |rank: usize, index: usize| ((rank + 1) * (index % 7 + 1)) as f32;
    let time = |numbers: &mut [f32]| -> Result<f64, SelfTestError> {
        let rank = group.rank();
        numbers.iter_mut().enumerate().for_each(|(index, number)| *number = own(rank, index));
        group.barrier().map_err(SelfTestError::failed)?;
        let began = Instant::now();
        group.all_reduce(numbers).map_err(SelfTestError::failed)?;
        let seconds = began.elapsed().as_secs_f64();
        // Small whole numbers, whose sums are exact.
        let expected = |index: usize| (0..ranks).map(|rank| own(rank, index)).sum::<f32>();
        match numbers.iter().enumerate().find(|&(index, &number)| number != expected(index)) {
            None => Ok(seconds),
            Some((index, number)) => {
                let message = format!("the sum of number {index} is {number}, and should be {}", expected(index));
                group.abort(group.own_cause(CauseKind::Error, message.clone()));
                Err(SelfTestError::Failed(message))
            }
        }
    };
    let median = |count: usize, numbers: &mut [f32]| -> Result<f64, SelfTestError> {
        let mut seconds = (0..count).map(|_| time(numbers)).collect::<Result<Vec<_>, _>>()?;
        seconds.sort_unstable_by(f64::total_cmp);
        Ok(seconds[count / 2])
    };
    Ok((median(SMALL, &mut [0.0])?, median(LARGE, &mut vec![0.0; NUMBERS])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn results() {
        let check = |status: Option<i32>, stdout: &str, stderr: &str, expected: Result<f64, &str>| {
            let status = status.map(|code| ExitStatus::from_raw(code << 8));
            let ended = Ended { status, stdout: stdout.to_owned(), stderr: stderr.to_owned() };
            assert_eq!(result(&ended).map(|times| times.large), expected.map_err(str::to_owned));
        };
        check(Some(0), "{\"join\":0.1,\"small\":1e-6,\"large\":0.25}\n", "", Ok(0.25));
        check(Some(0), "{\"join\":0.1}\n", "", Err("it printed no figures, but \"{\\\"join\\\":0.1}\""));
        check(Some(0), "", "", Err("it printed no figures, but \"\""));
        check(Some(1), "", "error: rank 1 fell silent\n", Err("rank 1 fell silent"));
        check(Some(1), "", "error: no memory\nrank 0 exited with code 1\n", Err("no memory"));
        check(Some(1), "", "", Err("it failed without a message"));
        check(None, "", "warning: slow\n", Err("no result within 60 s: warning: slow"));
        check(None, "", "", Err("no result within 60 s: it printed nothing"));
    }

    #[test]
    fn sums_are_checked_between_threads_too() {
        let ranks = enmasse_launch::spawn(2, |group| {
            measure(&group).map_err(|error| error.to_string()).map(|(small, large)| small + large)
        });
        assert!(ranks.unwrap().into_iter().all(|seconds| seconds > 0.0));
    }

    #[test]
    fn other_parts_are_refused() {
        for part in ["", "rank", "rank-2", "launch-x", "play-0"] {
            assert!(matches!(play(part), Err(SelfTestError::UnknownPart(_))), "{part}");
        }
    }
}
