//! Ranks that die at every phase of a step and between steps: those that are left save the last finished step, and the run goes on
//! from it with the bits of one that nobody left.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_comm::{Cause, CauseKind, Group};
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{
    Device, DeviceError, Fill, Hosting, Memory, Program, Read, StepInputs, StepMetrics, Ticket, Which,
};
use enmasse_graph::{Mode, Phase, Plans, Tensor};
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, EpochRecord, Evaluation, Progress, RunPaths, Saved, Survival,
    TrainConfig, TrainError, Trainer, TrainingData,
};

/// Where a rank dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Death {
    /// In this step, when this many of its phases are done.
    InStep(u64, usize),
    /// After it was told of this step.
    AfterStep(u64),
    /// In the validation after this epoch.
    Validating(u64),
    /// After that, where the callbacks of the others wait for it. What they return is a text.
    ValidationEnd(u64),
    /// After that, before the epoch's checkpoint.
    EpochEnd(u64),
    /// After the epoch's checkpoint.
    Saved(u64),
}

/// A rank that dies as one whose process is killed: the others learn that it is gone.
#[derive(Clone)]
struct Mortal {
    group: Group,
    death: Option<Death>,
}

impl Mortal {
    fn live_until(&self, moment: impl FnOnce(Death) -> bool) -> Result<(), Arc<Cause>> {
        if !self.death.is_some_and(moment) {
            return Ok(());
        }
        let cause = Cause::new(CauseKind::Exited, "its process is gone").of_rank(self.group.rank());
        self.group.abort(cause.clone());
        Err(Arc::new(Cause { kind: CauseKind::Error, ..cause }))
    }
}

/// A CPU whose rank dies within a step.
struct MortalDevice(Cpu, Mortal);

struct MortalProgram(Box<dyn Program>, Mortal);

impl Device for MortalDevice {
    fn name(&self) -> String {
        self.0.name()
    }
    fn memory(&self, plans: &Plans, hosting: &Hosting) -> Result<Memory, DeviceError> {
        self.0.memory(plans, hosting)
    }
    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        Ok(Box::new(MortalProgram(self.0.compile(plans, group)?, self.1.clone())))
    }
}

impl Program for MortalProgram {
    fn plans(&self) -> &Plans {
        self.0.plans()
    }
    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError> {
        self.0.load(name, values)
    }
    fn store(&mut self, name: &str) -> Result<Vec<f64>, DeviceError> {
        self.0.store(name)
    }
    fn fill_state(&mut self, which: &Which, fill: &Fill) -> Result<(), DeviceError> {
        self.0.fill_state(which, fill)
    }
    fn read_state(&mut self, which: &Which, read: &Read) -> Result<(), DeviceError> {
        self.0.read_state(which, read)
    }
    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        if let (Mode::Train, Some(Death::InStep(step, done))) = (mode, self.1.death)
            && inputs.optimizer_step == step
        {
            let begun = &phases[..done];
            if !begun.is_empty() {
                self.0.submit(mode, begun, inputs)?;
            }
            self.1.live_until(|_| true)?;
        }
        self.0.submit(mode, phases, inputs)
    }
    fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError> {
        self.0.metrics(ticket)
    }
    fn rejoin(&mut self, plans: Plans, group: Option<Group>) -> Result<(), DeviceError> {
        self.0.rejoin(plans, group)
    }
}

/// What a rank is told, and where it dies.
struct Witness {
    mortal: Mortal,
    /// The bits of each step's loss.
    losses: Vec<(u64, u64)>,
    records: Vec<EpochRecord>,
    /// The epoch that is validated.
    validated: u64,
    survival: Option<Survival>,
}

impl Callback for Witness {
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        self.losses.push((progress.optimizer_step, progress.step_loss.to_bits()));
        Ok(self.mortal.live_until(|death| death == Death::AfterStep(progress.optimizer_step))?)
    }
    fn on_validation_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        self.validated = progress.epoch;
        Ok(self.mortal.live_until(|death| death == Death::Validating(progress.epoch))?)
    }
    fn on_validation_end(&mut self, _: &Evaluation, _: &mut Control) -> CallbackResult {
        self.mortal.live_until(|death| death == Death::ValidationEnd(self.validated))?;
        Ok(self.mortal.group.barrier().map_err(|cause| cause.to_string())?)
    }
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.records.push(record.clone());
        Ok(self.mortal.live_until(|death| death == Death::EpochEnd(record.epoch))?)
    }
    fn on_checkpoint(&mut self, saved: &Saved, _: &mut Control) -> CallbackResult {
        Ok(self.mortal.live_until(|death| saved.samples == 0 && death == Death::Saved(saved.epoch - 1))?)
    }
    fn on_survival(&mut self, survival: &Survival, _: &mut Control) -> CallbackResult {
        self.survival = Some(survival.clone());
        Ok(())
    }
    /// A state that ends of epochs change.
    fn state_key(&self) -> Option<String> {
        Some("Witness".to_owned())
    }
    fn state_dict(&self) -> String {
        self.records.len().to_string()
    }
}

fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().dropout("drop", 0.2).linear("fc", classes)
}

/// Two epochs of 6 steps, and no checkpoint within an epoch.
fn config(out: &Path, ranks: usize) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        shards: Some(ranks),
        batch: Some(4),
        size: Some(8),
        ema: Some(0.5),
        drop_last: true,
        resume: out.exists().into(),
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

/// What became of each rank: its end, and what it was told.
type Ended = Vec<(Result<(), TrainError>, Witness)>;

/// A run, or the rest of it, of which a rank dies.
fn run(config: &TrainConfig, ranks: usize, death: Option<(usize, Death)>) -> Ended {
    let data = TrainingData::new(Arc::new(Colours(24 * ranks)), Arc::new(Colours(17)));
    std::thread::scope(|scope| {
        let rank = |group: Group| {
            let data = &data;
            scope.spawn(move || {
                let own = death.filter(|(rank, _)| *rank == group.rank()).map(|(_, death)| death);
                let mortal = Mortal { group: group.clone(), death: own };
                let cpu = Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
                let device = Arc::new(MortalDevice(cpu, mortal.clone()));
                let mut witness = Witness { mortal, losses: vec![], records: vec![], validated: 0, survival: None };
                let trainer = Trainer::new(config.clone(), device).group(group);
                let ended = trainer.callback(&mut witness).fit("net", &net, data).map(drop);
                (ended, witness)
            })
        };
        let ranks: Vec<_> = Group::threads(ranks).unwrap().into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn last(out: &Path) -> Option<Checkpoint> {
    let path = RunPaths::new(out).last_checkpoint();
    path.exists().then(|| Checkpoint::load(&path).unwrap())
}

/// The bits of an epoch's figures.
fn figures(records: &[EpochRecord]) -> Vec<(u64, [u64; 3])> {
    let bits = |record: &EpochRecord| [record.train_loss, record.val_loss, record.learning_rate].map(f64::to_bits);
    records.iter().map(|record| (record.epoch, bits(record))).collect()
}

/// The run that nobody leaves.
struct Whole {
    losses: BTreeMap<u64, u64>,
    records: Vec<(u64, [u64; 3])>,
    last: Checkpoint,
}

impl Whole {
    fn new(folder: &Path, ranks: usize) -> Self {
        let out = folder.join(format!("whole-{ranks}"));
        let mut ended = run(&config(&out, ranks), ranks, None);
        let (end, witness) = ended.remove(0);
        end.unwrap();
        Whole {
            losses: witness.losses.into_iter().collect(),
            records: figures(&witness.records),
            last: last(&out).unwrap(),
        }
    }

    /// Lets ranks die one after another, each in the run that the one before has left, and goes on to the end.
    #[track_caller]
    fn check(&self, out: &Path, ranks: usize, deaths: &[(usize, Death)]) {
        let config = |out: &Path| config(out, ranks);
        let mut told = BTreeMap::new();
        let mut before = 0;
        for &(dead, death) in deaths {
            let ended = run(&config(out), ranks, Some((dead, death)));
            assert!(ended.iter().all(|(end, _)| end.is_err()), "{deaths:?}");
            let saved = last(out).map_or(0, |last| last.meta.optimizer_step);
            let left = ended.iter().enumerate().filter(|(rank, _)| *rank != dead).map(|(_, (_, witness))| witness);
            let left: Vec<&Witness> = left.collect();
            // Each rank that is left is told of each step that it has finished, once.
            let latest = left.iter().filter_map(|witness| witness.losses.last()).map(|(step, _)| *step).max();
            assert_eq!(saved, latest.unwrap_or(before), "{deaths:?}");
            for witness in &left {
                assert!(
                    !matches!(witness.survival, Some(Survival::Unsaved { .. })),
                    "{deaths:?}: {:?}",
                    witness.survival
                );
                let steps: Vec<u64> = witness.losses.iter().map(|(step, _)| *step).collect();
                let end = steps.last().copied().unwrap_or(before);
                assert_eq!(steps, (before + 1..=end).collect::<Vec<_>>(), "{deaths:?}");
                assert!(end + 1 >= saved, "{deaths:?}: a rank is {end} and {saved} is saved");
                told.extend(witness.losses.iter().copied());
            }
            if let Some(last) = last(out) {
                let ends = (saved - 1) / 6;
                let is_of_epoch = last.meta.samples_consumed == 0;
                let expected = if is_of_epoch { saved / 6 } else { ends };
                assert_eq!(last.meta.epoch, expected, "{deaths:?}");
            }
            before = saved;
        }
        let mut resumed = run(&config(out), ranks, None);
        let (end, witness) = resumed.remove(0);
        end.unwrap();
        let steps: Vec<u64> = witness.losses.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, (before + 1..=12).collect::<Vec<_>>(), "{deaths:?}: a step ran twice, or not at all");
        told.extend(witness.losses);
        assert_eq!(told, self.losses, "{deaths:?}");
        let records = figures(&witness.records);
        assert!(self.records.ends_with(&records), "{deaths:?}");
        assert_eq!(last(out).unwrap().tensors, self.last.tensors, "{deaths:?}");
        let written = std::fs::read_to_string(RunPaths::new(out).metrics()).unwrap();
        assert_eq!(written.lines().count(), 2, "{deaths:?}");
    }
}

#[test]
fn no_finished_step_runs_twice_after_the_death_of_a_rank() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [2, 3] {
        let whole = Whole::new(folder.path(), ranks);
        let in_steps = [1, 2, 6, 7, 9].into_iter();
        let in_steps = in_steps.flat_map(|step| (0..=Phase::ALL.len()).map(move |done| Death::InStep(step, done)));
        let between = [Death::AfterStep(3), Death::AfterStep(6), Death::AfterStep(7), Death::AfterStep(12)];
        let at_end = |epoch| [Death::Validating(epoch), Death::ValidationEnd(epoch), Death::EpochEnd(epoch)];
        let at_ends = (0..2).flat_map(at_end);
        let moments: Vec<Death> = in_steps.chain(between).chain(at_ends).chain([Death::Saved(0)]).collect();
        for (number, &death) in moments.iter().enumerate() {
            for dead in 0..ranks {
                let out = folder.path().join(format!("{ranks}-{number}-{dead}"));
                whole.check(&out, ranks, &[(dead, death)]);
            }
        }
    }
}

#[test]
fn ranks_may_die_twice_in_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Whole::new(folder.path(), 3);
    let check = |name: &str, deaths: &[(usize, Death)]| whole.check(&folder.path().join(name), 3, deaths);
    check("others", &[(0, Death::InStep(3, 4)), (1, Death::InStep(5, 2))]);
    check("the same", &[(2, Death::InStep(4, 5)), (2, Death::InStep(6, 6))]);
    check("in the first step of the rest", &[(1, Death::AfterStep(3)), (0, Death::InStep(5, 0))]);
    check("ends", &[(0, Death::EpochEnd(0)), (0, Death::Validating(0)), (1, Death::Saved(0))]);
}
