//! The ranges of activations over images, by which a model of integers rounds them.

use std::iter::zip;
use std::sync::Arc;

use enmasse_data::{Dataset, DecodePool, EvalLoader, Sharding};
use enmasse_device::Device;
use enmasse_graph::Plan;

use crate::evaluation::submit;
use crate::{Classifier, ModelFn, TrainError};

/// Images at once, whose activations are all in memory.
const BATCH: usize = 4;

impl Classifier {
    /// The least and the greatest value of each activation that [`Classifier::to_onnx_int8`] rounds: the means, over all images that can be
    /// read, of those of an image, as of PyTorch's `MovingAverageMinMaxObserver`. A single image with an outlier widens them little.
    ///
    /// # Errors
    /// The model or the device fails, or no image can be read.
    pub fn calibrate(
        &self,
        model: &ModelFn,
        device: &dyn Device,
        images: Arc<dyn Dataset>,
        pool: &DecodePool,
    ) -> Result<Vec<[f32; 2]>, TrainError> {
        let all = images.len() as u64;
        let loader = EvalLoader::new(pool, images, self.transform.clone(), Sharding::one(0, 1, BATCH))?;
        let loader = loader.skip_unreadable(true);
        let options = self.options(BATCH);
        let classes = self.classes.len();
        let plans = device.target().compile_calibration(&|x| model(x, classes), &options)?;
        let mut program = self.with_weights(plans, device)?;
        let count = program.plans().evaluate.kept.len();
        let mut sums = vec![[0.0; 2]; count];
        let mut read = 0;
        for batch in loader.pass() {
            let mut batch = batch.map_err(TrainError::of_batch)?;
            let places: Vec<usize> = batch.places().collect();
            read += places.len();
            batch.labels.fill(-1);
            let ticket = submit(program.as_mut(), batch, 0)?;
            program.metrics(ticket)?;
            for (index, sums) in sums.iter_mut().enumerate() {
                let values = program.store(&format!("{}{index}", Plan::KEPT))?;
                let of_image = values.len() / BATCH;
                for &place in &places {
                    let found = extremes(&values[place * of_image..][..of_image]);
                    zip(&mut *sums, found).for_each(|(sum, found)| *sum += found);
                }
            }
        }
        match read {
            0 => Err(TrainError::NothingReadable(all)),
            _ => Ok(sums.into_iter().map(|sums| sums.map(|sum| (sum / read as f64) as f32)).collect()),
        }
    }
}

fn extremes(values: &[f64]) -> [f64; 2] {
    values
        .iter()
        .fold([f64::INFINITY, f64::NEG_INFINITY], |[least, greatest], &value| [least.min(value), greatest.max(value)])
}
