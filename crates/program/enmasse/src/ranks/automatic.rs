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

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use enmasse::devices::{KINDS, Preferred, has_passed, preferred};
use enmasse_device::Seen;
use enmasse_train::{DeviceSelection, Devices, ProgramConfig, RunConfig};
use enmasse_wording::counted;

use crate::commands::SELF_TEST;
use crate::output::say;

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

/// This number of devices for a process without a launcher, if as many can be taken; says which stay idle.
pub fn exactly(config: &RunConfig, ranks: usize) -> Option<Devices> {
    let taken = of_machine(config, ranks);
    taken.lines.iter().for_each(say);
    let (kind, numbers) = taken.devices.filter(|(_, numbers)| numbers.len() == ranks)?;
    Some(Devices { selection: DeviceSelection::List(numbers), ..Devices::new(kind, 1) })
}

/// The devices of a process without a launcher, with a test of a device.
fn take(found: &Preferred, config: &ProgramConfig, most: usize, test: &dyn Fn(&[&Seen]) -> TestResults) -> Taken {
    let seen = match (&found.seen, refusal(config)) {
        (Ok(seen), None) => seen,
        (Err(_), _) if is_hidden() => return Taken::default(),
        (Err(why), None) => return Taken { devices: None, lines: vec![not_taken(found.kind, why)] },
        (_, Some(why)) => return Taken { devices: None, lines: vec![not_taken(found.kind, &why)] },
    };
    // A line, and what is said after its reason.
    let (mut lines, mut numbers) = (Vec::new(), Vec::new());
    let mut candidates = Vec::new();
    for device in seen {
        let idle = |why: &str| format!("warning: {} stays idle: {why}", device.name);
        match (&device.unusable, &device.busy) {
            (Some(why), _) => lines.push((idle(why), String::new())),
            (None, Some(why)) => {
                let which = if most == 1 { format!("{},", device.number) } else { "all".to_owned() };
                lines.push((idle(why), format!("; --devices {}:{which} takes it", found.kind)));
            }
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
                Err(why) => {
                    let line = format!("warning: {} fails its self-test: {why}; it stays idle", device.name);
                    lines.push((line, String::new()));
                }
            }
        }
    }
    if numbers.is_empty()
        && let Some((last, _)) = lines.last_mut()
    {
        last.push_str(&format!(", so the {} is used", KINDS[0].name));
    }
    let lines = lines.into_iter().map(|(line, remedy)| line + &remedy).collect();
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
pub struct Candidate {
    own: Own,
    /// The numbers and names of all devices that it sees and that can be taken. Its own is not among them if it fails.
    free: Vec<(usize, String)>,
}

/// The device of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Own {
    /// The device of its local rank works: its kind and its name for the whole job.
    Works { kind: String, unit: String },
    /// It has one that cannot be taken.
    Fails(String),
    /// Its machine has too few, or none for this run.
    Lacks(String),
    /// Its machine has none.
    None,
}

impl Candidate {
    /// That of a rank: the only device that its launcher leaves it, or the one with its local rank.
    pub fn of_rank(config: &ProgramConfig, local_rank: usize) -> Self {
        let alone = |own: Own| Candidate { own, free: Vec::new() };
        let Some(found) = preferred() else { return alone(Own::None) };
        let seen = match (&found.seen, refusal(config)) {
            (Ok(seen), None) => seen,
            (Err(_), _) if is_hidden() => return alone(Own::None),
            (Err(why), None) => return alone(Own::Lacks(why.clone())),
            (_, Some(why)) => return alone(Own::Lacks(why)),
        };
        let device = number_of_rank(seen.len(), local_rank, config.share_devices).and_then(|n| seen.get(n));
        let own =
            device.map_or_else(|| Own::Lacks(too_few(found.kind, seen.len())), |device| Own::of(found.kind, device));
        let failed = device.filter(|_| matches!(own, Own::Fails(_))).map(|device| device.number);
        let free = seen
            .iter()
            .filter(|device| device.unusable.is_none() && device.busy.is_none() && failed != Some(device.number));
        Candidate { own, free: free.map(|device| (device.number, device.unit.clone())).collect() }
    }

    /// For the other ranks.
    pub fn to_text(&self) -> String {
        let free: Vec<String> = self.free.iter().map(|(number, unit)| format!("{number} {unit}")).collect();
        let own = match &self.own {
            Own::Works { kind, unit } => format!("works\n{kind}\n{unit}"),
            Own::Fails(why) => format!("fails\n{why}"),
            Own::Lacks(why) => format!("lacks\n{why}"),
            Own::None => "none".to_owned(),
        };
        format!("{}\n\n{own}", free.join("\n"))
    }

    /// Of another rank.
    pub fn from_text(text: &str) -> Self {
        let (free, own) = text.split_once("\n\n").unwrap_or_default();
        let own = match own.split_once('\n') {
            Some(("works", rest)) => {
                let (kind, unit) = rest.split_once('\n').unwrap_or((rest, ""));
                Own::Works { kind: kind.to_owned(), unit: unit.to_owned() }
            }
            Some(("fails", why)) => Own::Fails(why.to_owned()),
            Some(("lacks", why)) => Own::Lacks(why.to_owned()),
            _ => Own::None,
        };
        let device = |line: &str| {
            let (number, unit) = line.split_once(' ')?;
            Some((number.parse().ok()?, unit.to_owned()))
        };
        Candidate { own, free: free.lines().filter_map(device).collect() }
    }
}

impl Own {
    fn of(kind: &str, device: &Seen) -> Self {
        let outcome = match &device.unusable {
            Some(why) => Err(why.clone()),
            None => self_test(&[device]).remove(0).map_err(|why| format!("{} fails its self-test: {why}", device.name)),
        };
        outcome.map_or_else(Own::Fails, |()| Own::Works { kind: kind.to_owned(), unit: device.unit.clone() })
    }
}

fn too_few(kind: &str, seen: usize) -> String {
    let devices = counted(seen, &kind.to_uppercase());
    format!("its machine has {devices} for more ranks; start one rank for each, or let them share with --share-devices")
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

/// What all ranks take, by what each found: the kind of GPUs if each has one of its own, otherwise `None` for CPUs. With it comes the line
/// that says why, or which GPUs stay idle.
pub fn together(ranks: &[Candidate], shared: bool) -> (Option<String>, Option<String>) {
    let because = |rank: usize, why: &str| (None, Some(not_taken("gpu", &format!("{why} (rank {rank})"))));
    if ranks.iter().all(|rank| rank.own == Own::None) {
        return (None, None);
    }
    let mut units: Vec<&str> = Vec::new();
    for (rank, candidate) in ranks.iter().enumerate() {
        match &candidate.own {
            Own::Fails(why) => {
                let (kind, line) = because(rank, why);
                return (kind, line.map(|line| line + &remedy(ranks).unwrap_or_default()));
            }
            Own::Lacks(why) => return because(rank, why),
            Own::None => return because(rank, "its machine has none"),
            Own::Works { unit, .. } => match units.iter().position(|other| other == unit) {
                Some(twin) if !shared => {
                    let why = format!(
                        "it has the same as rank {twin} ({unit}); start one rank for each GPU, or let them share with --share-devices"
                    );
                    return because(rank, &why);
                }
                _ => units.push(unit),
            },
        }
    }
    let kind = match ranks.first().map(|rank| &rank.own) {
        Some(Own::Works { kind, .. }) => Some(kind.clone()),
        _ => None,
    };
    let all: BTreeSet<&str> = ranks.iter().flat_map(|rank| &rank.free).map(|(_, unit)| unit.as_str()).collect();
    let idle = all.iter().filter(|unit| !units.contains(*unit)).count();
    let stay = if idle == 1 { "stays" } else { "stay" };
    let line = format!(
        "{} {stay} idle, by {} for {}; start {} ranks, one for each, to take all",
        counted(idle, "GPU"),
        counted(ranks.len(), "rank"),
        idle + ranks.len(),
        idle + ranks.len(),
    );
    (kind, (idle > 0).then_some(line))
}

/// How ranks of one machine take the GPUs beside those that fail.
fn remedy(ranks: &[Candidate]) -> Option<String> {
    let (first, others) = ranks.split_first()?;
    let works = first.free.iter().filter(|device| others.iter().all(|rank| rank.free.contains(device)));
    let numbers: Vec<usize> = works.map(|(number, _)| *number).take(ranks.len()).collect();
    if numbers.is_empty() {
        return None;
    }
    let start = counted(numbers.len(), "rank");
    let devices = Devices { selection: DeviceSelection::List(numbers), ..Devices::new("gpu", 1) };
    Some(format!("; start {start} with --devices {devices} to take the others"))
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
        let last = "warning: gpu 1 (G) fails its self-test: x is off; it stays idle, so the cpu is used";
        check(&[None, None], &[0, 1], 8, &[], &[both, last]);
        let busy = "warning: gpu 0 (G) stays idle: python computes on it; --devices gpu:all takes it";
        check(&[Some("python computes on it"), None], &[], 8, &[1], &[busy]);
        let busy = "warning: gpu 0 (G) stays idle: it is too hot, so the cpu is used; --devices gpu:0, takes it";
        check(&[Some("it is too hot")], &[], 1, &[], &[busy]);
    }

    /// A rank that sees the units of these letters, on a machine of its own if there are none.
    fn candidate(own: Own, free: &str) -> Candidate {
        Candidate { own, free: free.chars().map(String::from).enumerate().collect() }
    }

    fn works(unit: &str) -> Own {
        Own::Works { kind: "gpu".into(), unit: unit.into() }
    }

    /// What ranks take, and the end of the line.
    #[track_caller]
    fn take_together(ranks: &[Candidate], shared: bool, takes: bool, line: Option<&str>) {
        let sent: Vec<Candidate> = ranks.iter().map(|rank| Candidate::from_text(&rank.to_text())).collect();
        assert_eq!(sent, ranks);
        let (kind, said) = together(ranks, shared);
        assert_eq!(kind.as_deref(), takes.then_some("gpu"));
        match (&said, line) {
            (Some(said), Some(part)) => assert!(said.ends_with(part), "{said}"),
            _ => assert_eq!(said.as_deref(), line),
        }
    }

    #[test]
    fn a_rank_without_a_gpu_of_its_own_puts_all_on_cpus() {
        let lacks = |why: &str| Own::Lacks(why.into());
        let check = |ranks: &[Own], shared: bool, takes: bool, line: Option<&str>| {
            let ranks: Vec<Candidate> = ranks.iter().map(|own| candidate(own.clone(), "")).collect();
            take_together(&ranks, shared, takes, line);
        };
        check(&[works("a"), works("b")], false, true, None);
        check(&[Own::None, Own::None], false, false, None);
        check(&[works("a"), Own::None], false, false, Some("its machine has none (rank 1)"));
        check(&[works("a"), lacks("too\nold")], true, false, Some("too\nold (rank 1)"));
        check(&[works("a"), Own::Fails("off".into())], false, false, Some("off (rank 1)"));
        check(&[works("a"), works("a")], true, true, None);
        let twin = "it has the same as rank 0 (a); start one rank for each GPU, or let them share with --share-devices (rank 1)";
        check(&[works("a"), works("a")], false, false, Some(twin));
    }

    #[test]
    fn gpus_beyond_the_ranks_were_idle_without_a_word() {
        let two = [candidate(works("a"), "abcd"), candidate(works("b"), "abcd")];
        let line = "2 GPUs stay idle, by 2 ranks for 4; start 4 ranks, one for each, to take all";
        take_together(&two, false, true, Some(line));
        let one = "1 GPU stays idle, by 1 rank for 2; start 2 ranks, one for each, to take all";
        take_together(&[candidate(works("b"), "ab")], false, true, Some(one));
        // Each sees its own, and those of each machine count.
        take_together(&[candidate(works("a"), "a"), candidate(works("b"), "b")], false, true, None);
        let nodes = [candidate(works("a"), "ab"), candidate(works("c"), "cd")];
        take_together(&nodes, false, true, Some(line));
    }

    #[test]
    fn the_gpus_beside_one_that_fails_were_not_named() {
        let fails = || Own::Fails("gpu 1 fails".into());
        let line = "gpu 1 fails (rank 1); start 3 ranks with --devices gpu:0,2,3 to take the others";
        let seen = |own: Own| Candidate { own, ..candidate(Own::None, "abcd") };
        let failed =
            || Candidate { own: fails(), free: [(0, "a"), (2, "c"), (3, "d")].map(|(n, u)| (n, u.into())).into() };
        take_together(&[seen(works("a")), failed(), seen(works("c")), seen(works("d"))], false, false, Some(line));
        let line = "gpu 1 fails (rank 1); start 2 ranks with --devices gpu:0,2 to take the others";
        take_together(&[seen(works("a")), failed()], false, false, Some(line));
        // Nodes have their own numbers.
        take_together(&[candidate(works("a"), "ab"), candidate(fails(), "c")], false, false, Some("fails (rank 1)"));
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
