//! Attempts, one after another, until one succeeds or there is no use in more.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::fault::Fault;

/// The wait after the first attempt. It doubles with each one.
const FIRST: Duration = Duration::from_millis(200);

/// The longest wait between two attempts.
const MAX: Duration = Duration::from_secs(10);

/// When to give up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub attempts: u32,
    /// Time in which an attempt may begin.
    pub timeout: Duration,
}

/// Calls `attempt` until it succeeds, fails for good, or reaches a limit. A passing fault says how often it was tried. The words
/// are the end of a sentence that begins with the server; `advice` is what a user may do about a server that does not answer.
pub(crate) fn retried<T>(
    limits: Limits,
    advice: &str,
    mut attempt: impl FnMut() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let began = Instant::now();
    let mut number = 0;
    loop {
        number += 1;
        let words = match attempt() {
            Ok(found) => return Ok(found),
            Err(fault @ Fault::Lasting(_)) => return Err(fault),
            Err(Fault::Passing(words)) => words,
        };
        let pause = pause(number);
        if number >= limits.attempts || began.elapsed() + pause >= limits.timeout {
            let seconds = began.elapsed().as_secs_f64();
            let times = if number == 1 { "once".to_owned() } else { format!("{number} times") };
            return Err(Fault::Passing(format!("{words}, {times} in {seconds:.1} s; {advice}")));
        }
        log::warn!("attempt {number}: {words}; the next one follows in {:.1} s", pause.as_secs_f64());
        std::thread::sleep(pause);
    }
}

/// The wait after an attempt: at random between the half and the whole, so that many ranks do not ask all at once.
pub(crate) fn pause(number: u32) -> Duration {
    let whole = FIRST.saturating_mul(1 << (number - 1).min(16)).min(MAX);
    let random = RandomState::new().hash_one(number) % 1024;
    whole / 2 + whole.mul_f64(random as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use test_support::logged;

    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit() {
        let check = |number: u32, whole: Duration| {
            let found = pause(number);
            assert!(found >= whole / 2 && found <= whole, "{number}: {found:?}");
        };
        check(1, FIRST);
        check(2, FIRST * 2);
        check(5, FIRST * 16);
        check(9, MAX);
        check(u32::MAX, MAX);
    }

    #[test]
    fn attempts_end() {
        let check = |faults: &[Fault], attempts: u32, expected: Result<usize, &str>| {
            let limits = Limits { attempts, timeout: Duration::from_secs(60) };
            let mut tried = 0;
            let found = retried(limits, "check it", || {
                tried += 1;
                faults.get(tried - 1).cloned().map_or(Ok(tried), Err)
            });
            let found = found.map_err(|fault| fault.words().split(" in ").next().unwrap_or_default().to_owned());
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        let passing = Fault::Passing("it is busy".to_owned());
        let lasting = Fault::Lasting("it is gone".to_owned());
        check(&[], 1, Ok(1));
        check(std::slice::from_ref(&passing), 2, Ok(2));
        check(&[passing.clone(), passing.clone()], 2, Err("it is busy, 2 times"));
        check(&[passing, lasting], 9, Err("it is gone"));
    }

    #[test]
    fn attempts_that_fail_are_logged() {
        logged("");
        let limits = Limits { attempts: 2, timeout: Duration::from_secs(60) };
        let _ = retried(limits, "check it", || Err::<(), _>(Fault::Passing("it sleeps".to_owned())));
        let lines = logged("it sleeps");
        let expected = "WARN enmasse_remote::retry: attempt 1: it sleeps; the next one follows in 0.";
        assert!(lines.len() == 1 && lines[0].starts_with(expected), "{lines:?}");
    }
}
