//! A program's own transforms in whole runs: applied to every sample, reported, and compared across ranks.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::Colours;
use enmasse_comm::Group;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_image::{Canvas, RandomStream, Transform};
use enmasse_train::{Callback, CallbackResult, Control, Started, TrainConfig, Trainer, TrainingData};

/// Changes nothing, and counts its calls.
struct Counting {
    strength: usize,
    seen: Arc<AtomicUsize>,
}

impl Transform for Counting {
    fn name(&self) -> &str {
        "counting"
    }
    fn parameters(&self) -> String {
        format!("strength={}", self.strength)
    }
    fn apply(&self, _: &mut Canvas, _: &mut RandomStream) {
        self.seen.fetch_add(1, Ordering::Relaxed);
    }
}

fn data(strength: usize, seen: &Arc<AtomicUsize>) -> TrainingData {
    let seen = seen.clone();
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
        .with_augmentation(move |default| default.then(Counting { strength, seen: seen.clone() }))
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        batch: Some(8),
        size: Some(8),
        drop_last: true,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

fn cpu() -> Arc<Cpu> {
    Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap())
}

struct Told(Arc<std::sync::Mutex<String>>);

impl Callback for Told {
    fn on_fit_start(&mut self, started: &Started, _: &mut Control) -> CallbackResult {
        *self.0.lock().unwrap() = started.augmentation.clone();
        Ok(())
    }
}

#[test]
fn a_run_applies_and_names_the_program_s_transforms() {
    let folder = tempfile::tempdir().unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let told = Arc::default();
    let device = cpu();
    let mut trainer = Trainer::new(config(&folder.path().join("run")), device).callback(Told(Arc::clone(&told)));
    trainer.fit("linear", &|x, classes| x.flatten().linear("fc", classes), &data(3, &seen)).unwrap();
    // Six batches of eight in each of two epochs; validation is not augmented.
    assert_eq!(seen.load(Ordering::Relaxed), 96);
    assert_eq!(
        *told.lock().unwrap(),
        "random_resized_crop size=8 scale=0.08..1 ratio=0.75..1.3333333333333333; \
         random_horizontal_flip probability=0.5; counting strength=3"
    );
}

#[test]
fn ranks_with_different_transforms_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let handles: Vec<_> = (Group::threads(2).unwrap().into_iter())
        .map(|group| {
            let out = out.clone();
            std::thread::spawn(move || {
                let device = cpu();
                let data = data(group.rank(), &Arc::default());
                let mut trainer = Trainer::new(config(&out), device).group(group);
                trainer.fit("linear", &|x, classes| x.flatten().linear("fc", classes), &data).unwrap_err().to_string()
            })
        })
        .collect();
    for handle in handles {
        let error = handle.join().unwrap();
        assert!(error.contains("transforms") && error.contains("counting strength=1"), "{error}");
    }
}
