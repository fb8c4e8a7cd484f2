//! Whether the kernel killed a process because memory ran out. It counts such kills, per control group and for the
//! machine.

use std::fs;
use std::path::{Path, PathBuf};

/// The mount point of control groups.
const GROUPS: &str = "/sys/fs/cgroup";
/// The count for the whole machine.
const MACHINE: &str = "/proc/vmstat";

/// The counts before the ranks start.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryKills {
    /// For this process's control group, which contains the ranks too: the file and its count.
    group: Option<(PathBuf, u64)>,
    machine: Option<u64>,
}

impl MemoryKills {
    pub(crate) fn so_far() -> Self {
        let files = fs::read_to_string("/proc/self/cgroup").map(|text| group_files(&text)).unwrap_or_default();
        let group = files.into_iter().find_map(|file| count_in(&file).map(|count| (file, count)));
        MemoryKills { group, machine: count_in(Path::new(MACHINE)) }
    }

    /// Whether a process was killed since; `None` if the kernel does not tell.
    pub(crate) fn any_since(&self) -> Option<bool> {
        let group = self.group.as_ref().and_then(|(file, before)| count_in(file).map(|now| (*before, now)));
        let machine = self.machine.and_then(|before| count_in(Path::new(MACHINE)).map(|now| (before, now)));
        decide(group, machine)
    }
}

/// Compares the counts before and after. A kill anywhere on the machine may have hit one of the ranks, unless the count
/// of their group, which includes them, says otherwise.
fn decide(group: Option<(u64, u64)>, machine: Option<(u64, u64)>) -> Option<bool> {
    match (group, machine) {
        (Some((before, now)), _) => Some(now > before),
        (None, Some((before, now))) if now == before => Some(false),
        _ => None,
    }
}

fn count_in(file: &Path) -> Option<u64> {
    kills(&fs::read_to_string(file).ok()?)
}

/// The count in the text of `memory.events`, `memory.oom_control` or `vmstat`.
fn kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(|count| count.trim().parse().ok())
}

/// Files that may hold the count of the control groups in the text of `/proc/self/cgroup`. Inside a container the
/// group's path may be that of the host, while its files are at the top.
fn group_files(text: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (mount, name) = match controllers {
            "" => (GROUPS.to_owned(), "memory.events"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (format!("{GROUPS}/memory"), "memory.oom_control")
            }
            _ => continue,
        };
        files.push(PathBuf::from(format!("{mount}{}/{name}", path.trim_end_matches('/'))));
        files.push(PathBuf::from(format!("{mount}/{name}")));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(kills(text), expected, "{text}");
        check("low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 0\n", Some(3));
        check("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", Some(7));
        check("oom_kill_disable 0\nunder_oom 0\n", None);
        check("oom_kill x\n", None);
        check("", None);
    }

    #[test]
    fn files() {
        let check = |text: &str, expected: &[&str]| {
            let expected: Vec<_> = expected.iter().map(|name| Path::new(GROUPS).join(name)).collect();
            assert_eq!(group_files(text), expected, "{text}");
        };
        check("0::/\n", &["memory.events", "memory.events"]);
        check("0::/user.slice/a b:c\n", &["user.slice/a b:c/memory.events", "memory.events"]);
        let both = ["memory/job/memory.oom_control", "memory/memory.oom_control"];
        check("3:cpuset:/\n2:cpu,memory:/job\n", &both);
        check("nonsense\n4\n", &[]);
    }

    #[test]
    fn decisions() {
        let check = |group, machine, expected| assert_eq!(decide(group, machine), expected, "{group:?} {machine:?}");
        check(Some((1, 2)), None, Some(true));
        check(Some((1, 1)), Some((1, 2)), Some(false));
        check(None, Some((5, 5)), Some(false));
        check(None, Some((5, 6)), None);
        check(None, None, None);
    }
}
