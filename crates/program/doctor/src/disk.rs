//! Space for a run, for generated data, and for temporary files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, StatVfs, access, statvfs};

use crate::bounded::within;
use crate::memory::size;
use crate::report::{Finding, Section};

const MIB: u64 = 1 << 20;

/// Too little for one checkpoint of resnet34 with its optimiser state, and its successor.
const MIN: u64 = 400 * MIB;
/// Little enough to be used up soon by each epoch's weights.
const LITTLE: u64 = 4096 * MIB;

/// A file system that takes longer counts as unresponsive.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Examines the file systems of `places`, each once.
pub fn section(places: &[(&str, PathBuf)]) -> Section {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let findings = places.iter().map(|(name, place)| patient_look(name, place, &mounts)).collect();
    Section { title: "disk", findings }
}

fn patient_look(name: &str, place: &Path, mounts: &str) -> Finding {
    let own = (name.to_owned(), place.to_owned(), mounts.to_owned());
    within(TIMEOUT, move || look(&own.0, &own.1, &own.2)).unwrap_or_else(|| {
        let text = format!("{}: no answer within {} s", place.display(), TIMEOUT.as_secs());
        Finding::problem(name, text, "its file server does not answer: check it, or choose another folder")
    })
}

fn look(name: &str, place: &Path, mounts: &str) -> Finding {
    // A folder that does not exist yet will be created in the nearest existing one.
    let place = std::path::absolute(place).unwrap_or_else(|_| place.to_owned());
    let existing = place.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    match statvfs(existing) {
        Ok(stat) => {
            let kind = file_system(mounts, &existing.canonicalize().unwrap_or_else(|_| existing.to_owned()));
            let writable = access(existing, Access::WRITE_OK).is_ok();
            Space::of(&stat, kind, writable).finding(name, &place)
        }
        Err(error) => {
            let text = format!("{}: cannot be examined: {}", place.display(), std::io::Error::from(error));
            Finding::problem(name, text, "choose another folder")
        }
    }
}

/// The remaining space of a file system.
struct Space {
    free: u64,
    total: u64,
    /// The number of files that can still be created; `None` if the file system does not count them.
    files: Option<u64>,
    kind: String,
    writable: bool,
}

impl Space {
    fn of(stat: &StatVfs, kind: String, writable: bool) -> Self {
        let files = (stat.f_files > 0).then_some(stat.f_favail);
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Space { free: bytes(stat.f_bavail), total: bytes(stat.f_blocks), files, kind, writable }
    }

    fn finding(&self, name: &str, place: &Path) -> Finding {
        let Space { free, total, files, ref kind, writable } = *self;
        let text = format!("{}: {} free of {} ({kind})", place.display(), size(free), size(total));
        let finding = if !writable {
            let remedy = "choose a folder of your own, or mount it for writing";
            Finding::problem(name, format!("{text}, which this user may not write to"), remedy)
        } else if free < MIN {
            Finding::problem(name, text, "free some space: a checkpoint and its successor do not fit")
        } else if files.is_some_and(|files| files < 1000) {
            let text = format!("{text}, but only {} more files", files.unwrap_or(0));
            Finding::problem(name, text, "remove files: the file system has no room for more of them")
        } else if free < LITTLE {
            Finding::note(name, text, "free some space before a long run: each epoch's weights are kept")
        } else if matches!(kind.as_str(), "tmpfs" | "ramfs") && name == "runs" {
            Finding::note(
                name,
                text,
                "this is memory: checkpoints take room there, and are gone after a restart; see --out",
            )
        } else {
            Finding::ok(name, text)
        };
        finding.fact("path", place.display().to_string()).fact("free_bytes", free).fact("file_system", kind.as_str())
    }
}

/// The kind of the file system that holds `path`: that of the longest mount point above it, and of several the last.
fn file_system(mounts: &str, path: &Path) -> String {
    let entries = mounts.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let place = PathBuf::from(mount.split(' ').nth(4)?.replace("\\040", " "));
        Some((place, system.split(' ').next()?))
    });
    let holding = entries.filter(|(place, _)| path.starts_with(place));
    let longest = holding.max_by_key(|(place, _)| place.components().count());
    longest.map_or("unknown file system", |(_, kind)| kind).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;

    #[test]
    fn spaces() {
        let check = |free: u64, files: Option<u64>, kind: &str, writable: bool, expected: Status| {
            let space = Space { free: free * MIB, total: 9000 * MIB, files, kind: kind.to_owned(), writable };
            assert_eq!(space.finding("runs", Path::new("/a")).status, expected, "{free} {files:?} {kind} {writable}");
        };
        check(8000, None, "ext4", true, Status::Ok);
        check(8000, Some(1000), "ext4", true, Status::Ok);
        check(8000, Some(999), "ext4", true, Status::Problem);
        check(4095, None, "ext4", true, Status::Note);
        check(399, None, "ext4", true, Status::Problem);
        check(8000, None, "ext4", false, Status::Problem);
        check(8000, None, "tmpfs", true, Status::Note);
        let space = Space { free: 8000 * MIB, total: 9000 * MIB, files: None, kind: "xfs".to_owned(), writable: true };
        assert_eq!(space.finding("runs", Path::new("/a b")).text, "/a b: 8000 MiB free of 9000 MiB (xfs)");
    }

    #[test]
    fn file_systems() {
        let mounts = "\
1 0 8:1 / / rw - ext4 /dev/a rw
2 1 0:2 / /data rw shared:1 - nfs4 server:/export rw
3 1 0:3 / /my\\040data rw - xfs /dev/b rw
4 1 0:4 / /data rw - overlay overlay rw
nonsense";
        let check = |path: &str, expected: &str| assert_eq!(file_system(mounts, Path::new(path)), expected);
        check("/", "ext4");
        check("/database", "ext4");
        check("/data/x", "overlay");
        check("/my data/x", "xfs");
        assert_eq!(file_system("", Path::new("/")), "unknown file system");
    }

    #[test]
    fn a_folder_that_is_still_to_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let [finding] = &section(&[("temporary", folder.path().join("a/b"))]).findings[..] else { panic!() };
        assert!(finding.text.contains("a/b: ") && finding.facts["free_bytes"].as_u64().unwrap() > 0, "{finding:?}");
    }
}
