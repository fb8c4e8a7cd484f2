//! What `--devices auto`, the default, takes: the GPUs that pass their self-test, on which nobody
//! else computes, and that are not too hot. Otherwise CPUs.
//!
//! It is decided once. A process without a launcher decides where settings are checked
//! (`settings::finish`), and tells the ranks that it starts. `gpu:free:N` becomes a list of numbers
//! at the same place. Ranks of a launched job each look at the GPU of their local rank, and take
//! GPUs only if every rank has one of its own (`Rank::settle`). The run's record keeps the word
//! `auto`, not the decision.
//!
//! The self-test runs in a process of its own. So the process that starts the ranks takes no memory
//! of a GPU, and a GPU that hangs is given up after a minute.

use std::collections::HashMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use enmasse::devices::{KINDS, Preferred, has_passed, preferred};
use enmasse_device::Seen;
use enmasse_train::{ProgramConfig, RunConfig};
use enmasse_wording::counted;

use crate::commands::SELF_TEST;

/// How long the process of a self-test may take, most of which is opening the GPU.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What this process takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The kind and the numbers; `None` for CPUs.
    pub devices: Option<(&'static str, Vec<usize>)>,
    /// What is said of those that stay idle.
    pub lines: Vec<String>,
}

/// The devices of a process without a launcher: `most` at most.
pub fn of_machine(config: &RunConfig, most: usize) -> Taken {
    let Some(found) = preferred() else { return Taken::default() };
    take(found, &config.program, most, &self_test)
}

/// The same, with a test of a device.
fn take(found: &Preferred, config: &ProgramConfig, most: usize, test: &dyn Fn(&[&Seen]) -> TestResults) -> Taken {
    let seen = match (&found.seen, refusal(config)) {
        (Ok(seen), None) => seen,
        (Err(_), _) if is_hidden() => return Taken::default(),
        (Err(why), None) => return Taken { devices: None, lines: vec![not_taken(found.kind, why)] },
        (_, Some(why)) => return Taken { devices: None, lines: vec![not_taken(found.kind, &why)] },
    };
    let (mut lines, mut numbers) = (Vec::new(), Vec::new());
    let mut candidates = Vec::new();
    for device in seen {
        match (&device.unusable, &device.busy) {
            (Some(why), _) => lines.push(format!("warning: {} stays idle: {why}", device.name)),
            (None, Some(why)) => lines.push(format!(
                "warning: {} stays idle: {why}; --devices {} takes it",
                device.name,
                if most == 1 { format!("{}:{},", found.kind, device.number) } else { format!("{}:all", found.kind) }
            )),
            (None, None) => candidates.push(device),
        }
    }
    // One process computes on the first that passes; ranks of several processes test theirs at once.
    for group in candidates.chunks(most.min(candidates.len()).max(1)) {
        if numbers.len() >= most {
            break;
        }
        for (device, outcome) in group.iter().zip(test(group)) {
            match outcome {
                Ok(()) => numbers.push(device.number),
                Err(why) => lines.push(format!("warning: {} fails its self-test: {why}; it stays idle", device.name)),
            }
        }
    }
    if numbers.is_empty()
        && let Some(last) = lines.last_mut()
    {
        last.push_str(&format!(", and the {} is used", KINDS[0].name));
    }
    Taken { devices: (!numbers.is_empty()).then_some((found.kind, numbers)), lines }
}

/// What tests say, for each device.
type TestResults = Vec<Result<(), String>>;

/// Why a GPU cannot compute as the user asks.
fn refusal(config: &ProgramConfig) -> Option<String> {
    let isa = config.isa.as_ref()?.escape_default();
    Some(format!("--isa {isa}: a GPU has no instruction-set levels; leave it out"))
}

/// Whether the user, or a scheduler, hides all GPUs from this process.
fn is_hidden() -> bool {
    std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|list| matches!(list.as_str(), "" | "-1" | "NoDevFiles"))
}

fn not_taken(kind: &str, why: &str) -> String {
    format!("warning: --devices auto takes {}, not the machine's {}: {why}", KINDS[0].name, kind.to_uppercase())
}

/// The number of GPUs that this process may use.
pub fn visible() -> usize {
    preferred().and_then(|found| found.seen.as_ref().ok()).map_or(0, Vec::len)
}

/// The line that tells of devices which stay idle because the user named others, as `said`.
pub fn idle_by_request(said: &str) -> Option<String> {
    let found = preferred()?;
    let count = found.seen.as_ref().ok()?.iter().filter(|device| device.unusable.is_none()).count();
    let (stay, them) = if count == 1 { ("stays", "it") } else { ("stay", "them") };
    let devices = counted(count, &found.kind.to_uppercase());
    (count > 0).then(|| format!("{devices} {stay} idle, by {said}; --devices auto takes {them}"))
}

/// What a rank of a launched job found, which it tells the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Candidate {
    /// The device of its local rank works: its kind and its name for the whole job.
    Works { kind: String, unit: String },
    /// It has one that cannot be taken, or its machine has too few.
    Lacks(String),
    /// Its machine has none.
    None,
}

impl Candidate {
    /// That of a rank: the only device that its launcher leaves it, or the one with its local rank.
    pub fn of_rank(config: &ProgramConfig, local_rank: usize) -> Self {
        let Some(found) = preferred() else { return Candidate::None };
        let seen = match (&found.seen, refusal(config)) {
            (Ok(seen), None) => seen,
            (Err(_), _) if is_hidden() => return Candidate::None,
            (Err(why), None) => return Candidate::Lacks(why.clone()),
            (_, Some(why)) => return Candidate::Lacks(why),
        };
        let Some(device) = number_of_rank(seen.len(), local_rank, config.share_devices).and_then(|n| seen.get(n))
        else {
            let devices = counted(seen.len(), &found.kind.to_uppercase());
            return Candidate::Lacks(format!(
                "its machine has {devices} for more ranks; start one rank for each, or let them share with --share-devices"
            ));
        };
        let outcome = match &device.unusable {
            Some(why) => Err(why.clone()),
            None => self_test(&[device]).remove(0).map_err(|why| format!("{} fails its self-test: {why}", device.name)),
        };
        match outcome {
            Ok(()) => Candidate::Works { kind: found.kind.to_owned(), unit: device.unit.clone() },
            Err(why) => Candidate::Lacks(why),
        }
    }

    /// For the other ranks.
    pub fn to_text(&self) -> String {
        match self {
            Candidate::Works { kind, unit } => format!("works\n{kind}\n{unit}"),
            Candidate::Lacks(why) => format!("lacks\n{why}"),
            Candidate::None => "none".to_owned(),
        }
    }

    /// Of another rank.
    pub fn from_text(text: &str) -> Self {
        match text.split_once('\n') {
            Some(("works", rest)) => {
                let (kind, unit) = rest.split_once('\n').unwrap_or((rest, ""));
                Candidate::Works { kind: kind.to_owned(), unit: unit.to_owned() }
            }
            Some(("lacks", why)) => Candidate::Lacks(why.to_owned()),
            _ => Candidate::None,
        }
    }
}

/// The number of a rank's device among those that it sees.
pub fn number_of_rank(seen: usize, local_rank: usize, shared: bool) -> Option<usize> {
    match seen {
        0 => None,
        1 => Some(0),
        _ if shared => Some(local_rank % seen),
        _ => Some(local_rank).filter(|number| *number < seen),
    }
}

/// What all ranks take, by what each found: GPUs of this kind if each has one of its own, otherwise CPUs, with the line that says why.
pub fn together(ranks: &[Candidate], shared: bool) -> Result<String, Option<String>> {
    let because = |rank: usize, why: &str| Some(not_taken("gpu", &format!("{why} (rank {rank})")));
    if ranks.iter().all(|rank| *rank == Candidate::None) {
        return Err(None);
    }
    for (rank, candidate) in ranks.iter().enumerate() {
        match candidate {
            Candidate::Lacks(why) => return Err(because(rank, why)),
            Candidate::None => return Err(because(rank, "its machine has none")),
            Candidate::Works { unit, .. } => {
                let twin = ranks[..rank]
                    .iter()
                    .position(|other| matches!(other, Candidate::Works { unit: of, .. } if of == unit));
                if let Some(twin) = twin.filter(|_| !shared) {
                    let why = format!(
                        "it has the same as rank {twin} ({unit}); start one rank for each GPU, or let them share with --share-devices"
                    );
                    return Err(because(rank, &why));
                }
            }
        }
    }
    match ranks.first() {
        Some(Candidate::Works { kind, .. }) => Ok(kind.clone()),
        _ => Err(None),
    }
}

/// Tests devices, each in a process of its own and all at once: the process that starts ranks takes no memory of a GPU, and one that
/// hangs or breaks its process does no harm. A device is tested once by a process.
fn self_test(devices: &[&Seen]) -> TestResults {
    static TESTED: Mutex<Option<HashMap<String, Result<(), String>>>> = Mutex::new(None);
    let mut tested = TESTED.lock().unwrap_or_else(PoisonError::into_inner);
    let tested = tested.get_or_insert_default();
    let running: Vec<_> = devices
        .iter()
        .filter(|device| !tested.contains_key(&device.key) && !has_passed(&device.key))
        .map(|device| (device.key.clone(), start(device.number)))
        .collect();
    let ended: Vec<_> = running.into_iter().map(|(key, process)| (key, process.and_then(Tester::end))).collect();
    tested.extend(ended);
    devices.iter().map(|device| tested.get(&device.key).cloned().unwrap_or(Ok(()))).collect()
}

/// A process that tests a device.
struct Tester {
    process: std::process::Child,
    /// What it prints, once it has ended.
    printed: mpsc::Receiver<String>,
}

fn start(number: usize) -> Result<Tester, String> {
    let failed = |error: std::io::Error| format!("it cannot be started: {error}");
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args([SELF_TEST, &number.to_string()]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().map_err(failed)?;
    let (sender, printed) = mpsc::channel();
    if let Some(mut output) = process.stdout.take() {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = output.read_to_string(&mut text);
            let _ = sender.send(text);
        });
    }
    Ok(Tester { process, printed })
}

impl Tester {
    fn end(mut self) -> Result<(), String> {
        let Ok(text) = self.printed.recv_timeout(TIMEOUT) else {
            let _ = self.process.kill();
            let _ = self.process.wait();
            return Err(format!("it has not ended within {} s", TIMEOUT.as_secs()));
        };
        match (self.process.wait(), text.lines().next()) {
            (Ok(status), _) if status.success() => Ok(()),
            (_, Some(why)) => Err(why.to_owned()),
            (Ok(status), None) => Err(format!("its process ended with {status}")),
            (Err(error), None) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(number: usize, busy: Option<&str>) -> Seen {
        Seen {
            number,
            name: format!("gpu {number} (G)"),
            unit: format!("unit {number}"),
            key: format!("key {number}"),
            unusable: None,
            busy: busy.map(str::to_owned),
        }
    }

    #[test]
    fn idle_gpus_that_pass_are_taken() {
        let check = |all: &[Option<&str>], failing: &[usize], most: usize, numbers: &[usize], lines: &[&str]| {
            let all = all.iter().enumerate().map(|(number, busy)| seen(number, *busy)).collect();
            let found = Preferred { kind: "gpu", seen: Ok(all) };
            let test = |devices: &[&Seen]| -> TestResults {
                let outcome =
                    |device: &&Seen| if failing.contains(&device.number) { Err("x is off".to_owned()) } else { Ok(()) };
                devices.iter().map(outcome).collect()
            };
            let taken = take(&found, &RunConfig::default().program, most, &test);
            let expected = (!numbers.is_empty()).then(|| ("gpu", numbers.to_vec()));
            assert_eq!((taken.devices, taken.lines), (expected, lines.iter().map(|line| line.to_string()).collect()));
        };
        check(&[None, None], &[], 8, &[0, 1], &[]);
        check(&[None, None], &[], 1, &[0], &[]);
        check(&[None, None], &[0], 1, &[1], &["warning: gpu 0 (G) fails its self-test: x is off; it stays idle"]);
        let both = "warning: gpu 0 (G) fails its self-test: x is off; it stays idle";
        let last = "warning: gpu 1 (G) fails its self-test: x is off; it stays idle, and the cpu is used";
        check(&[None, None], &[0, 1], 8, &[], &[both, last]);
        let busy = "warning: gpu 0 (G) stays idle: python computes on it; --devices gpu:all takes it";
        check(&[Some("python computes on it"), None], &[], 8, &[1], &[busy]);
        let busy = "warning: gpu 0 (G) stays idle: it is too hot; --devices gpu:0, takes it, and the cpu is used";
        check(&[Some("it is too hot")], &[], 1, &[], &[busy]);
    }

    #[test]
    fn a_rank_without_a_gpu_of_its_own_puts_all_on_cpus() {
        let works = |unit: &str| Candidate::Works { kind: "gpu".into(), unit: unit.into() };
        let lacks = |why: &str| Candidate::Lacks(why.into());
        let check = |ranks: &[Candidate], shared: bool, expected: Result<&str, Option<&str>>| {
            let sent: Vec<Candidate> = ranks.iter().map(|rank| Candidate::from_text(&rank.to_text())).collect();
            assert_eq!(sent, ranks);
            let found = together(ranks, shared);
            match (&found, expected) {
                (Err(Some(line)), Err(Some(part))) => assert!(line.ends_with(part), "{line}"),
                _ => assert_eq!(found, expected.map(str::to_owned).map_err(|line| line.map(str::to_owned))),
            }
        };
        check(&[works("a"), works("b")], false, Ok("gpu"));
        check(&[Candidate::None, Candidate::None], false, Err(None));
        check(&[works("a"), Candidate::None], false, Err(Some("its machine has none (rank 1)")));
        check(&[works("a"), lacks("too\nold")], true, Err(Some("too\nold (rank 1)")));
        check(&[works("a"), works("a")], true, Ok("gpu"));
        let twin = "it has the same as rank 0 (a); start one rank for each GPU, or let them share with --share-devices (rank 1)";
        check(&[works("a"), works("a")], false, Err(Some(twin)));
    }

    #[test]
    fn ranks_take_gpus_by_their_local_rank() {
        let check = |seen, local_rank, shared, expected| assert_eq!(number_of_rank(seen, local_rank, shared), expected);
        check(8, 3, false, Some(3));
        check(2, 3, false, None);
        check(2, 3, true, Some(1));
        // Slurm's --gpus-per-task leaves each task one.
        check(1, 3, false, Some(0));
        check(0, 0, true, None);
    }
}
