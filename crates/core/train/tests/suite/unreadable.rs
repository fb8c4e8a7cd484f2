//! Runs on data with samples that cannot be read: the same bits and the same list on any number of ranks and after a
//! resume, exact counts, and errors that name the sample.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::{BadSample, DataError, Dataset, Locality};
use enmasse_graph::{Conv, Tensor};
use enmasse_image::Image;
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, EpochRecord, NamedTensor, OnBadSample, RunPaths, ScheduleKind,
    TrainConfig, TrainError, Trainer, TrainingData,
};

/// Colours, some of which cannot be read.
struct Spoiled {
    part: &'static str,
    colours: Colours,
    bad: Vec<usize>,
    /// Added to the label of the last sample.
    extra: usize,
}

pub fn part(part: &'static str, samples: usize, bad: &[usize]) -> Arc<dyn Dataset> {
    Arc::new(Spoiled { part, colours: Colours(samples), bad: bad.to_vec(), extra: 0 })
}

impl Dataset for Spoiled {
    fn len(&self) -> usize {
        self.colours.len()
    }
    fn label(&self, index: usize) -> usize {
        self.colours.label(index) + if index + 1 == self.len() { self.extra } else { 0 }
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        match self.bad.contains(&index) {
            true => Err(DataError::Image { name: self.name(index), problem: "truncated".to_owned() }),
            false => self.colours.read(index),
        }
    }
    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Spoiled {
    fn name(&self, index: usize) -> String {
        format!("{}/{index}.jpg", self.part)
    }
}

fn net(x: Tensor, classes: usize) -> Tensor {
    let x = x.conv2d("conv", Conv::new(4, 3).no_bias()).batch_norm("bn").relu();
    x.adaptive_avg_pool([2, 2]).flatten().dropout("drop", 0.2).linear("fc", classes)
}

fn cpu() -> Arc<Cpu> {
    Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap())
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 3,
        shards: Some(2),
        batch: Some(4),
        size: Some(8),
        schedule: ScheduleKind::Constant,
        on_bad_sample: Some(OnBadSample::Skip),
        resume: out.exists().into(),
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

fn data() -> TrainingData {
    TrainingData::new(part("train", 50, &[7, 8, 31]), part("val", 17, &[0, 16]))
}

/// What a rank is told.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    samples: Vec<String>,
    records: Vec<EpochRecord>,
}

impl Callback for Told {
    fn on_bad_sample(&mut self, sample: &BadSample, _: &mut Control) -> CallbackResult {
        self.samples.push(sample.to_string());
        Ok(())
    }
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.records.push(record.clone());
        Ok(())
    }
}

/// Trains on this many ranks, and returns the unreadable samples that each reports, with its counts of a validation at the end.
fn fit(config: &TrainConfig, ranks: usize) -> Result<Vec<(Told, [u64; 2])>, TrainError> {
    let told = enmasse_launch::spawn(ranks, |group| {
        let device = cpu();
        let data = data();
        let mut told = Told::default();
        let mut trainer = Trainer::new(config.clone(), device).group(group).callback(&mut told);
        trainer.fit("net", &net, &data)?;
        let found = trainer.validate(&data)?;
        drop(trainer);
        Ok::<_, TrainError>((told, [found.samples, found.unreadable]))
    })?;
    Ok(told)
}

/// The weights with the optimiser's state, and the list of samples that were skipped.
fn left(out: &Path) -> (Vec<NamedTensor>, String) {
    let paths = RunPaths::new(out);
    let list = std::fs::read_to_string(paths.unreadable()).unwrap();
    (Checkpoint::load(&paths.last_checkpoint()).unwrap().tensors, list)
}

const LIST: &str = "train/31.jpg\ttruncated\ntrain/7.jpg\ttruncated\ntrain/8.jpg\ttruncated\n\
                    val/0.jpg\ttruncated\nval/16.jpg\ttruncated\n";

#[test]
fn any_number_of_ranks_skips_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let run = |ranks: usize| {
        let out = folder.path().join(ranks.to_string());
        let told = fit(&config(&out), ranks).unwrap();
        for (told, counts) in &told {
            let mut names: Vec<&str> = told.samples.iter().map(|text| text.split(' ').next().unwrap()).collect();
            names.sort_unstable();
            // The validation at the end tells of its own.
            names.dedup();
            assert_eq!(names, LIST.lines().map(|line| line.split('\t').next().unwrap()).collect::<Vec<_>>());
            assert_eq!(told.records.iter().map(|record| record.unreadable).max(), Some(5));
            assert_eq!(*counts, [15, 2]);
        }
        let records =
            told[0].0.records.iter().map(|r| (r.train_loss, r.val_accuracy, r.unreadable)).collect::<Vec<_>>();
        (left(&out), records)
    };
    let (one, two) = (run(1), run(2));
    assert_eq!(one.0.1, LIST);
    assert!(one == two, "{:?} and {:?}", one.1, two.1);
    // Nobody is told of anything where every sample can be read.
    let out = folder.path().join("good");
    let whole = TrainingData::new(part("train", 50, &[]), part("val", 17, &[]));
    let mut told = Told::default();
    Trainer::new(config(&out), cpu()).callback(&mut told).fit("net", &net, &whole).unwrap();
    assert_eq!((told.samples.len(), told.records[2].unreadable), (0, 0));
    assert!(!RunPaths::new(&out).unreadable().exists());
    assert!(!std::fs::read_to_string(RunPaths::new(&out).metrics()).unwrap().contains("unreadable"));
}

/// Six steps are an epoch. A run that ends after any step keeps its list, and goes on with the same bits.
#[test]
fn a_resumed_run_skips_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let never_stopped = fit(&config(&whole), 1).unwrap().remove(0).0.records;
    for (cut, ranks) in [(1, 1), (8, 2), (11, 1)] {
        let out = folder.path().join(format!("cut{cut}"));
        fit(&TrainConfig { max_steps: Some(cut), ..config(&out) }, 1).unwrap();
        let rest = fit(&config(&out), ranks).unwrap().remove(0).0.records;
        assert!(left(&out) == left(&whole), "cut after {cut}");
        for (resumed, never_stopped) in rest.iter().rev().zip(never_stopped.iter().rev()) {
            assert_eq!(resumed.train_loss.to_bits(), never_stopped.train_loss.to_bits());
        }
    }
}

#[test]
fn errors_name_the_sample_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let check = |skips: OnBadSample, train: Arc<dyn Dataset>, validation: Arc<dyn Dataset>, expected: &str| {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainConfig { on_bad_sample: Some(skips), ..config(&folder.path().join("run")) };
        let classes = ["red", "green", "blue"].map(str::to_owned).to_vec();
        let data = TrainingData::of_classes(classes, train, validation);
        let error = Trainer::new(config, cpu()).fit("net", &net, &data).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    let good = || part("val", 17, &[]);
    let labelled = |name, extra| Arc::new(Spoiled { part: name, colours: Colours(9), bad: Vec::new(), extra });
    let remedy = "to go on without such images, use `on_bad_sample = skip`";
    let all: Vec<usize> = (0..50).collect();
    check(OnBadSample::Error, part("train", 8, &[3]), good(), &format!("train/3.jpg: truncated; {remedy}"));
    check(OnBadSample::Error, part("train", 8, &[]), part("val", 9, &[8]), &format!("val/8.jpg: truncated; {remedy}"));
    check(
        OnBadSample::Skip,
        part("train", 8, &[]),
        part("val", 9, &all),
        "none of the 9 images to evaluate can be read: check the data set",
    );
    check(
        OnBadSample::Error,
        labelled("train", 1),
        good(),
        "sample 8 (train/8.jpg): the training data label it 3, but there are 3 classes, from 0",
    );
    check(
        OnBadSample::Skip,
        part("train", 8, &[]),
        labelled("val", 7),
        "sample 8 (val/8.jpg): the validation data label it 9, but there are 3 classes, from 0",
    );

    let out = folder.path().join("all");
    let nothing = TrainingData::new(part("train", 50, &all), good());
    let error = Trainer::new(config(&out), cpu()).fit("net", &net, &nothing).unwrap_err().to_string();
    let (count, rest) = error.split_once(" samples in a row cannot be read, the last one train/").unwrap();
    assert!(count == "50" && rest.ends_with(".jpg (truncated); this is no exception: check the data set"), "{error}");

    // Every sample has its row in a prediction.
    let out = folder.path().join("predicted");
    let device = cpu();
    let mut trainer = Trainer::new(TrainConfig { epochs: 1, ..config(&out) }, device);
    trainer.fit("net", &net, &data()).unwrap();
    let error = trainer.predict(&part("val", 9, &[2])).unwrap_err().to_string();
    assert_eq!(error, "val/2.jpg: truncated");
}
