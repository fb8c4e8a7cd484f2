//! What must hold after a fault, and after the resume that follows it.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::fault::{Act, Damage, Fault, Kind, Scenario, Victim, Victims};
use crate::run::{Ended, Reference, Start, State};

/// How a scenario went.
pub struct Outcome {
    /// Whether the fault happened before the end of the run.
    pub hit: bool,
    /// Whether the disturbed run was complete.
    pub completed: bool,
    /// Whether it, or its resume, ended with an error that names the cause.
    pub named: bool,
    /// Whether the resumed run had the losses and weights of an undisturbed one; `false` where a resume was refused.
    pub resumed: bool,
}

/// Runs a scenario. The error is what did not hold.
pub fn run(reference: &Reference, scenario: &Scenario) -> Result<Outcome, String> {
    let run = reference.new_run();
    let outcome = assess(reference, scenario, &run);
    let _ = fs::remove_dir_all(&run);
    outcome.map_err(|problem| format!("{problem}\n  {scenario:?}"))
}

fn assess(reference: &Reference, scenario: &Scenario, run: &Path) -> Result<Outcome, String> {
    let start = if scenario.kind == Kind::Restarted { Start::Restarting } else { Start::Fresh };
    let ended = disturb(reference, scenario.first, scenario.tcp, run, start)?;
    let hit = ended.hit.is_some();
    let completed = ended.code == Some(0);
    let named = ended.code == Some(1);
    let outcome = Outcome { hit, completed, named, resumed: true };
    if let Some((victim, damage)) = scenario.damage
        && apply(run, victim, damage)?
    {
        let (named, resumed) = assess_damaged(reference, run, victim)?;
        return Ok(Outcome { named, resumed, ..outcome });
    }
    if let Some(second) = scenario.second {
        disturb(reference, second, scenario.tcp, run, Start::Resumed)?;
    }
    let saved = step_of(run)?;
    let resumed = reference.resume(run, scenario.resumed_ranks);
    let context = |problem: String| format!("resumed: {problem}; {}", resumed.told());
    check(resumed.code == Some(0), || context("failed".to_owned()))?;
    check_losses(reference, &resumed).map_err(context)?;
    if scenario.second.is_none() && !is_finished(&resumed) {
        check_goes_on(reference, &resumed, saved).map_err(context)?;
    }
    check_leftovers(run).map_err(context)?;
    check_state(reference, run).map_err(context)?;
    Ok(outcome)
}

/// Starts a run, or goes on with it, with a fault, and checks what must hold then.
fn disturb(reference: &Reference, fault: Fault, tcp: bool, run: &Path, start: Start) -> Result<Ended, String> {
    let before = step_of(run)?;
    let ended = reference.disturb(run, fault, tcp, start);
    let assess = || {
        match start {
            Start::Fresh | Start::Resumed => check_end(fault, &ended)?,
            Start::Restarting => {
                check(ended.code == Some(0), || "the launcher did not restart".to_owned())?;
                check(ended.left.is_empty(), || format!("processes {:?} are left", ended.left))?;
            }
        }
        check_losses(reference, &ended)?;
        check_whole(run)?;
        if let (Some(_), Start::Fresh | Start::Resumed) = (&ended.hit, start) {
            check_nothing_lost(run, &ended, fault, before)?;
        }
        let twice = ended.steps().windows(2).find(|pair| pair[1] <= pair[0]).map(|pair| pair[1]);
        check(twice.is_none(), || format!("step {twice:?} ran twice"))?;
        if ended.code == Some(0) {
            check_leftovers(run)?;
            check_state(reference, run)?;
        }
        Ok(())
    };
    let hit = ended.hit.as_deref().unwrap_or("no call");
    assess().map_err(|problem: String| format!("{problem}\n  {fault:?}\n  at {hit}: {}", ended.told()))?;
    Ok(ended)
}

fn check(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

/// Resumes a run in which a file is damaged. It never trains on the damage without a word: either it refuses, or it tells,
/// or the file does not matter. Returns whether it told, and whether the run ended as an undisturbed one.
fn assess_damaged(reference: &Reference, run: &Path, victim: Victim) -> Result<(bool, bool), String> {
    // Where no checkpoint is left, the command names the settings, as that of any fresh start.
    let resumed = match run.join(Victim::Last.name()).exists() {
        true => reference.resume_bare(run),
        false => reference.resume(run, 1),
    };
    let context = |problem: String| format!("resumed: {problem}; {}", resumed.told());
    let file = Path::new(victim.name()).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if resumed.code != Some(0) {
        let errors = resumed.errors();
        let is_refused = resumed.code == Some(1) && errors.len() == 1;
        check(is_refused, || context("not refused in one line".to_owned()))?;
        let is_named = errors[0].contains(file);
        // A configuration that ends early, but between two lines, is one with other settings.
        check(is_named || victim == Victim::Config, || context("the refusal does not name the file".to_owned()))?;
        return Ok((is_named, false));
    }
    if is_finished(&resumed) {
        return Ok((false, reference.state == State::of(run).unwrap_or_default()));
    }
    check_leftovers(run).map_err(context)?;
    let is_told = |line: &str| line.contains(file) && !line.starts_with("settings: ");
    let warned = resumed.stderr.lines().any(|line| is_told(line) || line.contains(" -> "));
    let state = State::of(run).map_err(context)?;
    let whole = &reference.state;
    let trained = check_losses(reference, &resumed).is_ok() && state.last == whole.last;
    let differs = match victim {
        // The best of the epochs to come takes its place.
        Victim::Best => !trained || state.epochs != whole.epochs,
        // A digit that became another one is not noticed, and has no effect on training.
        Victim::Metrics => !trained || state.best != whole.best || state.epochs.len() != whole.epochs.len(),
        Victim::Last | Victim::Config | Victim::Split | Victim::Classes => !trained || state != *whole,
    };
    check(warned || !differs, || context(format!("goes on with other results without a word: {:?}", state.epochs)))?;
    Ok((warned, state == *whole))
}

/// The exit code, the cause, and that no process is left.
fn check_end(fault: Fault, ended: &Ended) -> Result<(), String> {
    check(ended.left.is_empty(), || format!("processes {:?} are left", ended.left))?;
    let errors = ended.errors();
    let rank = fault.moment.rank;
    // The parts of the error, of which one of each list must be there.
    let failed = |parts: &[&[&str]]| {
        check(ended.code == Some(1), || format!("code {:?} instead of 1", ended.code))?;
        check(errors.len() == 1, || format!("{} lines state an error", errors.len()))?;
        let error = errors[0].to_lowercase();
        let lacks = parts.iter().find(|any| !any.iter().any(|part| error.contains(&part.to_lowercase())));
        check(lacks.is_none(), || format!("the error does not say {:?}", lacks.unwrap()))
    };
    let well = || {
        check(ended.code == Some(0), || format!("code {:?} instead of 0", ended.code))?;
        check(errors.is_empty(), || format!("complete, but says {errors:?}"))
    };
    if ended.hit.is_none() {
        return well();
    }
    let ranks: &[&str] = &["rank 0 ", "rank 1 ", "rank 2 "];
    match fault.act {
        Act::Kill(Victims::Rank) => failed(&[&[ranks[rank]], &["was killed by signal 9 (SIGKILL)"]]),
        Act::Kill(Victims::Ranks) | Act::KillSurvivorToo { .. } => {
            failed(&[ranks, &["was killed by signal 9 (SIGKILL)"]])
        }
        Act::Kill(Victims::Launcher | Victims::Job) => {
            check(ended.signal == Some(Signal::KILL.as_raw()), || "the launcher lives".to_owned())
        }
        // The request may come after the last step.
        Act::Ask { .. } if ended.code == Some(0) => well(),
        Act::Ask { signal, .. } => {
            let code = 128 + signal.as_raw();
            check(ended.code == Some(code), || format!("code {:?} instead of {code}", ended.code))?;
            check(errors.is_empty(), || format!("stopped, but says {errors:?}"))
        }
        Act::Hang => failed(&[&[ranks[rank]], &["fell silent"]]),
        Act::Freeze => {
            well()?;
            check(!ended.stderr.contains("warning: "), || "a frozen job warns".to_owned())
        }
        // A call whose failure does no harm, such as one that removes something, or that has a substitute.
        Act::Fail(_) | Act::FillDisk if ended.code == Some(0) => well(),
        Act::Fail(error) => failed(&[&[ranks[rank]], reasons(error)]),
        Act::FillDisk => failed(&[&[ranks[rank]], reasons(Errno::NOSPC)]),
        // Logs are on the same disk.
        Act::AskAndFillDisk => failed(&[ranks, reasons(Errno::NOSPC)]),
        Act::Shorten => well(),
        // A handshake is repeated, or ends like one with a wrong token.
        Act::Cut | Act::Flip { .. } if ended.code == Some(0) => well(),
        Act::Cut => failed(&[ranks, &["connection", "was refused at"]]),
        Act::Flip { .. } => failed(&[&["the bytes were changed on the way", "was refused at"], ranks]),
    }
}

/// How an error line states a failure of the kernel.
fn reasons(error: Errno) -> &'static [&'static str] {
    match error {
        Errno::NOSPC | Errno::DQUOT => &["the disk is full"],
        Errno::ROFS => &["no permission"],
        _ => &["input/output error"],
    }
}

/// Every loss is that of an undisturbed run.
fn check_losses(reference: &Reference, ended: &Ended) -> Result<(), String> {
    let other = ended.losses().into_iter().find(|(step, loss)| reference.losses.get(step) != Some(loss));
    check(other.is_none(), || format!("step {other:?} has another loss"))
}

/// The last step of the checkpoint to resume from.
fn step_of(run: &Path) -> Result<u64, String> {
    let path = run.join(Victim::Last.name());
    if !path.exists() {
        return Ok(0);
    }
    let checkpoint = enmasse_train::Checkpoint::load(&path).map_err(|error| error.to_string())?;
    Ok(checkpoint.meta.optimizer_step)
}

/// What ranks have written to their logs about what they saved after the death of another one.
fn survivals(run: &Path) -> Vec<String> {
    let logs = fs::read_dir(run.join("logs")).into_iter().flatten().flatten();
    let texts = logs.filter_map(|log| fs::read_to_string(log.path()).ok());
    texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter(|line| line.contains("rank is gone"))
        .collect()
}

/// After the death of a rank the others have saved each step that they have finished. Rank 0, if it is left, has told of each;
/// otherwise the launcher tells the last one, if the run was not saved there `before`.
fn check_nothing_lost(run: &Path, ended: &Ended, fault: Fault, before: u64) -> Result<(), String> {
    let told = ended.steps().last().copied().unwrap_or(0);
    let saved = step_of(run)?;
    let holds = match fault.act {
        // What a killed rank has told last is lost.
        Act::Kill(Victims::Rank) if fault.moment.rank == 0 => saved >= told,
        Act::Kill(Victims::Rank) => saved == told || told == 0,
        // The last step may have been finished on one of the two that were killed, alone.
        Act::KillSurvivorToo { .. } => saved + 1 >= told,
        _ => true,
    };
    check(holds, || format!("told of step {told}, but {saved} is saved; logs say {:?}", survivals(run)))?;
    if fault.moment.rank > 0 || !matches!(fault.act, Act::Kill(Victims::Rank)) {
        return Ok(());
    }
    let line = format!("saved after step {saved}; continue with: ");
    let is_told = ended.stderr.lines().any(|text| text.starts_with(&line));
    check(is_told == (saved > before), || format!("saved after step {before}, then {saved}, but says so: {is_told}"))
}

/// A resumed run goes on after the step that is saved.
fn check_goes_on(reference: &Reference, resumed: &Ended, saved: u64) -> Result<(), String> {
    let expected: Vec<u64> = reference.losses.keys().copied().filter(|&step| step > saved).collect();
    let steps = resumed.steps();
    check(steps == expected, || format!("runs the steps {steps:?} after step {saved}"))
}

/// The checkpoints that exist are whole, whatever happened.
fn check_whole(run: &Path) -> Result<(), String> {
    for name in [Victim::Last, Victim::Best].map(Victim::name) {
        let path = run.join(name);
        if path.exists() {
            enmasse_train::Checkpoint::load(&path).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Files and weights are those of an undisturbed run.
fn check_state(reference: &Reference, run: &Path) -> Result<(), String> {
    let state = State::of(run)?;
    check(state.epochs == reference.state.epochs, || format!("records differ: {:?}", state.epochs))?;
    check(state.last == reference.state.last, || "last.safetensors differs".to_owned())?;
    check(state.best == reference.state.best, || "best.safetensors differs".to_owned())
}

/// A run that ended well has no temporary files, and at most one claim: its launched job's, or that of a writer that was
/// killed after its last file. It is empty.
fn check_leftovers(run: &Path) -> Result<(), String> {
    let mut folders = vec![run.to_owned()];
    let mut claims = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| error.to_string())?.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_claim = name.starts_with(".attempt-");
            claims += usize::from(is_claim);
            // Other names with a point are those of tokens, removed claims and temporary files.
            let is_left = name.starts_with('.') && name != ".lock" && !is_claim;
            check(!is_left && claims < 2, || format!("{} is left", path.display()))?;
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(())
}

/// Whether a resume found a finished run, which it leaves alone.
fn is_finished(resumed: &Ended) -> bool {
    resumed.stderr.contains("nothing left to do")
}

/// Damages a file; `false` if there is no such file, or no checkpoint to resume from.
fn apply(run: &Path, victim: Victim, damage: Damage) -> Result<bool, String> {
    let path = run.join(victim.name());
    let Ok(mut bytes) = fs::read(&path) else { return Ok(false) };
    if bytes.is_empty() || !run.join(Victim::Last.name()).exists() {
        return Ok(false);
    }
    let done = match damage {
        Damage::Truncate { at } => {
            bytes.truncate((at % bytes.len() as u64) as usize);
            fs::write(&path, bytes)
        }
        Damage::Flip { bit } => {
            let bit = bit % (8 * bytes.len() as u64);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            fs::write(&path, bytes)
        }
        Damage::Remove => fs::remove_file(&path),
    };
    done.map(|()| true).map_err(|error| error.to_string())
}
