//! The process that has started the ranks of this machine, found without its help: its ranks have a variable that it lacks.

use std::fs;

use rustix::process::{Pid, getppid};

/// Names the nearest ancestor of this process that lacks the variable `mark`. Shells that stand in between have it. No process of
/// this machine has the same name until the next boot: it consists of the process's number and the time of its start.
pub fn launcher_without(mark: &str) -> Option<String> {
    let mark = format!("{mark}=");
    let has_mark = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(mark.as_bytes()))
    };
    let mut pid = getppid().map_or(0, Pid::as_raw_pid);
    while has_mark(pid) {
        pid = field(pid, PARENT)?.parse().ok()?;
    }
    Some(format!("{pid}-{}", field(pid, START)?))
}

/// The parent's number.
const PARENT: usize = 1;
/// The start time, in ticks since boot.
const START: usize = 19;

/// A field of a process's `stat` file, counted from the one after the name, which is in parentheses and may contain anything.
fn field(pid: i32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(number).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_found() {
        let own = i32::try_from(std::process::id()).unwrap();
        // 0 if the parent is outside the container.
        let parent = getppid().map_or(0, Pid::as_raw_pid);
        assert_eq!(field(own, PARENT), Some(parent.to_string()));
        assert!(field(own, START).unwrap().parse::<u64>().is_ok());
        assert_eq!(field(-1, PARENT), None);
        // This process's own variables do not matter.
        let name = launcher_without("ENMASSE_OF_NOBODY");
        assert!(parent == 0 || name.unwrap().starts_with(&format!("{parent}-")));
    }
}
