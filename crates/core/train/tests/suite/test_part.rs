//! The test part: evaluated with the best weights, on any number of ranks, without losing the last ones.

use std::path::Path;
use std::sync::Arc;

use enmasse_data::{DecodePool, EvalLoader, Sharding};
use enmasse_datasets::DataKind;
use enmasse_train::{
    Callback, CallbackResult, Classifier, Control, EpochPosition, Evaluation, Preparation, RunPaths, TestRecord,
    TrainConfig, TrainError, Trainer, TrainingData, evaluate,
};

use crate::common::Colours;
use crate::fit::{config, cpu, net};

const SAMPLES: usize = 11;

/// The evaluations of the test part that callbacks are told of.
struct Tests<'a>(&'a mut Vec<TestRecord>);

impl Callback for Tests<'_> {
    fn on_test_end(&mut self, record: &TestRecord, _: &mut Control) -> CallbackResult {
        self.0.push(record.clone());
        Ok(())
    }
}

/// The test part by the weights of a checkpoint.
fn by(checkpoint: &Path, config: &TrainConfig) -> Evaluation {
    let classifier = Classifier::open(checkpoint, None, &Preparation::new(config, DataKind::Folder), &[]).unwrap();
    let mut program = classifier.program(&net, cpu(1).as_ref(), 4).unwrap();
    let pool = DecodePool::new(1).unwrap();
    let sharding = Sharding::one(0, 1, 4);
    let loader = EvalLoader::new(&pool, Arc::new(Colours(SAMPLES)), classifier.transform.clone(), sharding).unwrap();
    evaluate(program.as_mut(), &loader, SAMPLES as u64, None, EpochPosition::default(), &mut ()).unwrap()
}

fn is_close(one: &Evaluation, other: &Evaluation) -> bool {
    (one.loss - other.loss).abs() < 1e-5 && one.accuracy == other.accuracy
}

/// Regression test: the test part was evaluated with the weights that the run ended with.
#[test]
fn the_test_took_the_last_weights_instead_of_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17))).with_test(Arc::new(Colours(SAMPLES)));
    for (ranks, ema) in [(1, None), (2, None), (2, Some(0.5))] {
        let out = folder.path().join(format!("{ranks}-{ema:?}"));
        let config = TrainConfig { epochs: 6, batch: Some(4), ema, ..config(&out) };
        let results = enmasse_launch::spawn(ranks, |group| {
            let device = cpu(1);
            let mut told = Vec::new();
            let mut trainer = Trainer::new(config.clone(), device).group(group).callback(Tests(&mut told));
            trainer.fit("net", &net, &data)?;
            let before = trainer.validate(&data)?;
            let found = trainer.test(&data)?;
            // The last weights are there again.
            assert_eq!(trainer.validate(&data)?, before);
            assert_eq!(trainer.test(&data)?, found);
            drop(trainer);
            assert_eq!(told.len(), 2);
            Ok::<_, TrainError>((found, told.remove(0)))
        })
        .unwrap();
        let paths = RunPaths::new(&out);
        let [best, last] = [paths.best_checkpoint(), paths.last_checkpoint()].map(|file| by(&file, &config));
        assert!(!is_close(&best, &last), "the best epoch is the last one, so this shows nothing");
        for (found, told) in &results {
            assert!(is_close(found, &best), "{ranks} {ema:?}: {found:?} instead of {best:?}");
            assert_eq!((found.samples, &told.evaluation), (SAMPLES as u64, found));
            assert!(told.epoch.is_some_and(|epoch| epoch < 5), "{told:?}");
        }
        let text = std::fs::read_to_string(paths.test_record()).unwrap();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&record["event"], &record["samples"]), (&"test".into(), &SAMPLES.into()));
        assert_eq!(record["epoch"].as_u64(), results[0].1.epoch);
    }
}

#[test]
fn without_a_best_checkpoint_the_weights_at_hand_count() {
    let folder = tempfile::tempdir().unwrap();
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17))).with_test(Arc::new(Colours(SAMPLES)));
    let check = |name: &str, max_steps: Option<u64>, spoil: &dyn Fn(&RunPaths), is_kept: bool| {
        let out = folder.path().join(name);
        let config = TrainConfig { max_steps, ..config(&out) };
        let device = cpu(1);
        let mut told = Vec::new();
        let mut trainer = Trainer::new(config.clone(), device).callback(Tests(&mut told));
        assert!(matches!(trainer.test(&data), Err(TrainError::NotFitted)));
        trainer.fit("net", &net, &data).unwrap();
        let paths = RunPaths::new(&out);
        let expected = by(&paths.last_checkpoint(), &config);
        spoil(&paths);
        let found = trainer.test(&data).unwrap();
        let none = TrainingData { test: None, ..data.clone() };
        assert!(matches!(trainer.test(&none), Err(TrainError::NoTestPart)));
        drop(trainer);
        assert!(is_close(&found, &expected), "{name}: {found:?} instead of {expected:?}");
        assert_eq!((told.len(), told[0].epoch, paths.test_record().exists()), (1, None, is_kept));
    };
    check("part of an epoch", Some(2), &|_| {}, true);
    check("no best", None, &|paths| std::fs::remove_file(paths.best_checkpoint()).unwrap(), true);
    check("no folder", None, &|paths| std::fs::remove_dir_all(paths.root()).unwrap(), false);
}
