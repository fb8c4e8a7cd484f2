//! Files of a run take no second copy of its weights: neither writing checkpoints and exports, nor resuming.

#[path = "suite/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::Tensor;
use enmasse_train::{Keep, RunPaths, TrainConfig, Trainer, TrainingData};
use test_support::heap::peak_of_all_threads;

/// Five layers, none of which has most of the weights.
fn net(x: Tensor, classes: usize) -> Tensor {
    let wide = (0..4).fold(x.flatten(), |x, layer| x.linear(&format!("hidden{layer}"), 1536).relu());
    wide.linear("fc", classes)
}

#[test]
fn files_take_no_second_copy_of_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let data = TrainingData::new(Arc::new(Colours(12)), Arc::new(Colours(6)));
    let cpu = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
    // A new run, then one that continues it.
    for (epochs, resume) in [(1, false), (2, true)] {
        let config = TrainConfig {
            size: Some(16),
            batch: Some(6),
            epochs,
            resume: resume.into(),
            keep: Keep::All,
            export_every: 1,
            ema: Some(0.9),
            out: Some(out.clone()),
            ..TrainConfig::default()
        };
        // Arenas do not lie on the heap.
        let (_, taken) = peak_of_all_threads(|| Trainer::new(config, cpu.clone()).fit("net", &net, &data).unwrap());
        // Weights, momentum and averages.
        let state = std::fs::metadata(RunPaths::new(&out).last_checkpoint()).unwrap().len() as usize;
        assert!(state > 90 << 20, "{state} bytes");
        assert!(taken < state / 5, "resume {resume}: {taken} bytes, and the state has {state}");
    }
}
