//! The batches of the loader as programs take them: the same memory, by another trait.

use std::sync::Arc;

/// A batch of the loader, held for as long as a program reads it.
pub(crate) struct LoadedBatch(pub Arc<enmasse_data::Batch>);

impl enmasse_device::StepBatch for LoadedBatch {
    fn images(&self) -> &[u8] {
        &self.0.images
    }

    fn labels(&self) -> &[i32] {
        &self.0.labels
    }

    fn sample_indices(&self) -> &[u64] {
        &self.0.draws
    }

    fn other_labels(&self) -> &[i32] {
        &self.0.other_labels
    }

    fn lambdas(&self) -> &[f32] {
        &self.0.lambdas
    }

    fn targets(&self) -> &[f32] {
        &self.0.targets
    }

    fn loss_weight(&self) -> f32 {
        self.0.loss_weight
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use enmasse_data::{DataError, Dataset, DecodePool, Sampler, Sharding, TrainLoader};
    use enmasse_device::StepBatch as _;
    use enmasse_image::{Image, TrainTransform};

    use super::*;

    struct Grey;

    impl Dataset for Grey {
        fn len(&self) -> usize {
            12
        }
        fn label(&self, _: usize) -> usize {
            0
        }
        fn read(&self, _: usize) -> Result<Image, DataError> {
            Ok(Image::new(4, 4, vec![128; 48])?)
        }
    }

    /// Regression test: the repetitions of a sample in an epoch had the same dropout.
    #[test]
    fn repetitions_have_indices_of_their_own() {
        let check = |sampler: Sampler, different: usize| {
            let pool = DecodePool::new(1).unwrap();
            let sharding = Sharding::one(0, 1, 5);
            let (grey, transform) = (Arc::new(Grey), TrainTransform::empty(4));
            let loader = TrainLoader::with_sampler(&pool, grey, transform, sharding, 7, sampler).unwrap();
            let (mut own, mut samples) = (BTreeSet::new(), BTreeSet::new());
            for batch in loader.epoch(0, 0) {
                let batch = LoadedBatch(Arc::new(batch.unwrap()));
                for place in batch.0.places() {
                    assert_eq!(batch.sample_indices()[place] % 12, batch.0.indices[place]);
                    own.insert(batch.sample_indices()[place]);
                    samples.insert(batch.0.indices[place]);
                }
            }
            assert_eq!((own.len(), samples.len()), (12, different));
        };
        check(Sampler::Shuffle, 12);
        check(Sampler::Resampled { balanced: false, repeats: 2 }, 6);
    }
}
