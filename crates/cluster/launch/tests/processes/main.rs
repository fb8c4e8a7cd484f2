//! Launching real processes. This program plays three parts: the tests, a launcher that is signalled or killed, and the
//! ranks.

mod logs;
mod parts;
mod stopping;
mod workers;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// Far longer than anything here takes. It only ends a test that would hang.
const DEADLINE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = parts::play(&arguments) {
        return code;
    }
    // As the standard harness does: a word selects the tests whose names contain it.
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).map_or("", String::as_str);
    let mut all_passed = true;
    for &(name, test) in
        workers::TESTS.iter().chain(logs::TESTS).chain(stopping::TESTS).filter(|(name, _)| name.contains(filter))
    {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(test);
        let passed = thread.is_ok_and(|thread| thread.join().is_ok());
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        all_passed &= passed;
    }
    if all_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
