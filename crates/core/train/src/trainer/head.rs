//! The first epoch of fine-tuning: the head alone, on features that the backbone computes once.
//!
//! The backbone runs in evaluation mode over the images as they are validated, each rank over its part.
//! Rank 0 trains the head on the features of all, which takes no steps, and the others receive it. Then the epoch ends like any other.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use enmasse_comm::Group;
use enmasse_data::{Dataset, EvalLoader};
use enmasse_device::{Device, Program};
use enmasse_graph::{Loss, MAX_METRICS, Plans};

use super::{EpochTimes, Session, Trainer};
use crate::agreement::broadcast_state;
use crate::callback::Callbacks;
use crate::evaluation::{EpochPosition, Pass};
use crate::head::Head;
use crate::pace::EpochPace;
use crate::stop::{Request, agree};
use crate::weights::{load_all, read_chosen, write_tensors};
use crate::{Features, Position, Progress, RankFigures, TrainError, TrainingData};

/// Bytes that the features of a data set may take.
const MAX_BYTES: usize = 4 << 30;

/// What trains the head, until it has been trained.
pub(super) struct HeadPhase {
    /// A step whose logits are the features.
    plans: Plans,
    train: Arc<dyn Dataset>,
    validation: Arc<dyn Dataset>,
    /// The name of the head.
    layer: String,
    /// Of each class, in the loss.
    weights: Vec<f32>,
    /// Those of the features.
    bytes: usize,
}

impl HeadPhase {
    /// For a run of these plans, whose features `features` computes. The head is fitted by cross-entropy, with the weights of classes that
    /// `loss` has if it is one. Says what in the model or the data stands against it.
    pub fn new(plans: &Plans, features: Plans, data: &TrainingData, loss: Loss) -> Result<Self, TrainError> {
        let refuse = |reason: String| Err(TrainError::FineTune(reason));
        let width = features.evaluate.classes;
        let classes = data.classes.len();
        let layer = plans.head().unwrap_or_default().to_owned();
        let is_linear = plans.find(&format!("{layer}.weight")).is_some_and(|head| *head.shape == [width, classes]);
        if !is_linear || plans.find(&format!("{layer}.bias")).is_none() {
            return refuse(format!("the model's last layer, {layer}, is not linear with a bias"));
        }
        let bytes = (data.train.len() + data.validation.len()).saturating_mul(width * size_of::<f32>());
        if bytes > MAX_BYTES {
            return refuse(format!(
                "the features of so many images take {} GiB, more than the {} GiB that they may: train the classifier first with \
                 `freeze_layers`",
                bytes >> 30,
                MAX_BYTES >> 30
            ));
        }
        let weights = match loss {
            Loss::CrossEntropy { weights, .. } if !weights.is_empty() => weights,
            _ => vec![1.0; classes],
        };
        let (train, validation) = (data.train.clone(), data.validation.clone());
        Ok(HeadPhase { plans: features, train, validation, layer, weights, bytes })
    }

    /// Bytes that a rank needs for it: the program, and the features twice, of which the solver has a copy.
    pub fn bytes(&self) -> usize {
        2 * self.bytes + self.plans.arenas().iter().map(|(_, bytes)| bytes).sum::<usize>()
    }
}

impl Session {
    /// Trains the head, and ends the epoch. Returns any rank's request to end training, as at the end of other epochs.
    pub(super) fn train_head(
        &mut self,
        trainer: &mut Trainer,
        phase: HeadPhase,
    ) -> Result<Option<Request>, TrainError> {
        trainer.callbacks.on_train_epoch_start(self.position.epoch)?;
        let began = Instant::now();
        let HeadPhase { plans, train, validation, layer, weights, .. } = phase;
        let mut program = self.with_same_weights(trainer.device.as_ref(), plans)?;
        let position =
            EpochPosition { epoch: self.position.epoch, epochs: trainer.config.epochs as u64, optimizer_step: 0 };
        let group = trainer.group.clone();
        let pass = Pass::begin((train.len() + validation.len()) as u64, group.as_ref(), position);
        let mut computed = Vec::new();
        let mut done = 0;
        for images in [&train, &validation] {
            let loader = self.evaluation.loader(images)?;
            match self.features(
                &mut trainer.callbacks,
                program.as_mut(),
                (&loader, images.len()),
                (&pass, &mut done),
            )? {
                Some(features) => computed.push(features),
                None => return self.stop(trainer),
            }
        }
        drop(program);
        let group = trainer.group.as_ref();
        self.tracer.at(group, "training the head");
        let is_main = group.is_none_or(Group::is_main);
        let head = is_main.then(|| Head::fit(&computed[0], &computed[1], &weights));
        let mut sums = [0.0; 2];
        if let Some(Head { weight, bias, loss, correct, .. }) = &head {
            let names = ["weight", "bias"].map(|part| format!("{layer}.{part}"));
            let found = [(names[0].as_str(), &weight[..]), (names[1].as_str(), &bias[..])];
            load_all(self.program.as_mut(), &HashMap::from(found))?;
            sums = [*loss, *correct as f64];
        }
        if let Some(group) = group {
            group.broadcast(&mut sums, 0)?;
            broadcast_state(group, self.program.as_mut())?;
        }
        let total = train.len() as u64;
        self.position = Position {
            samples: total,
            loss_sum: sums[0] * total as f64,
            correct: sums[1] as u64,
            // Nothing else is measured on features.
            measured: [f64::NAN; MAX_METRICS],
            ..self.position
        };
        let seconds = began.elapsed().as_secs_f64();
        let images_per_second = (total + validation.len() as u64) as f64 / seconds;
        let (pace, ranks) = (EpochPace::default(), RankFigures::default());
        let times = EpochTimes { learning_rate: 0.0, images_per_second, pace, ranks, seconds };
        self.record_epoch(trainer, total, times)
    }

    /// A program of other plans for the same model, with the weights of this run's.
    fn with_same_weights(&mut self, device: &dyn Device, plans: Plans) -> Result<Box<dyn Program>, TrainError> {
        // Features have no collectives.
        let mut program = device.compile(plans, None)?;
        let names: Vec<String> = program.plans().state.iter().map(|tensor| tensor.name.clone()).collect();
        let tensors = read_chosen(self.program.as_mut(), &|tensor| names.contains(&tensor.name))?;
        let listed: Vec<_> = tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..])).collect();
        write_tensors(program.as_mut(), &listed, &|index| Ok(Cow::Borrowed(&tensors[index].values[..])), "the run")?;
        Ok(program)
    }

    /// The features of a part of the data, after the `done` images of a pass over all parts; `None` if a rank was asked to stop.
    fn features(
        &mut self,
        callbacks: &mut Callbacks,
        program: &mut dyn Program,
        (loader, total): (&EvalLoader, usize),
        (pass, done): (&Pass, &mut u64),
    ) -> Result<Option<Features>, TrainError> {
        let bad = &mut self.bad_samples;
        Features::compute(program, loader, total, pass.group, &mut |batch| {
            bad.meet_batch(batch, callbacks)?;
            *done += batch.valid as u64;
            // It is no validation, which follows.
            callbacks.on_validation_batch_end(&Progress { validating: false, ..pass.progress(*done) })?;
            let stop = agree(callbacks.control.request(), pass.group)?;
            Ok(!matches!(stop, Some(Request::Stop(_))))
        })
    }
}
