//! The batch that a program takes: the samples of the shards that it hosts, shard after shard.
//!
//! Its images lie in memory that the device allocated (`Device::host_memory`), and are read in
//! place. The program holds a step's batch until the next step.

use std::sync::Arc;

use enmasse_graph::Plan;

use crate::DeviceError;

/// Samples in memory that does not change while a program holds them. The program copies them to a device or reads them in
/// place.
pub trait StepBatch: Send + Sync {
    /// Images, `[samples, height, width, 3]`, as the loader decoded them.
    fn images(&self) -> &[u8];

    /// Class labels, `[samples]`; below 0 for a place without a sample. Where values are to be predicted, any other label says that
    /// there is a sample.
    fn labels(&self) -> &[i32];

    /// Indices in the data set, `[samples]`, which key the random numbers of dropout. The repetitions of a sample in an epoch may have
    /// other numbers.
    fn sample_indices(&self) -> &[u64];

    /// Class labels of the samples that are mixed into these, `[samples]`; empty if none are.
    fn other_labels(&self) -> &[i32] {
        &[]
    }

    /// The share of each label in a mixture, `[samples]`, from 0 to 1; the other label has the rest. Empty if none are mixed.
    fn lambdas(&self) -> &[f32] {
        &[]
    }

    /// The values that are to be predicted of each sample ([`Plan::targets`]), `[samples, values]`; empty where classes are.
    fn targets(&self) -> &[f32] {
        &[]
    }

    /// The places of the global batch by its samples, for the mean of the loss ([`Plan::loss_weight`]). All pieces of a global batch
    /// have the same. 1 for a full one, and in evaluation.
    fn loss_weight(&self) -> f32 {
        1.0
    }
}

/// A batch that owns its data.
#[derive(Clone, Debug, Default)]
pub struct HostBatch {
    /// See [`StepBatch::images`].
    pub images: Vec<u8>,
    /// See [`StepBatch::labels`].
    pub labels: Vec<i32>,
    /// See [`StepBatch::sample_indices`].
    pub sample_indices: Vec<u64>,
    /// See [`StepBatch::other_labels`].
    pub other_labels: Vec<i32>,
    /// See [`StepBatch::lambdas`].
    pub lambdas: Vec<f32>,
    /// See [`StepBatch::targets`].
    pub targets: Vec<f32>,
    /// See [`StepBatch::loss_weight`]. `None` for a full global batch.
    pub loss_weight: Option<f32>,
}

impl StepBatch for HostBatch {
    fn images(&self) -> &[u8] {
        &self.images
    }

    fn labels(&self) -> &[i32] {
        &self.labels
    }

    fn sample_indices(&self) -> &[u64] {
        &self.sample_indices
    }

    fn other_labels(&self) -> &[i32] {
        &self.other_labels
    }

    fn lambdas(&self) -> &[f32] {
        &self.lambdas
    }

    fn targets(&self) -> &[f32] {
        &self.targets
    }

    fn loss_weight(&self) -> f32 {
        self.loss_weight.unwrap_or(1.0)
    }
}

impl From<HostBatch> for Arc<dyn StepBatch> {
    fn from(batch: HostBatch) -> Self {
        Arc::new(batch)
    }
}

/// Checks that a batch fits `local` shards of the plan.
///
/// # Errors
/// [`DeviceError::Batch`] unless the batch has the sizes for `local` shards of the plan, every label is a class or
/// below 0, every share of a mixture is from 0 to 1, every value to predict is finite, and the plan takes the weight of
/// its loss.
pub fn check_batch(plan: &Plan, local: usize, batch: &dyn StepBatch) -> Result<(), DeviceError> {
    let samples = local * plan.batch;
    let mixed = if plan.mixture.is_some() { samples } else { 0 };
    let values = plan.targets.map_or(0, |targets| plan.shape(targets).last());
    let sizes = [
        ("image bytes", batch.images().len(), local * plan.shape(plan.images).elements()),
        ("labels", batch.labels().len(), samples),
        ("sample indices", batch.sample_indices().len(), samples),
        ("other labels", batch.other_labels().len(), mixed),
        ("lambdas", batch.lambdas().len(), mixed),
        ("target values", batch.targets().len(), samples * values),
    ];
    if let Some((what, found, expected)) = sizes.into_iter().find(|(_, found, expected)| found != expected) {
        return Err(DeviceError::Batch(format!("{found} {what}, but {samples} samples take {expected}")));
    }
    if let Some(share) = batch.lambdas().iter().find(|share| !(0.0..=1.0).contains(*share)) {
        return Err(DeviceError::Batch(format!("a label's share of {share} is out of range: 0 to 1")));
    }
    if let Some(at) = batch.targets().iter().position(|value| !value.is_finite()) {
        let sample = batch.sample_indices()[at / values];
        let value = batch.targets()[at];
        return Err(DeviceError::Batch(format!(
            "sample {sample} has the target {value}, which is not a finite number"
        )));
    }
    let weight = batch.loss_weight();
    if plan.loss_weight.is_none() && weight != 1.0 {
        let reason = format!("its loss has the weight {weight}, but this plan is for full batches");
        return Err(DeviceError::Batch(reason));
    }
    if !(weight.is_finite() && weight > 0.0) {
        return Err(DeviceError::Batch(format!("a weight of the loss of {weight} is out of range: above 0")));
    }
    if plan.targets.is_some() {
        // A label says only whether there is a sample.
        return Ok(());
    }
    let is_no_class = |label: i32| usize::try_from(label).is_ok_and(|label| label >= plan.classes);
    let [own, other] = [batch.labels(), batch.other_labels()].map(|labels| labels.iter().zip(batch.sample_indices()));
    match own.chain(other).find(|(label, _)| is_no_class(**label)) {
        Some((label, sample)) => Err(DeviceError::Batch(format!(
            "sample {sample} has the label {label}, which is not one of the {} classes",
            plan.classes
        ))),
        None => Ok(()),
    }
}
