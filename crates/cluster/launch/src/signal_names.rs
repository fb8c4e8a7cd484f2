//! Signals by name: those that end a job by default, and those that a job may choose.

use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};

/// Signals that ask the launcher to stop, unless a job chooses others.
pub(crate) const STOP_SIGNALS: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];

/// Signals that may be handled, by name: those that users and schedulers send.
pub(crate) const HANDLED: [(&str, i32); 8] = [
    ("SIGTERM", SIGTERM),
    ("SIGINT", SIGINT),
    ("SIGHUP", SIGHUP),
    ("SIGQUIT", SIGQUIT),
    ("SIGUSR1", SIGUSR1),
    ("SIGUSR2", SIGUSR2),
    ("SIGALRM", SIGALRM),
    ("SIGXCPU", SIGXCPU),
];

/// The number of such a signal.
pub(crate) fn signal_number(name: &str) -> Option<i32> {
    HANDLED.iter().find(|(known, _)| *known == name.trim()).map(|(_, number)| *number)
}

/// The signals' names, as torchrun writes them into a variable.
pub(crate) fn signal_names(numbers: &[i32]) -> String {
    let name = |number: &i32| HANDLED.iter().find(|(_, known)| known == number).map(|(name, _)| *name);
    numbers.iter().filter_map(name).collect::<Vec<_>>().join(",")
}
