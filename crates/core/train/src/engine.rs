//! The explicit loop: one step, phase by phase, for users who want to see and steer it.
//!
//! `train`, `zero_grad`, `forward`, `criterion`, `backward`, `step` run the phases of the plan that the trainer runs as
//! a whole, with the same bits. A call out of order is an error that names the missing call.

use std::sync::Arc;

use enmasse_data::Batch;
use enmasse_device::{HostBatch, Program, StepBatch, StepInputs, StepMetrics, Ticket};
use enmasse_graph::{Mode, Phase};

use crate::TrainError;
use crate::loaded::LoadedBatch;

/// A program, and the batch that it is working on.
///
/// ```no_run
/// # use enmasse_train::{Engine, TrainError};
/// # fn example(mut engine: Engine, batches: Vec<enmasse_data::Batch>) -> Result<(), TrainError> {
/// engine.train();
/// for batch in batches {
///     engine.zero_grad();
///     engine.forward(batch, 0)?;
///     let loss = engine.criterion()?;
///     engine.backward()?;
///     let metrics = engine.step(0.1)?;
///     println!("this rank {loss:.4}, all ranks {:.4}", metrics.loss);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Engine {
    program: Box<dyn Program>,
    mode: Mode,
    /// The phase that must come next; `Forward` between steps.
    next: Phase,
    /// Number of updates that the optimiser has made.
    optimizer_step: u64,
    batch: Arc<dyn StepBatch>,
    epoch: u64,
    /// The alpha of Lookahead in the next update, if it has one.
    lookahead: Option<f32>,
}

/// A batch for an engine: of a loader, in memory of the program's own, or of another type as an `Arc<dyn StepBatch>`.
pub struct EngineBatch(Arc<dyn StepBatch>);

impl From<Batch> for EngineBatch {
    fn from(batch: Batch) -> Self {
        Arc::new(batch).into()
    }
}

impl From<Arc<Batch>> for EngineBatch {
    fn from(batch: Arc<Batch>) -> Self {
        EngineBatch(Arc::new(LoadedBatch(batch)))
    }
}

impl From<HostBatch> for EngineBatch {
    fn from(batch: HostBatch) -> Self {
        EngineBatch(batch.into())
    }
}

impl From<Arc<dyn StepBatch>> for EngineBatch {
    fn from(batch: Arc<dyn StepBatch>) -> Self {
        EngineBatch(batch)
    }
}

impl Engine {
    /// An engine in training mode. `optimizer_step` is the number of updates that the program's optimiser state has seen.
    pub fn new(program: Box<dyn Program>, optimizer_step: u64) -> Self {
        Engine {
            program,
            mode: Mode::Train,
            next: Phase::Forward,
            optimizer_step,
            batch: HostBatch::default().into(),
            epoch: 0,
            lookahead: None,
        }
    }

    /// From now on forward uses batch statistics and dropout.
    pub fn train(&mut self) {
        self.switch(Mode::Train);
    }

    /// From now on forward uses running statistics, and there is no backward.
    pub fn eval(&mut self) {
        self.switch(Mode::Evaluate);
    }

    /// Abandons an unfinished step. Gradients need no clearing: backward overwrites them.
    pub fn zero_grad(&mut self) {
        self.next = Phase::Forward;
    }

    /// Images to logits. The epoch keys dropout. The engine holds the batch until the next one.
    ///
    /// # Errors
    /// The batch does not fit the plan, or the device or the group fails.
    pub fn forward(&mut self, batch: impl Into<EngineBatch>, epoch: u64) -> Result<(), TrainError> {
        let EngineBatch(batch) = batch.into();
        self.batch = batch;
        self.epoch = epoch;
        self.next = Phase::Forward;
        self.run(&[Phase::Forward], 0.0).map(|_| ())
    }

    /// The loss of this rank's samples: in training its share of the mean over the global batch, in evaluation the sum.
    ///
    /// # Errors
    /// [`TrainError::Order`] unless [`forward`](Self::forward) came before it, or the device or the group fails.
    pub fn criterion(&mut self) -> Result<f64, TrainError> {
        self.run(&[Phase::Loss], 0.0)?;
        self.scalar("loss")
    }

    /// Computes gradients. The sums over ranks begin while it runs.
    ///
    /// # Errors
    /// [`TrainError::Order`] unless [`criterion`](Self::criterion) came before it, or the device or the group fails.
    pub fn backward(&mut self) -> Result<(), TrainError> {
        self.run(&[Phase::Backward], 0.0).map(|_| ())
    }

    /// Lets the weights and the slow weights of Lookahead meet in the next [`Engine::step`]: the slow ones move by this share of their
    /// distance. Without plans of [`enmasse_graph::Averaging::Lookahead`] it has no effect.
    pub fn lookahead(&mut self, alpha: f64) {
        self.lookahead = Some(alpha as f32);
    }

    /// Waits for the sums, checks the loss, updates the parameters. The metrics are those of the global batch.
    ///
    /// # Errors
    /// [`TrainError::Order`] unless [`backward`](Self::backward) came before it. Or the loss is not finite, or the
    /// device or the group fails. Parameters are as before the step then.
    pub fn step(&mut self, learning_rate: f64) -> Result<StepMetrics, TrainError> {
        let ticket = self.run(&[Phase::Reduce, Phase::Check, Phase::Update], learning_rate)?;
        let metrics = self.program.metrics(ticket)?;
        // A step that was refused, or whose loss is not finite, has updated nothing.
        self.optimizer_step += 1;
        self.lookahead = None;
        Ok(metrics)
    }

    /// The logits of the last forward, `[batch, classes]`.
    ///
    /// # Errors
    /// No forward has run, or the device or the group fails.
    pub fn logits(&mut self) -> Result<Vec<f64>, TrainError> {
        Ok(self.program.store("logits")?)
    }

    /// The number of samples of the last forward whose largest logit is at the label.
    ///
    /// # Errors
    /// No forward with its loss has run, or the device or the group fails.
    pub fn correct(&mut self) -> Result<f64, TrainError> {
        self.scalar("correct")
    }

    /// The program, to read and set tensors.
    pub fn program(&mut self) -> &mut dyn Program {
        self.program.as_mut()
    }

    fn scalar(&mut self, name: &str) -> Result<f64, TrainError> {
        Ok(self.program.store(name)?.first().copied().unwrap_or(f64::NAN))
    }

    fn switch(&mut self, mode: Mode) {
        self.mode = mode;
        self.next = Phase::Forward;
    }

    fn run(&mut self, phases: &[Phase], learning_rate: f64) -> Result<Ticket, TrainError> {
        let first = phases[0];
        let last = phases[phases.len() - 1];
        if first != self.next {
            return Err(TrainError::Order { called: first.name(), expected: self.next.name() });
        }
        let inputs = StepInputs {
            batch: self.batch.clone(),
            epoch: self.epoch,
            learning_rate: learning_rate as f32,
            optimizer_step: self.optimizer_step + 1,
            lookahead: self.lookahead,
            stop: false,
            save: false,
        };
        let ticket = self.program.submit(self.mode, phases, &inputs)?;
        let ends = last == Phase::Update || (self.mode == Mode::Evaluate && last == Phase::Loss);
        self.next = match last {
            _ if ends => Phase::Forward,
            Phase::Forward => Phase::Loss,
            Phase::Loss => Phase::Backward,
            _ => Phase::Reduce,
        };
        Ok(ticket)
    }
}
