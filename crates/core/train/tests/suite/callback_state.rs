//! What a callback keeps in checkpoints, and the weights that it reads and sets.

use std::path::Path;
use std::sync::Arc;

use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, EpochRecord, Evaluation, Progress, RunPaths, Saved, Started,
    TrainConfig, Trainer, TrainingData,
};

use crate::common::Colours;
use crate::fit::{config, cpu, net};

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

/// Counts steps over resumes. Its first rank counts, the others begin with its count.
#[derive(Clone, Default)]
struct Count {
    key: Option<&'static str>,
    steps: u64,
    /// Whether a state is an error.
    refuses: bool,
    /// Ends the run after the checkpoint of this epoch.
    ends_after: Option<u64>,
    size: usize,
    /// The count before the first step, and what nobody takes.
    begun: Vec<String>,
}

impl Callback for Count {
    fn on_fit_start(&mut self, started: &Started, control: &mut Control) -> CallbackResult {
        self.begun = vec![self.steps.to_string()];
        self.begun.extend(started.lost_states.iter().map(|(key, why)| format!("{key} {why}")));
        assert!(control.weights().is_err());
        Ok(())
    }

    fn on_train_batch_end(&mut self, _: &Progress, _: &mut Control) -> CallbackResult {
        self.steps += 1;
        Ok(())
    }

    fn on_checkpoint(&mut self, saved: &Saved, _: &mut Control) -> CallbackResult {
        if Some(saved.epoch) == self.ends_after { Err("killed".into()) } else { Ok(()) }
    }

    fn state_key(&self) -> Option<String> {
        self.key.map(str::to_owned)
    }

    fn state_dict(&self) -> String {
        if self.size > 0 { "x".repeat(self.size) } else { self.steps.to_string() }
    }

    fn load_state_dict(&mut self, state: &str) -> CallbackResult {
        if self.refuses {
            return Err("no number".into());
        }
        self.steps = state.parse()?;
        Ok(())
    }
}

/// What callbacks of ranks say, each after a fit with one more callback.
fn count(config: &TrainConfig, ranks: usize, count: &Count, other: Option<&'static str>) -> Vec<(Count, String)> {
    let ran = enmasse_launch::spawn(ranks, |group| {
        let mut own = count.clone();
        let other = Count { key: other, ..Count::default() };
        let result = Trainer::new(config.clone(), cpu(1)).group(group).callback(&mut own).callback(other).fit(
            "net",
            &net,
            &data(),
        );
        Ok::<_, String>((own, result.map_or_else(|error| error.to_string(), |_| String::new())))
    });
    ran.unwrap()
}

#[test]
fn a_state_goes_on_over_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let config = TrainConfig { batch: Some(4), save_every: 0, drop_last: true, ..config(&out) };
    let own = Count { key: Some("count"), ..Count::default() };
    count(&config, 2, &Count { ends_after: Some(2), ..own.clone() }, None);
    let resumed = TrainConfig { resume: true.into(), ..config.clone() };
    let check = |epochs: usize, own: &Count, other: Option<&'static str>, first: &[&str], steps: u64| {
        let config = TrainConfig { epochs, ..resumed.clone() };
        for (rank, (told, error)) in count(&config, 2, own, other).into_iter().enumerate() {
            assert_eq!((error.as_str(), told.steps), ("", steps), "rank {rank}");
            // Rank 0 alone says what is lost.
            assert_eq!(told.begun, if rank == 0 { first } else { &first[..1] });
        }
    };
    check(3, &own, None, &["12"], 18);
    let refuses = Count { refuses: true, ..own.clone() };
    check(4, &refuses, None, &["0", "count cannot be read (no number): it begins anew"], 6);
    // With a state of another callback, which is new.
    check(5, &own, Some("other"), &["6"], 12);
    let unknown = "other no callback of this run takes it";
    check(6, &own, None, &["12", unknown], 18);
    // What is dropped is gone, and a callback without a key keeps nothing.
    check(7, &Count::default(), None, &["0", "count no callback of this run takes it"], 6);
    check(8, &own, None, &["0"], 6);
}

#[test]
fn states_that_cannot_be_kept_end_a_run_before_its_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let check = |own: Count, other: Option<&'static str>, expected: &str| {
        let out = folder.path().join(expected.len().to_string());
        for (told, error) in count(&TrainConfig { batch: Some(4), ..config(&out) }, 2, &own, other) {
            assert!(error.contains(expected), "{error}");
            assert_eq!((told.steps, told.begun.len()), (0, 0));
        }
        assert!(!out.join("checkpoints").exists());
    };
    let own = Count { key: Some("count"), ..Count::default() };
    check(own.clone(), Some("count"), "a callback failed in state_dict: two callbacks have the state_key \"count\"");
    let large = Count { size: 1 << 20, ..own };
    check(large, None, "the states of callbacks take 1048581 bytes, more than 1048576");
}

/// Sets the bias at one of the hooks, on one rank or on all.
#[derive(Clone)]
struct Sets {
    at: &'static str,
    name: &'static str,
    values: &'static [f32],
    acts: bool,
    /// What it reads after all of its epochs.
    read: Vec<f32>,
}

impl Sets {
    fn at(&mut self, hook: &str, control: &mut Control) -> CallbackResult {
        if hook == self.at && self.acts {
            control.weights()?.set(self.name, self.values)?;
        }
        Ok(())
    }
}

impl Callback for Sets {
    fn on_train_batch_end(&mut self, _: &Progress, control: &mut Control) -> CallbackResult {
        self.at("on_train_batch_end", control)
    }

    fn on_validation_end(&mut self, _: &Evaluation, control: &mut Control) -> CallbackResult {
        self.at("on_validation_end", control)
    }

    fn on_train_epoch_end(&mut self, _: &EpochRecord, control: &mut Control) -> CallbackResult {
        self.at("on_train_epoch_end", control)
    }

    fn on_fit_end(&mut self, control: &mut Control) -> CallbackResult {
        self.at("on_fit_end", control)?;
        self.read = control.weights()?.read("fc.bias")?.values;
        Ok(())
    }
}

const BIAS: &[f32] = &[0.25, -0.5, 1.0];

/// What ranks read at the end, or the errors of ranks.
fn set(out: &Path, sets: &Sets, only: Option<usize>) -> Vec<Result<Vec<f32>, String>> {
    let config = TrainConfig { epochs: 1, batch: Some(4), ..config(out) };
    let ran = enmasse_launch::spawn(2, |group| {
        let mut own = Sets { acts: only.is_none_or(|rank| rank == group.rank()), ..sets.clone() };
        let fitted = Trainer::new(config.clone(), cpu(1)).group(group).callback(&mut own).fit("net", &net, &data());
        Ok::<_, String>(fitted.map(|_| own.read).map_err(|error| error.to_string()))
    });
    ran.unwrap()
}

#[test]
fn weights_that_a_callback_sets_are_the_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    for at in ["on_validation_end", "on_train_epoch_end", "on_fit_end"] {
        let out = folder.path().join(at);
        let sets = Sets { at, name: "fc.bias", values: BIAS, acts: true, read: Vec::new() };
        for read in set(&out, &sets, None) {
            assert_eq!(read.unwrap(), BIAS, "{at}");
        }
        let saved = Checkpoint::load(&RunPaths::new(&out).last_checkpoint()).unwrap();
        let bias = saved.tensors.iter().find(|tensor| tensor.name == "fc.bias").unwrap();
        assert_eq!((bias.values.as_slice(), saved.meta.epoch), (BIAS, 1), "{at}");
    }
}

#[test]
fn weights_that_cannot_be_set_end_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let check = |at: &'static str, name: &'static str, values: &'static [f32], only: Option<usize>, expected: &str| {
        let out = folder.path().join(format!("{at} {name} {only:?} {values:?}"));
        let sets = Sets { at, name, values, acts: true, read: Vec::new() };
        for result in set(&out, &sets, only) {
            let error = result.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(at == "on_fit_end" || !RunPaths::new(&out).best_checkpoint().exists());
    };
    let epoch = "on_train_epoch_end";
    check(epoch, "fc.weights", BIAS, None, "the model has no tensor fc.weights");
    check(epoch, "fc.bias", &BIAS[1..], None, "fc.bias has 3 elements, not 2");
    check("on_train_batch_end", "fc.bias", BIAS, None, "a step may be in progress");
    check(epoch, "fc.bias", &[f32::NAN, 0.0, 0.0], None, "non-finite values of fc.bias");
    // Ranks that differ are found before the checkpoint.
    let otherwise = "the tensor fc.bias was set otherwise on rank 1 than on rank 0";
    check(epoch, "fc.bias", BIAS, Some(1), otherwise);
    check("on_validation_end", "fc.bias", BIAS, Some(0), otherwise);
    check("on_fit_end", "fc.bias", &[0.0; 3], Some(1), otherwise);
}
