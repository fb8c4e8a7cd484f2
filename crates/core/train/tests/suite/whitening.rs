//! Filters of the first layer that whiten the training images.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_comm::Group;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::Dataset;
use enmasse_graph::{Conv, Tensor};
use enmasse_image::Resizer;
use enmasse_train::{FastDevRun, NamedTensor, Preparation, TrainConfig, TrainError, Trainer, TrainingData};

fn net(x: Tensor, classes: usize) -> Tensor {
    x.conv2d("whiten", Conv::new(24, 2).whitening(1e-6)).gelu().flatten().linear("fc", classes)
}

const SIZE: usize = 8;

fn config() -> TrainConfig {
    TrainConfig {
        size: Some(SIZE),
        shards: Some(2),
        batch: Some(4),
        fast_dev_run: FastDevRun(NonZeroUsize::new(1)),
        ..TrainConfig::default()
    }
}

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

/// The weights after one step on so many ranks.
fn trained(ranks: usize) -> Vec<NamedTensor> {
    std::thread::scope(|scope| {
        let rank = |group: Group| {
            scope.spawn(move || -> Result<Vec<NamedTensor>, TrainError> {
                let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
                let mut trainer = Trainer::new(config(), device).group(group);
                trainer.fit("net", &net, &data())?;
                trainer.weights()
            })
        };
        let ranks: Vec<_> = Group::threads(ranks).unwrap().into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).next_back().unwrap()
    })
}

/// The responses to the images, over all places, have no correlation, and mostly a variance of 1.
#[test]
fn responses_are_white() {
    let weights = trained(1);
    let filters = &weights.iter().find(|tensor| tensor.name == "whiten.weight").unwrap().values;
    let (positive, negative) = filters.split_at(12 * 12);
    assert!(positive.iter().zip(negative).all(|(a, b)| *a == -b));
    let preparation = Preparation::of(&config(), &data());
    let mean = &preparation.normalization.mean;
    let std = &preparation.normalization.std;
    let mut sums = vec![0.0; 12 * 12];
    let mut pixels = vec![0; SIZE * SIZE * 3];
    let mut resizer = Resizer::new();
    for index in 0..50 {
        preparation.evaluation.fit(&Colours(50).read(index).unwrap(), &mut resizer, &mut pixels);
        for (top, left) in (0..SIZE - 1).flat_map(|top| (0..SIZE - 1).map(move |left| (top, left))) {
            let seen = |tap: usize| {
                let c = tap / 4;
                let y = top + tap / 2 % 2;
                let x = left + tap % 2;
                (f64::from(pixels[(y * SIZE + x) * 3 + c]) / 255.0 - f64::from(mean[c])) / f64::from(std[c])
            };
            let response = |filter: &[f32]| (0..12).map(|tap| f64::from(filter[tap]) * seen(tap)).sum::<f64>();
            let responses: Vec<f64> = positive.chunks_exact(12).map(response).collect();
            sums.iter_mut().enumerate().for_each(|(ij, sum)| *sum += responses[ij / 12] * responses[ij % 12] / 2450.0);
        }
    }
    for (ij, found) in sums.into_iter().enumerate() {
        let expected = if ij / 12 == ij % 12 { 1.0 } else { 0.0 };
        assert!((found - expected).abs() < 0.01, "{} {}: {found}", ij / 12, ij % 12);
    }
}

/// Rank 0 computes the filters, and steps leave them.
#[test]
fn filters_are_the_same_on_any_number_of_ranks() {
    assert_eq!(trained(1), trained(2));
}
