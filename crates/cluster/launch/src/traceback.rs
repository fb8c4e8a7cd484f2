//! Finds the exception that ended a Python program in the last lines of its standard error: few programs write error
//! files.

use signal_hook::consts::SIGABRT;

use crate::outcome::Status;

/// The end of a traceback's first line.
const HEADING: &str = "Traceback (most recent call last):";
/// Starts of lines before tracebacks that do not end the program: those of a destructor or of another thread.
const ELSEWHERE: [&str; 2] = ["Exception ignored in", "Exception in thread"];

/// Printed by C++ if threads still run when an exception has ended the main one, which happens with PyTorch.
const THREADS_LEFT: &str = "terminate called without an active exception";

/// The exception that ended a process, if its last lines show one.
pub(crate) fn uncaught(status: Status, lines: &[String]) -> Option<&str> {
    let is_its_end = match status {
        // Python's own code for an uncaught exception. A program that exits with another code has caught it.
        Status::Code(1) => true,
        Status::Signal(SIGABRT) => lines.last().is_some_and(|line| line == THREADS_LEFT),
        _ => false,
    };
    python_exception(lines).filter(|_| is_its_end)
}

/// The line that names the exception, such as `ValueError: no`; in a chain of exceptions the last one.
pub fn python_exception<L: AsRef<str>>(lines: &[L]) -> Option<&str> {
    let (mut found, mut previous, mut inside, mut counts) = (None, "", false, true);
    for line in lines.iter().map(|line| unmarked(line.as_ref())) {
        // A long traceback may be cut off at its start; a syntax error has no heading.
        if line.ends_with(HEADING) || !inside && line.starts_with("  File \"") {
            inside = true;
            counts = !ELSEWHERE.iter().any(|words| previous.starts_with(words));
        } else if inside && !line.is_empty() && !line.starts_with([' ', '\t']) {
            inside = false;
            if counts && is_exception(line) {
                found = Some(line);
            }
        }
        previous = line;
    }
    found
}

/// A line without PyTorch's prefix `[rank0]: `.
fn unmarked(line: &str) -> &str {
    let rest = line.strip_prefix("[rank").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    rest.and_then(|rest| rest.strip_prefix("]: ")).unwrap_or(line)
}

/// `module.Name` or `module.Name: message`.
fn is_exception(line: &str) -> bool {
    let name = line.split(':').next().unwrap_or_default();
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    name.split('.').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions() {
        let check = |text: &str, expected: Option<&str>| {
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(python_exception(&lines), expected, "{text}");
        };
        const HEAD: &str = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\n";
        check("", None);
        check("ValueError: no traceback, no exception", None);
        check("warning: slow\nexit", None);
        check(&format!("{HEAD}ValueError: no\nsecond line of it"), Some("ValueError: no"));
        check(&format!("{HEAD}KeyboardInterrupt"), Some("KeyboardInterrupt"));
        check(
            &format!("{HEAD}torch.cuda.OutOfMemoryError: CUDA out of memory."),
            Some("torch.cuda.OutOfMemoryError: CUDA out of memory."),
        );
        check(&format!("{HEAD}not a name: at all"), None);
        check(HEAD, None);
        // With PyTorch's prefix.
        let marked: String =
            format!("{HEAD}RuntimeError: no").lines().map(|line| format!("[rank12]: {line}\n")).collect();
        check(&marked, Some("RuntimeError: no"));
        // Chained exceptions, and one from a loader's worker.
        let during = "\nDuring handling of the above exception, another exception occurred:\n\n";
        check(&format!("{HEAD}KeyError: 'a'\n{during}{HEAD}ValueError: b"), Some("ValueError: b"));
        check(
            &format!("{HEAD}OSError: Caught OSError in worker 0.\nOriginal {HEAD}OSError: bad"),
            Some("OSError: bad"),
        );
        // The start is cut off.
        check(
            "  File \"a.py\", line 3, in f\n    x = 1\nIndexError: list index out of range",
            Some("IndexError: list index out of range"),
        );
        check("  File \"a.py\", line 3\n    )\n    ^\nSyntaxError: unmatched ')'", Some("SyntaxError: unmatched ')'"));
        // Other tracebacks before and after.
        let thread = format!("Exception in thread Thread-1 (f):\n{HEAD}ValueError: of the thread\n");
        check(&thread, None);
        let ignored = format!("Exception ignored in: <function A.__del__ at 0x7f>\n{HEAD}AttributeError: gone\n");
        check(&format!("{thread}{HEAD}ValueError: no\n{ignored}"), Some("ValueError: no"));
    }
    #[test]
    fn ends() {
        let check = |status: Status, more: &str, expected: bool| {
            let lines = [HEADING, "  File \"a.py\"", "ValueError: no", more].map(str::to_owned);
            assert_eq!(uncaught(status, &lines), expected.then_some("ValueError: no"), "{status} {more}");
        };
        check(Status::Code(1), "", true);
        check(Status::Code(2), "", false);
        check(Status::Signal(SIGABRT), THREADS_LEFT, true);
        check(Status::Signal(SIGABRT), "terminate called after throwing an instance of 'std::bad_alloc'", false);
        check(Status::Signal(9), THREADS_LEFT, false);
        check(Status::Stopped, "", false);
    }
}
