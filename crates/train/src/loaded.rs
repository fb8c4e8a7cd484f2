//! The batches of the loader as programs take them: the same memory, by another trait.

use std::sync::Arc;

/// A batch of the loader, held for as long as a program reads it.
pub(crate) struct LoadedBatch(pub Arc<enmasse_data::Batch>);

impl enmasse_device::Batch for LoadedBatch {
    fn images(&self) -> &[u8] {
        &self.0.images
    }

    fn labels(&self) -> &[i32] {
        &self.0.labels
    }

    fn sample_indices(&self) -> &[u64] {
        &self.0.indices
    }

    fn other_labels(&self) -> &[i32] {
        &self.0.other_labels
    }

    fn shares(&self) -> &[f32] {
        &self.0.shares
    }

    fn loss_weight(&self) -> f32 {
        self.0.loss_weight
    }
}
