//! The share of the machine that control groups leave to this process: containers and batch systems set their limits
//! there.
//!
//! Both versions are supported, and a process may be in groups of both. Version 1 has a tree for each controller,
//! version 2 a single tree. A limit of any group above counts as much as one of the process's own group.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The effective limits: the tightest of all groups above this process; of memory, the one that leaves the least.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Processor time, in cores.
    pub cores: Option<f64>,
    /// Memory in bytes that all processes of the limited group may use together, and its current use. Files that the kernel
    /// caches do not count, because it drops them before it refuses memory.
    pub memory: Option<(u64, u64)>,
    /// The number of processes of this process's own group that the kernel has killed because memory ran out.
    pub killed_for_memory: Option<u64>,
}

impl Limits {
    /// Reads the limits; an unreadable one counts as no limit.
    pub fn gather() -> Self {
        let text = |path: &Path| read_to_string(path).ok();
        let membership = text(Path::new("/proc/self/cgroup")).unwrap_or_default();
        let mounts = text(Path::new("/proc/self/mountinfo")).unwrap_or_default();
        let mut limits = Limits::default();
        if let Some(group) = Group::find(&membership, &mounts, "cpu") {
            let quota = |folder: PathBuf| match group.version {
                1 => quota(&text(&folder.join("cpu.cfs_quota_us"))?, &text(&folder.join("cpu.cfs_period_us"))?),
                _ => text(&folder.join("cpu.max")).and_then(|text| text.split_once(' ').and_then(|(a, b)| quota(a, b))),
            };
            limits.cores = group.folders().filter_map(quota).min_by(f64::total_cmp);
        }
        if let Some(group) = Group::find(&membership, &mounts, "memory") {
            let [limit, used, events] = match group.version {
                1 => ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"],
                _ => ["memory.max", "memory.current", "memory.events"],
            };
            let bytes = |folder: &Path, name: &str| byte_count(&text(&folder.join(name))?);
            let used = |folder: &Path| {
                let cached = text(&folder.join("memory.stat")).map_or(0, |stat| cached(&stat));
                bytes(folder, used).unwrap_or(0).saturating_sub(cached)
            };
            let limit = |folder: PathBuf| Some((bytes(&folder, limit)?, used(&folder)));
            limits.memory = group.folders().filter_map(limit).min_by_key(|(limit, used)| limit.saturating_sub(*used));
            limits.killed_for_memory =
                group.folders().next().and_then(|folder| killed_for_memory(&text(&folder.join(events))?));
        }
        limits
    }
}

/// The location of a controller's group.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    /// 1 or 2.
    version: u8,
    mount: PathBuf,
    /// The group's path below the mount.
    below: PathBuf,
}

impl Group {
    /// Finds the group in `/proc/self/cgroup` and `/proc/self/mountinfo`.
    fn find(membership: &str, mounts: &str, controller: &str) -> Option<Self> {
        let has = |list: &str| list.split(',').any(|name| name == controller);
        let groups = || {
            membership.lines().filter_map(|line| {
                let (_, rest) = line.split_once(':')?;
                rest.split_once(':')
            })
        };
        let mounts = || mounts.lines().filter_map(Mount::parse);
        let of_its_own = || {
            let (_, path) = groups().find(|(controllers, _)| has(controllers))?;
            let mount = mounts().find(|mount| mount.kind == "cgroup" && has(mount.options))?;
            Some(mount.group(1, path))
        };
        let unified = || {
            let (_, path) = groups().find(|(controllers, _)| controllers.is_empty())?;
            Some(mounts().find(|mount| mount.kind == "cgroup2")?.group(2, path))
        };
        of_its_own().or_else(unified)
    }

    /// The group's own folder, then those above it.
    fn folders(&self) -> impl Iterator<Item = PathBuf> {
        self.below.ancestors().map(|below| self.mount.join(below))
    }
}

/// A line of `mountinfo`.
struct Mount<'a> {
    /// The mounted part of the file system.
    root: &'a str,
    place: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, place) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let kind = system.next()?;
        let options = system.nth(1)?;
        // The kernel writes blanks in octal.
        Some(Mount { root, place: place.replace("\\040", " ").into(), kind, options })
    }

    fn group(self, version: u8, path: &str) -> Group {
        // In a container the mount may show only a part of the tree, or the path may lead outside of it.
        let below = Path::new(path).strip_prefix(self.root).unwrap_or(Path::new(""));
        let below = if below.components().any(|part| part.as_os_str() == "..") { Path::new("") } else { below };
        Group { version, mount: self.place, below: below.to_owned() }
    }
}

/// The number of cores that a quota amounts to; `None` for `max` and -1.
fn quota(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (u64, u64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (period > 0).then(|| quota as f64 / period as f64)
}

/// A limit or use of memory; `None` for `max`, and for the large number that version 1 uses instead.
fn byte_count(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&bytes| bytes < 1 << 60)
}

/// Bytes of cached files in `memory.stat`. Version 1 also counts the groups below, under names of their own.
fn cached(stat: &str) -> u64 {
    let value =
        |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
    let lists = ["active_file", "inactive_file"];
    lists.iter().filter_map(|list| value(&format!("total_{list}")).or_else(|| value(list))).fold(0, u64::saturating_add)
}

/// The counter in `memory.events` or `memory.oom_control`.
fn killed_for_memory(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "20 19 0:38 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
    const HYBRID: &str = "\
10 31 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
12 33 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
15 36 0:33 /docker/7 /sys/fs/cgroup/my\\040memory rw - cgroup cgroup rw,memory
20 41 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
no mount at all";

    #[test]
    fn groups() {
        let check = |membership: &str, mounts: &str, controller: &str, expected: Option<(u8, &str, &str)>| {
            let found = Group::find(membership, mounts, controller);
            let expected =
                expected.map(|(version, mount, below)| Group { version, mount: mount.into(), below: below.into() });
            assert_eq!(found, expected, "{membership} {controller}");
        };
        check("0::/user.slice/a.scope\n", UNIFIED, "cpu", Some((2, "/sys/fs/cgroup", "user.slice/a.scope")));
        check("0::/\n", UNIFIED, "memory", Some((2, "/sys/fs/cgroup", "")));
        check("0::/../../elsewhere\n", UNIFIED, "memory", Some((2, "/sys/fs/cgroup", "")));
        let both = "5:memory:/docker/7/inner\n4:cpu,cpuacct:/docker/7\n3:cpuset:/\n0::/\n";
        check(both, HYBRID, "cpu", Some((1, "/sys/fs/cgroup/cpu,cpuacct", "docker/7")));
        check(both, HYBRID, "memory", Some((1, "/sys/fs/cgroup/my memory", "inner")));
        // Outside the mounted part.
        check("5:memory:/other\n", HYBRID, "memory", Some((1, "/sys/fs/cgroup/my memory", "")));
        // The controller has moved to the unified tree.
        check("0::/a\n", HYBRID, "pids", Some((2, "/sys/fs/cgroup/unified", "a")));
        check("", HYBRID, "cpu", None);
        check(both, "", "cpu", None);
        check("nonsense", "nonsense", "cpu", None);
    }

    #[test]
    fn every_group_above_counts() {
        let group = Group { version: 2, mount: "/m".into(), below: "a/b".into() };
        let folders: Vec<_> = group.folders().map(|folder| folder.display().to_string()).collect();
        assert_eq!(folders, ["/m/a/b", "/m/a", "/m/"]);
    }

    #[test]
    fn numbers() {
        let check = |a: &str, b: &str, expected: Option<f64>| assert_eq!(quota(a, b), expected, "{a} {b}");
        check("150000", "100000\n", Some(1.5));
        check("max", "100000", None);
        check("-1\n", "100000\n", None);
        check("5", "0", None);
        let check = |text: &str, expected: Option<u64>| assert_eq!(byte_count(text), expected, "{text}");
        check("1073741824\n", Some(1 << 30));
        check("max\n", None);
        check("9223372036854771712\n", None);
        let check = |stat: &str, expected: u64| assert_eq!(cached(stat), expected, "{stat}");
        check("anon 5\nfile 9\ninactive_file 3\nactive_file 4\n", 7);
        check("inactive_file 3\nactive_file 4\ntotal_inactive_file 30\ntotal_active_file 40\n", 70);
        check("anon 5\nfile 9\n", 0);
        let check = |text: &str, expected: Option<u64>| assert_eq!(killed_for_memory(text), expected, "{text}");
        check("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", Some(2));
        check("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", Some(0));
        check("low 0\n", None);
    }
}
