//! A schedule of the program's own: the rates of all steps, the record of the run, and what ranks and settings must agree on.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::Colours;
use crate::fit::{config, cpu, net};
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, Progress, RunPaths, ScheduleKind, Started, TrainConfig, Trainer,
    TrainingData,
};

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

/// A configuration that leaves the rate to the program.
fn free(out: &Path) -> TrainConfig {
    let TrainConfig { lr, warmup_epochs, .. } = TrainConfig::default();
    TrainConfig { lr, warmup_epochs, ..config(out) }
}

/// The rates of all steps, and what a resumed run says of its settings.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<(Vec<f64>, Vec<String>)>>);

impl Callback for Watch {
    fn on_fit_start(&mut self, started: &Started, _: &mut Control) -> CallbackResult {
        let changes = started.changes.iter().map(ToString::to_string);
        self.0.lock().unwrap().1.extend(changes.chain(started.rescheduled.clone()));
        Ok(())
    }
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        self.0.lock().unwrap().0.push(progress.learning_rate);
        Ok(())
    }
}

fn half_life(progress: f64) -> f64 {
    0.05 * 0.5f64.powf(progress)
}

#[test]
fn the_rate_is_the_functions_at_every_step() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, cut] = ["whole", "cut"].map(|name| folder.path().join(name));
    let fit = |config: TrainConfig| {
        let watch = Watch::default();
        let trainer = Trainer::new(config, cpu(1)).schedule(half_life);
        trainer.callback(watch.clone()).fit("net", &net, &data()).unwrap();
        watch.0.lock().unwrap().clone()
    };
    let (rates, _) = fit(free(&whole));
    let samples = (0..50).step_by(8).map(f64::from);
    let progress: Vec<f64> =
        (0..3).flat_map(|epoch| samples.clone().map(move |s| f64::from(epoch) + s / 50.0)).collect();
    assert_eq!(rates, progress.iter().map(|&progress| half_life(progress)).collect::<Vec<_>>());

    // Resumed within an epoch it goes on.
    let (mut resumed, _) = fit(TrainConfig { max_steps: Some(9), ..free(&cut) });
    let (rest, changes) = fit(TrainConfig { resume: true.into(), ..free(&cut) });
    resumed.extend(rest);
    assert_eq!((resumed, changes), (rates, Vec::new()));
    let tensors = |out: &Path| Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap().tensors;
    assert!(tensors(&cut) == tensors(&whole));
}

/// Rates and weights, on one rank and on three, without a stop and with one in the second epoch.
#[test]
fn schedules_go_on_where_a_run_was_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: String, ranks: usize, config: &TrainConfig, stops: &[Option<u64>]| {
        let out = folder.path().join(name);
        let mut rates = Vec::new();
        for (start, &max_steps) in stops.iter().enumerate() {
            let config = TrainConfig {
                max_steps,
                shards: Some(3),
                resume: (start > 0).into(),
                out: Some(out.clone()),
                ..config.clone()
            };
            let of_ranks = enmasse_launch::spawn(ranks, |group| {
                let watch = Watch::default();
                let trainer = Trainer::new(config.clone(), cpu(1)).group(group);
                trainer.callback(watch.clone()).fit("net", &net, &data())?;
                Ok::<_, enmasse_train::TrainError>(watch.0.lock().unwrap().0.clone())
            });
            let of_ranks = of_ranks.unwrap();
            assert!(of_ranks.iter().all(|own| *own == of_ranks[0]), "{of_ranks:?}");
            rates.extend(of_ranks[0].clone());
        }
        (rates, Checkpoint::load(&RunPaths::new(&out).last_checkpoint()).unwrap().tensors)
    };
    let check = |schedule: ScheduleKind, lr: f64, differ: usize| {
        // An epoch has five steps, the last of two samples.
        let config = TrainConfig {
            schedule,
            lr,
            epochs: 4,
            batch: Some(4),
            warmup_epochs: 0.0,
            plateau_patience: 0,
            ..config(folder.path())
        };
        let whole = run(format!("{schedule}"), 1, &config, &[None]);
        let mut different = whole.0.clone();
        different.dedup();
        assert_eq!(different.len(), differ, "{schedule} {:?}", whole.0);
        for ranks in [1, 3] {
            let resumed = run(format!("{schedule}-{ranks}"), ranks, &config, &[Some(7), Some(15), None]);
            assert!(resumed == whole, "{schedule} on {ranks}: {:?}, {:?}", resumed.0, whole.0);
        }
    };
    check(ScheduleKind::OneCycle, 0.05, 20);
    check(ScheduleKind::Polynomial, 0.05, 4);
    check(ScheduleKind::WarmRestarts, 0.05, 4);
    // Too low a rate to change an accuracy.
    check(ScheduleKind::Plateau, 1e-6, 3);
}

#[test]
fn the_record_names_a_schedule_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    Trainer::new(TrainConfig { epochs: 1, ..free(&out) }, cpu(1)).fit("net", &net, &data()).unwrap();
    let watch = Watch::default();
    let config = TrainConfig { epochs: 2, resume: true.into(), ..free(&out) };
    let trainer = Trainer::new(config.clone(), cpu(1)).schedule(half_life).callback(watch.clone());
    { trainer }.fit("net", &net, &data()).unwrap();
    assert_eq!(std::mem::take(&mut watch.0.lock().unwrap().1), ["epochs: 1 -> 2", "schedule: cosine -> own"]);
    assert!(std::fs::read_to_string(out.join("config.toml")).unwrap().contains("schedule = \"own\""));
    // A cosine does not take the place of an earlier one.
    let cosine = TrainConfig { epochs: 3, ..config.clone() };
    Trainer::new(cosine, cpu(1)).callback(watch.clone()).fit("net", &net, &data()).unwrap();
    assert_eq!(watch.0.lock().unwrap().1, ["epochs: 2 -> 3", "schedule: own -> cosine"]);
    // What began with a function cannot go on without one under its name.
    let own = TrainConfig { schedule: ScheduleKind::Own, ..config };
    let error = Trainer::new(own, cpu(1)).fit("net", &net, &data()).unwrap_err().to_string();
    assert_eq!(error, "schedule own: is that of the program which began the run: give it by Trainer::schedule");
}

#[test]
fn settings_without_effect_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, value: &str, expected: Option<&str>| {
        let mut config = TrainConfig { epochs: 1, ..free(&folder.path().join(name)) };
        config.set(name, value).unwrap();
        let found = Trainer::new(config, cpu(1)).schedule(half_life).fit("net", &net, &data());
        let expected =
            expected.map(|what| format!("{what}: has no effect on this program's own schedule: leave it out"));
        assert_eq!(found.err().map(|error| error.to_string()), expected);
    };
    check("lr", "0.5", Some("lr 0.5"));
    check("schedule", "step", Some("schedule step"));
    check("lrf", "0.5", Some("lrf 0.5"));
    check("step_size", "3", Some("step_size 3"));
    check("gamma", "0.5", Some("gamma 0.5"));
    check("warmup_epochs", "0.5", Some("warmup_epochs 0.5"));
    check("scale_lr", "linear", Some("scale_lr linear"));
    check("pct_start", "0.5", Some("pct_start 0.5"));
    check("power", "2", Some("power 2"));
    check("schedule", "own", None);
    check("weight_decay", "0.5", None);
}

#[test]
fn rates_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let falls = Trainer::new(free(&folder.path().join("falls")), cpu(1)).schedule(|progress| 0.03 - 0.02 * progress);
    let error = { falls }.fit("net", &net, &data()).unwrap_err().to_string();
    let expected = "the learning rate of step 12 (epoch 2) is -";
    assert!(error.starts_with(expected) && error.ends_with(": it must be a finite number, 0 or more"), "{error}");
    // A remedy does not name settings that this run lacks.
    let huge = Trainer::new(free(&folder.path().join("huge")), cpu(1)).schedule(|_| 1e30);
    let error = { huge }.fit("net", &net, &data()).unwrap_err().to_string();
    let remedy = "resume it, or start again, with lower rates of the program's own schedule";
    assert!(error.ends_with(remedy), "{error}");
}

#[test]
fn ranks_must_have_the_same_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, others: Option<f64>, expected: &str| {
        let config = free(&folder.path().join(name));
        let found = enmasse_launch::spawn(2, |group| {
            let rate = if group.rank() == 0 { Some(0.5) } else { others };
            let trainer = Trainer::new(config.clone(), cpu(1)).group(group);
            let mut trainer = match rate {
                Some(rate) => trainer.schedule(move |progress| if progress > 1.0 { rate } else { 0.125 }),
                None => trainer,
            };
            trainer.fit("net", &net, &data()).map(drop)
        });
        let error = found.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let line = "learning rate of epoch 2 differs: line 2 is \"0.5 after 16 samples\" on rank 0 and \"0.25 after 16 samples\" on rank 1";
    check("rates", Some(0.25), line);
    check("one", None, "configuration differs");
}
