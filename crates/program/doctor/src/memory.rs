//! Memory, and other limits that the kernel sets for this process.

use std::io::Error;
use std::thread::Builder;

use enmasse_system::machine::{Limits, MemInfo};
use enmasse_wording::counted;
use rustix::process::{Resource, getrlimit};

use crate::report::{Finding, Section};

const MIB: u64 = 1 << 20;

/// Too little for any training.
const MIN: u64 = 256 * MIB;
/// Too little for resnet34 in batches of 32 at 224 pixels.
const LITTLE: u64 = 2048 * MIB;
/// A rank opens tens of files: those of its data set, sockets to other ranks, logs.
const FEW_FILES: u64 = 1024;

pub fn section(limits: &Limits) -> Section {
    let mut findings = vec![match MemInfo::gather() {
        Some(machine) => finding(&machine, limits),
        None => Finding::note("memory", "the kernel does not say how much there is", "check that /proc is mounted"),
    }];
    findings.extend(limits.killed_for_memory.filter(|&count| count > 0).map(killed));
    findings.push(open_files(getrlimit(Resource::Nofile).current));
    findings.extend(Builder::new().spawn(|| ()).err().map(no_threads));
    Section { title: "memory and limits", findings }
}

/// What the machine has, and what a control group leaves of it.
fn finding(machine: &MemInfo, limits: &Limits) -> Finding {
    let MemInfo { total, available, swap } = *machine;
    let mut text = format!("{} available of {}", size(available), size(total));
    let left = match limits.memory {
        Some((limit, used)) if limit < total => {
            text.push_str(&format!("; the control group may use {}, and uses {}", size(limit), size(used)));
            available.min(limit.saturating_sub(used))
        }
        _ => available,
    };
    text.push_str(&match swap {
        0 => "; no swap".to_owned(),
        _ => format!("; {} of swap", size(swap)),
    });
    let finding = match left {
        0..MIN => Finding::problem("memory", text, "end other programs, or ask for more memory (Slurm: --mem)"),
        MIN..LITTLE => Finding::note("memory", text, "choose a small --batch, or ask for more memory (Slurm: --mem)"),
        _ => Finding::ok("memory", text),
    };
    finding.fact("total_bytes", total).fact("available_bytes", available).fact("left_bytes", left)
}

fn killed(count: u64) -> Finding {
    let text = format!(
        "the kernel has killed {} of this control group because memory ran out",
        counted(count as usize, "process")
    );
    Finding::note("killed", text, "ask for more memory (Slurm: --mem), or lower --batch or the number of ranks")
        .fact("killed", count)
}

/// `None` means no limit.
fn open_files(limit: Option<u64>) -> Finding {
    let finding = match limit {
        Some(limit) if limit < FEW_FILES => {
            let remedy = format!("raise it: ulimit -n {FEW_FILES}");
            Finding::note("open files", format!("at most {limit} at a time"), remedy)
        }
        Some(limit) => Finding::ok("open files", format!("at most {limit} at a time")),
        None => Finding::ok("open files", "without limit"),
    };
    finding.fact("limit", limit)
}

/// The limit alone says little: it counts all processes of this user, and a control group has its own limit.
fn no_threads(error: Error) -> Finding {
    let remedy = "end other programs, or raise the limit on processes (ulimit -u, or pids.max of the control group)";
    Finding::problem("threads", format!("no further thread can be started: {error}"), remedy)
}

/// A size for people: in MiB up to 10 GiB, then in GiB.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..MIB => format!("{:.1} KiB", bytes as f64 / 1024.0),
        MIB..10_737_418_240 => format!("{} MiB", bytes / MIB),
        _ => format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;

    #[test]
    fn findings() {
        let gib = |count: u64| count << 30;
        let check = |available, memory: Option<(u64, u64)>, status: Status, expected: &str| {
            let limits = Limits { memory, ..Limits::default() };
            let found = finding(&MemInfo { total: gib(32), available, swap: 0 }, &limits);
            assert_eq!((found.status, found.text.as_str()), (status, expected));
        };
        check(gib(20), None, Status::Ok, "20.0 GiB available of 32.0 GiB; no swap");
        check(gib(1), None, Status::Note, "1024 MiB available of 32.0 GiB; no swap");
        check(gib(0), None, Status::Problem, "0.0 KiB available of 32.0 GiB; no swap");
        let text = "20.0 GiB available of 32.0 GiB; the control group may use 4096 MiB, and uses 3072 MiB; no swap";
        check(gib(20), Some((gib(4), gib(3))), Status::Note, text);
        let text = "20.0 GiB available of 32.0 GiB; the control group may use 4096 MiB, and uses 5120 MiB; no swap";
        check(gib(20), Some((gib(4), gib(5))), Status::Problem, text);
        // A limit above the machine's memory has no effect.
        check(gib(20), Some((gib(64), gib(3))), Status::Ok, "20.0 GiB available of 32.0 GiB; no swap");
        assert_eq!(open_files(Some(256)).status, Status::Note);
        assert_eq!(open_files(Some(1024)).status, Status::Ok);
        assert_eq!(open_files(None).status, Status::Ok);
        assert!(killed(2).text.contains("killed 2 processes"));
    }
}
