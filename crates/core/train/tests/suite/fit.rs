//! The trainer on one rank of the CPU device: a run and its files, resuming with the same bits, and the explicit engine.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::{Batch, DataError, Dataset, DecodePool, EvalLoader, Sharding, TrainLoader};
use enmasse_datasets::DataKind;
use enmasse_device::{Device, HostBatch, StepBatch};
use enmasse_graph::{Conv, Target, Tensor};
use enmasse_image::{EvalTransform, Image, TrainTransform};
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, CheckpointMeta, Classifier, Compilation, Control, Engine, EngineBatch,
    EpochPosition, EpochRecord, Keep, Objective, OptimizerKind, Precision, Preparation, Progress, RunConfig, RunPaths,
    TrainConfig, TrainError, Trainer, TrainingData, evaluate, initialize,
};

/// The CPU device at its best instruction set.
pub(crate) fn cpu(threads: usize) -> Arc<Cpu> {
    Arc::new(Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap())
}

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

pub(crate) fn net(x: Tensor, classes: usize) -> Tensor {
    let x = x.conv2d("conv", Conv::new(4, 3).no_bias()).batch_norm("bn").relu();
    x.adaptive_avg_pool([2, 2]).flatten().dropout("drop", 0.2).linear("fc", classes)
}

pub(crate) fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 3,
        batch: Some(8),
        size: Some(8),
        lr: 0.05,
        save_every: 2,
        warmup_epochs: 0.5,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

struct Records<'a>(&'a mut Vec<EpochRecord>);

impl Callback for Records<'_> {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.0.push(record.clone());
        Ok(())
    }
}

pub(crate) fn fit(config: TrainConfig) -> Vec<EpochRecord> {
    let mut records = Vec::new();
    Trainer::new(config, cpu(2)).callback(Records(&mut records)).fit("net", &net, &data()).unwrap();
    records
}

fn last(out: &Path) -> Checkpoint {
    Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap()
}

#[test]
fn a_run_learns_and_leaves_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let records = fit(config(&out));
    assert_eq!(records.iter().map(|record| record.epoch).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(records[2].train_loss < records[0].train_loss, "{records:?}");
    assert!(records[2].val_accuracy.unwrap() > 0.9, "{records:?}");
    for file in ["config.toml", "metrics.jsonl", "class_indices.json"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    for chart in ["class_distribution", "augmented", "training_curves", "confusion_matrix"] {
        assert!(out.join("charts").join(chart).with_extension("svg").is_file(), "{chart}");
    }
    // The first batches of 8 fill the sheet.
    let sheet = std::fs::read_to_string(out.join("charts/augmented.svg")).unwrap();
    assert_eq!(sheet.matches("<image").count(), 16);
    assert_eq!(std::fs::read_to_string(out.join("metrics.jsonl")).unwrap().lines().count(), 3);
    let checkpoint = last(&out);
    assert_eq!((checkpoint.meta.epoch, checkpoint.meta.optimizer_step), (3, 21));

    let classifier = Classifier::open(&out, None, &Preparation::new(&config(&out), DataKind::Folder), &[]).unwrap();
    let mut program = classifier.program(&net, cpu(2).as_ref(), 5).unwrap();
    let sharding = Sharding::one(0, 1, 5);
    let pool = DecodePool::new(1).unwrap();
    let loader = EvalLoader::new(&pool, Arc::new(Colours(17)), EvalTransform::new(8), sharding).unwrap();
    let found = evaluate(program.as_mut(), &loader, 17, None, EpochPosition::default(), &mut ()).unwrap();
    let best = records.iter().map(|record| record.val_accuracy.unwrap()).fold(0.0, f64::max);
    assert_eq!((found.accuracy, found.samples), (Some(best), 17));

    // The element type of activations is the run's choice, which its checkpoint keeps.
    for precision in [Precision::F32, Precision::Bf16] {
        let mut changed = checkpoint.clone();
        let train = TrainConfig { precision, ..config(&out) };
        changed.meta.configuration = RunConfig { train, ..RunConfig::default() }.to_toml();
        let file = folder.path().join("changed.safetensors");
        changed.save(&file).unwrap();
        let preparation = Preparation::new(&config(&out), DataKind::Folder);
        assert_eq!(Classifier::open(&file, None, &preparation, &[]).unwrap().configuration.train.precision, precision);
    }
}

#[test]
fn a_checkpoint_that_resizes_beyond_all_images_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large.safetensors");
    let check = |resize: usize| {
        let classes = vec!["a".into(), "b".into()];
        let mean = vec![0.5];
        let std = vec![0.25];
        let meta = CheckpointMeta { size: 8, resize, classes, mean, std, ..CheckpointMeta::default() };
        Checkpoint { meta, tensors: Vec::new() }.save(&file).unwrap();
        let preparation = Preparation::new(&TrainConfig::default(), DataKind::Folder);
        let error = Classifier::open(&file, None, &preparation, &[]).err().map(|error| error.to_string());
        let reason = format!("{}: an image size of {resize} pixels is out of range: 1 to 16384", file.display());
        assert_eq!(error, (!(1..=16_384).contains(&resize)).then_some(reason));
    };
    [0, 8, 16_384, 16_385, usize::MAX].into_iter().for_each(check);
}

#[test]
fn a_trainer_validates_tests_and_predicts_with_what_it_trained() {
    let folder = tempfile::tempdir().unwrap();
    let data = data().with_test(Arc::new(Colours(11)));
    let early = Trainer::new(config(folder.path()), cpu(1)).validate(&data).unwrap_err();
    assert_eq!(early.to_string(), "nothing is trained yet: call fit first");
    // With three ranks, no part is divisible by the global batch.
    for ranks in [1, 3] {
        let results = enmasse_launch::spawn(ranks, |group| {
            let out = folder.path().join(ranks.to_string());
            let mut records = Vec::new();
            let mut trainer = Trainer::new(TrainConfig { batch: Some(4), ..config(&out) }, cpu(1))
                .group(group)
                .callback(Records(&mut records));
            trainer.fit("net", &net, &data)?;
            let (validation, test) = (trainer.validate(&data)?, trainer.test(&data)?);
            let rows = trainer.predict(&data.validation)?;
            drop(trainer);
            Ok::<_, TrainError>((records.pop().unwrap(), validation, test, rows))
        });
        for (last, validation, test, rows) in results.unwrap() {
            assert_eq!((validation.loss, validation.accuracy), (last.val_loss, last.val_accuracy));
            assert_eq!((validation.samples, test.samples, rows.len()), (17, 11, 17));
            assert!(rows.iter().all(|row| (row.iter().sum::<f64>() - 1.0).abs() < 1e-6), "{rows:?}");
            let hit = |(index, row): (usize, &Vec<f64>)| row.iter().all(|p| *p <= row[index % 3]);
            let top_k_correct = rows.iter().enumerate().filter(|&row| hit(row)).count();
            assert_eq!(Some(top_k_correct as f64 / 17.0), validation.accuracy);
        }
    }
}

#[test]
fn a_run_resumed_in_the_middle_of_an_epoch_ends_with_the_same_bits() {
    stop_and_go_on(config);
    stop_and_go_on(|out| TrainConfig { mixup: 0.8, cutmix: 1.0, ..config(out) });
}

#[track_caller]
fn stop_and_go_on(config: fn(&Path) -> TrainConfig) {
    let folder = tempfile::tempdir().unwrap();
    let [whole, cut] = ["whole", "cut"].map(|name| folder.path().join(name));
    let records = fit(config(&whole));
    // An epoch has seven steps: the run stops two steps into the second one.
    let part = fit(TrainConfig { max_steps: Some(9), ..config(&cut) });
    assert_eq!((last(&cut).meta.epoch, last(&cut).meta.samples_consumed), (1, 16));
    // A part of an epoch is no candidate for the best.
    assert_eq!((part[1].partial, last(&cut).meta.best.value), (true, records[0].val_accuracy));
    assert!(records.iter().all(|record| !record.partial));
    let rest = fit(TrainConfig { resume: true.into(), ..config(&cut) });
    assert_eq!(rest.len(), 2);
    for (resumed, never_stopped) in rest.iter().zip(&records[1..]) {
        assert_eq!(resumed.train_loss.to_bits(), never_stopped.train_loss.to_bits());
        assert_eq!(resumed.val_loss.to_bits(), never_stopped.val_loss.to_bits());
    }
    assert_eq!(last(&cut).tensors, last(&whole).tensors);
    let epochs = |out: &Path| std::fs::read_to_string(RunPaths::new(out).metrics()).unwrap().lines().count();
    assert_eq!((epochs(&cut), epochs(&whole)), (3, 3));
}

#[test]
fn a_run_is_not_overwritten_nor_resumed_with_other_data() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    fit(TrainConfig { epochs: 1, ..config(&out) });
    let again = |config: TrainConfig, data: &TrainingData| {
        Trainer::new(config, cpu(2)).fit("net", &net, data).unwrap_err().to_string()
    };
    assert!(again(config(&out), &data()).contains("`resume`"));
    let fewer = TrainingData::new(Arc::new(Colours(49)), Arc::new(Colours(17)));
    assert!(again(TrainConfig { resume: true.into(), ..config(&out) }, &fewer).contains("other images"));
    let small = TrainingData::new(Arc::new(Colours(5)), Arc::new(Colours(17)));
    let text = again(TrainConfig { drop_last: true, ..config(&folder.path().join("small")) }, &small);
    assert!(text.contains('5') && text.contains('8'), "{text}");
    assert!(!folder.path().join("small").exists(), "nothing is half written");
}

#[test]
fn non_finite_losses_stop_the_run_and_name_the_step() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { lr: 1e30, warmup_epochs: 0.0, ..config(&folder.path().join("run")) };
    let error = Trainer::new(config, cpu(2)).fit("net", &net, &data()).unwrap_err();
    assert!(matches!(error, TrainError::NonFinite { rank: 0, .. }), "{error}");
}

/// One update at a huge rate leaves weights that nothing can be computed with, and no loss of training has shown it yet.
#[test]
fn state_that_is_not_finite_replaces_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let files = |out: &Path| {
        let paths = RunPaths::new(out);
        [paths.last_checkpoint(), paths.best_checkpoint(), paths.epoch_checkpoint(1)]
            .map(|path| std::fs::read(path).ok())
    };
    let check = |name: &str, resumed: bool, lr: f64, save_every: u64, expected: &str| {
        let out = folder.path().join(format!("{name} {resumed}"));
        let usual = TrainConfig { save_every: 0, warmup_epochs: 0.0, ..config(&out) };
        let mut steps = 0;
        if resumed {
            fit(TrainConfig { epochs: 1, ..usual.clone() });
            steps = 7;
        }
        let before = files(&out);
        let max_steps = Some(steps + 1);
        let config = TrainConfig { resume: resumed.into(), max_steps, keep: Keep::All, lr, save_every, ..usual };
        let error = Trainer::new(config, cpu(2)).fit("net", &net, &data()).unwrap_err();
        assert!(matches!(error, TrainError::NonFiniteState { .. }), "{name}: {error}");
        let epoch = 1 + u64::from(resumed);
        let step = steps + 1;
        let remedy = match resumed {
            false => "there is no checkpoint yet; start again with a lower `lr`, or with `warmup_epochs`".to_owned(),
            true => format!(
                "the previous checkpoint stays; continue from it, or from the best epoch by `resume = best`, at a lower rate with: enmasse train --resume --out '{}' --lr 1e-2",
                out.display()
            ),
        };
        let expected =
            format!("non-finite {expected} after step {step} (epoch {epoch}), so nothing was saved: {remedy}");
        assert_eq!(error.to_string(), expected, "{name}");
        assert!(files(&out) == before, "{name}");
    };
    for resumed in [false, true] {
        // Finite, but products of them are not.
        check("huge", resumed, 1e30, 0, "validation loss NaN");
        check("infinite", resumed, 1e300, 0, "validation loss NaN and values of conv.weight");
        check("saved", resumed, 1e300, 1, "values of conv.weight");
    }
}

#[test]
fn the_checkpoints_that_are_asked_for_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, keep: Keep, export_every: u64, expected: &[&str]| {
        let out = folder.path().join(name);
        fit(TrainConfig { epochs: 4, keep, export_every, ..config(&out) });
        let mut names: Vec<String> = Vec::new();
        for folder in ["checkpoints", "weights"] {
            let entries = std::fs::read_dir(out.join(folder)).into_iter().flatten();
            names.extend(entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()));
        }
        names.sort();
        assert_eq!(names, [&["best.safetensors"], expected].concat(), "{name}");
    };
    check("usual", Keep::Newest(0), 0, &["last.safetensors"]);
    let weights = ["model-1.json", "model-1.pth", "model-3.json", "model-3.pth"];
    let two = [&["epoch-2.safetensors", "epoch-3.safetensors", "last.safetensors"], &weights[..]].concat();
    check("two", Keep::Newest(2), 2, &two);
    let all = ["epoch-0.safetensors", "epoch-1.safetensors", "epoch-2.safetensors", "epoch-3.safetensors"];
    check("all", Keep::All, 0, &[&all[..], &["last.safetensors"]].concat());
    let kept = Checkpoint::load(&RunPaths::new(folder.path().join("all")).epoch_checkpoint(3)).unwrap();
    assert_eq!(kept, last(&folder.path().join("all")));
}

#[test]
fn the_engine_gives_the_trainers_bits() {
    loop_by_hand(0.0);
    loop_by_hand(0.8);
}

#[track_caller]
fn loop_by_hand(mixup: f64) {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { epochs: 1, warmup_epochs: 0.0, mixup, ..config(&folder.path().join("run")) };
    fit(config.clone());

    let cpu = cpu(2);
    let preparation = Preparation::new(&config, DataKind::Folder);
    let compilation = Compilation {
        config: &config,
        preparation: &preparation,
        model: &net,
        objective: &Objective::default(),
        outputs: 3,
        target: &cpu.target(),
    };
    let plans = compilation.plans(1).unwrap();
    let mut program = cpu.compile(plans, None).unwrap();
    initialize(program.as_mut(), config.seed).unwrap();
    let sharding = Sharding::one(0, 1, 8);
    let pool = DecodePool::new(1).unwrap();
    let loader = TrainLoader::new(&pool, Arc::new(Colours(50)), preparation.train, sharding, config.seed).unwrap();
    let mut engine = Engine::new(program, 0);
    engine.train();
    assert!(engine.backward().is_err(), "backward before forward");
    for batch in loader.epoch(0, 0) {
        engine.zero_grad();
        engine.forward(batch.unwrap(), 0).unwrap();
        assert_eq!(engine.logits().unwrap().len(), 8 * 3);
        assert!(engine.criterion().unwrap().is_finite());
        engine.backward().unwrap();
        engine.step(config.lr).unwrap();
    }
    for tensor in last(config.out.as_deref().unwrap()).tensors {
        let values = engine.program().store(&tensor.name).unwrap();
        assert!(values.iter().map(|&v| v as f32).eq(tensor.values.iter().copied()), "{}", tensor.name);
    }
}

/// Weights after one epoch of the explicit loop, in which each step is called too early `refused` times before it is valid.
fn explicit_epoch(refused: usize) -> Vec<f64> {
    let config =
        TrainConfig { optimizer: OptimizerKind::AdamW, size: Some(8), batch: Some(8), ..TrainConfig::default() };
    let compilation = Compilation {
        config: &config,
        preparation: &Preparation::new(&config, DataKind::Folder),
        model: &net,
        objective: &Objective::default(),
        outputs: 3,
        target: &Target::default(),
    };
    let plans = compilation.plans(1).unwrap();
    let mut program = cpu(1).compile(plans, None).unwrap();
    initialize(program.as_mut(), 0).unwrap();
    let pool = DecodePool::new(1).unwrap();
    let sharding = Sharding::one(0, 1, 8);
    let loader = TrainLoader::new(&pool, Arc::new(Colours(50)), TrainTransform::new(8), sharding, 0).unwrap();
    let mut engine = Engine::new(program, 0);
    for batch in loader.epoch(0, 0) {
        engine.forward(batch.unwrap(), 0).unwrap();
        (0..refused).for_each(|_| assert!(engine.step(0.01).is_err(), "step before backward"));
        engine.criterion().unwrap();
        engine.backward().unwrap();
        engine.step(0.01).unwrap();
    }
    engine.program().store("fc.weight").unwrap()
}

#[test]
fn a_step_that_is_refused_does_not_count_for_the_optimiser() {
    assert_eq!(explicit_epoch(3), explicit_epoch(0));
}

/// A batch of a program's own type.
struct Own(HostBatch);

impl StepBatch for Own {
    fn images(&self) -> &[u8] {
        &self.0.images
    }
    fn labels(&self) -> &[i32] {
        &self.0.labels
    }
    fn sample_indices(&self) -> &[u64] {
        &self.0.sample_indices
    }
}

#[test]
fn the_engine_takes_batches_of_any_type() {
    let config = TrainConfig { size: Some(8), batch: Some(5), ..TrainConfig::default() };
    let preparation = Preparation::new(&config, DataKind::Folder);
    let device = cpu(1);
    let objective = Objective::default();
    let compilation = Compilation {
        config: &config,
        preparation: &preparation,
        model: &net,
        objective: &objective,
        outputs: 3,
        target: &device.target(),
    };
    let plans = compilation.plans(1).unwrap();
    let mut program = device.compile(plans, None).unwrap();
    initialize(program.as_mut(), 0).unwrap();
    let mut engine = Engine::new(program, 0);
    let pool = DecodePool::new(1).unwrap();
    let sharding = Sharding::one(0, 1, 5);
    let loader = TrainLoader::new(&pool, Arc::new(Colours(5)), TrainTransform::new(8), sharding, 0).unwrap();
    let mut logits = |batch: &dyn Fn(Batch) -> EngineBatch| {
        engine.forward(batch(loader.epoch(0, 0).next().unwrap().unwrap()), 0).unwrap();
        engine.logits().unwrap()
    };
    let host = |batch: Batch| HostBatch {
        images: batch.images.to_vec(),
        labels: batch.labels.clone(),
        sample_indices: batch.draws.clone(),
        ..HostBatch::default()
    };
    let expected = logits(&|batch| batch.into());
    assert_eq!(logits(&|batch| Arc::new(batch).into()), expected);
    assert_eq!(logits(&|batch| host(batch).into()), expected);
    assert_eq!(logits(&|batch| (Arc::new(Own(host(batch))) as Arc<dyn StepBatch>).into()), expected);
}

#[test]
fn progress_counts_every_sample_once() {
    struct Count<'a>(&'a mut Vec<(bool, u64)>);
    impl Callback for Count<'_> {
        fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
            self.0.push((progress.validating, progress.samples));
            Ok(())
        }

        fn on_validation_batch_end(&mut self, progress: &Progress, control: &mut Control) -> CallbackResult {
            self.on_train_batch_end(progress, control)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    let config = TrainConfig { epochs: 1, ..config(&folder.path().join("run")) };
    Trainer::new(config, cpu(2)).callback(Count(&mut seen)).fit("net", &net, &data()).unwrap();
    let training = [8, 16, 24, 32, 40, 48, 50].map(|samples| (false, samples));
    assert_eq!(seen, [&training[..], &[(true, 8), (true, 16), (true, 17)]].concat());
}

#[test]
fn pretrained_weights_come_by_name_and_shape_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    let second = folder.path().join("second");
    fit(TrainConfig { export_every: 3, ..config(&first) });
    let weights = RunPaths::new(&first).epoch_weights(2);
    // Another number of classes: everything except the classifier matches.
    let fewer = TrainingData::new(Arc::new(TwoColours(50)), Arc::new(TwoColours(17)));
    let config = TrainConfig {
        weights: Some(weights),
        freeze_layers: true,
        batch: Some(4),
        check_ranks: true,
        out: Some(second.clone()),
        ..config(&second)
    };
    enmasse_launch::spawn(2, |group| {
        Trainer::new(config.clone(), cpu(1)).group(group).fit("net", &net, &fewer).map(drop)
    })
    .unwrap();
    let tensor = |checkpoint: &Checkpoint, name: &str| {
        checkpoint.tensors.iter().find(|tensor| tensor.name == name).unwrap().values.clone()
    };
    let (first, second) = (last(&first), last(&second));
    // Frozen tensors are unchanged three epochs later, including batch norm's statistics.
    for name in ["conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"] {
        assert_eq!(tensor(&first, name), tensor(&second, name), "{name}");
    }
    assert_eq!(tensor(&second, "fc.weight").len() * 3, tensor(&first, "fc.weight").len() * 2);
    let optimizer: Vec<_> = second.tensors.iter().filter(|tensor| tensor.name.starts_with("optimizer.")).collect();
    assert_eq!(optimizer.len(), 2, "only the classifier's weight and bias have optimiser state: {optimizer:?}");
}

/// Two of the three classes.
struct TwoColours(usize);

impl Dataset for TwoColours {
    fn len(&self) -> usize {
        self.0
    }
    fn label(&self, index: usize) -> usize {
        index % 2
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        Colours(usize::MAX).read(index / 2 * 3 + index % 2)
    }
}
