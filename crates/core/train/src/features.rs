//! Features of images, computed once: what the last layer of a model reads, for a head that is trained on them, for neighbours among
//! them, or for other programs.

use enmasse_comm::Group;
use enmasse_data::{Batch, EvalLoader};
use enmasse_device::Program;

use crate::TrainError;
use crate::evaluation::submit;
use crate::trace::at;

/// The features of a data set, in its order.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Numbers of an image.
    pub width: usize,
    /// `[images, width]`; zeros for an image that cannot be read.
    pub values: Vec<f32>,
    /// The class of each image, below 0 where it cannot be read.
    pub labels: Vec<i64>,
}

impl Features {
    /// Runs one pass of `loader`, which is this rank's part of `total` images, by a program whose logits are features. Every rank has
    /// the features of all. `proceed` is shown each batch, on all ranks equally often;
    /// where it says no, the pass ends early, and there are none.
    ///
    /// # Errors
    /// That of `proceed`, an image cannot be read and is not to be skipped, or the device or the group fails.
    pub fn compute(
        program: &mut dyn Program,
        loader: &EvalLoader,
        total: usize,
        group: Option<&Group>,
        proceed: &mut dyn FnMut(&Batch) -> Result<bool, TrainError>,
    ) -> Result<Option<Self>, TrainError> {
        let width = program.plans().evaluate.classes;
        // Above 0 where an image can be read, so that the sum over ranks is what its own rank has.
        let mut labels = vec![0; total];
        let mut values = vec![0.0; total * width];
        at(group, "reading a batch for its features");
        for batch in loader.pass() {
            let mut batch = batch.map_err(TrainError::of_batch)?;
            if !proceed(&batch)? {
                return Ok(None);
            }
            at(group, "computing features");
            let places: Vec<(usize, usize)> = batch.places().map(|at| (at, batch.indices[at] as usize)).collect();
            for &(place, index) in &places {
                labels[index] = i64::from(batch.labels[place]) + 1;
            }
            // They are classes, of which the features are none.
            batch.labels.fill(-1);
            let ticket = submit(program, batch, 0)?;
            program.metrics(ticket)?;
            let features = program.store("logits")?;
            for &(place, index) in &places {
                let row = &mut values[index * width..][..width];
                let found = &features[place * width..][..width];
                row.iter_mut().zip(found).for_each(|(value, feature)| *value = *feature as f32);
            }
            at(group, "reading a batch for its features");
        }
        if let Some(group) = group {
            group.all_reduce(&mut labels)?;
            group.all_reduce(&mut values)?;
        }
        labels.iter_mut().for_each(|label| *label -= 1);
        Ok(Some(Features { width, values, labels }))
    }

    /// The features of the images that can be read, with their classes.
    pub fn rows(&self) -> impl Iterator<Item = (&[f32], usize)> {
        let rows = self.values.chunks_exact(self.width.max(1)).zip(&self.labels);
        rows.filter_map(|(row, label)| Some((row, usize::try_from(*label).ok()?)))
    }
}

/// The sum of products, in an order that does not depend on the machine.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (a, rest) = a.as_chunks::<LANES>();
    let (b, other) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum::<f32>() + rest.iter().zip(other).map(|(a, b)| a * b).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_products() {
        for len in [0, 1, 15, 16, 17, 40] {
            let a: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let expected: f32 = a.iter().map(|a| a * 2.0).sum();
            assert_eq!(dot(&a, &vec![2.0; len]), expected);
        }
    }
}
