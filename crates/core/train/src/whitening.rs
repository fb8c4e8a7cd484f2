//! The filters of a layer that whitens its images ([`Conv::whitening`](enmasse_graph::Conv::whitening)), from training images as they are
//! prepared for evaluation.

use std::collections::HashMap;
use std::sync::Arc;

use enmasse_data::{Dataset, EvalLoader, Sharding};
use enmasse_device::Program;
use enmasse_graph::{Init, StateTensor};
use enmasse_image::Normalization;

use crate::TrainError;
use crate::trainer::EvaluationInput;
use crate::weights::{load_all, torch_shape};

/// Images that are read, evenly spaced over the data, unless their patches are more than enough.
const IMAGES: usize = 5000;

/// More patches change no digit that matters.
const PATCHES: usize = 5_000_000;

/// The parameters of a program whose values follow from the training images.
pub fn whitened(program: &dyn Program) -> Vec<StateTensor> {
    let is_whitening = |tensor: &&StateTensor| matches!(tensor.init, Init::Whitening { .. });
    program.plans().state.iter().filter(is_whitening).cloned().collect()
}

/// Sets these parameters.
pub fn whiten(
    program: &mut dyn Program,
    input: &EvaluationInput,
    images: &Arc<dyn Dataset>,
    normalization: &Normalization,
) -> Result<(), TrainError> {
    for tensor in whitened(program) {
        let Init::Whitening { epsilon, .. } = tensor.init else { continue };
        let [_, channels, height, width] = torch_shape(&tensor)[..] else { continue };
        let covariance = covariance(input, images, normalization, [channels, height, width])?;
        let filters = filters(covariance, epsilon);
        load_all(program, &HashMap::from([(tensor.name.as_str(), &filters[..])]))?;
    }
    Ok(())
}

/// The mean of `v * v'` over the patches `v` of the images, without their mean taken off.
fn covariance(
    input: &EvaluationInput,
    images: &Arc<dyn Dataset>,
    normalization: &Normalization,
    [channels, height, width]: [usize; 3],
) -> Result<Vec<Vec<f64>>, TrainError> {
    const BATCH: usize = 64;
    let size = input.transform.size;
    let (down, across) = (size + 1 - height, size + 1 - width);
    let loader = EvalLoader::new(&input.pool, images.clone(), input.transform.clone(), Sharding::one(0, 1, BATCH))?;
    let loader =
        loader.skip_unreadable(input.skips).limited(IMAGES.min(PATCHES / (down * across)).div_ceil(BATCH).max(1));
    let count = channels * height * width;
    let mut sums = vec![vec![0.0; count]; count];
    let mut patches = 0u64;
    let (mut image, mut patch) = (Vec::new(), Vec::new());
    for batch in loader.pass() {
        let batch = batch.map_err(TrainError::of_batch)?;
        for place in batch.places() {
            let bytes = batch.images[place * size * size * 3..][..size * size * 3].chunks_exact(3);
            let value = |(byte, (mean, std)): (&u8, (&f32, &f32))| {
                (f64::from(*byte) / 255.0 - f64::from(*mean)) / f64::from(*std)
            };
            let constants = || normalization.mean.iter().zip(&normalization.std);
            image.clear();
            image.extend(bytes.flat_map(|pixel| pixel.iter().zip(constants()).map(value)));
            for (top, left) in (0..down).flat_map(|top| (0..across).map(move |left| (top, left))) {
                patch.clear();
                for channel in 0..channels {
                    for row in top..top + height {
                        patch.extend((left..left + width).map(|x| image[(row * size + x) * channels + channel]));
                    }
                }
                for (sums, a) in sums.iter_mut().zip(&patch) {
                    sums.iter_mut().zip(&patch).for_each(|(sum, b)| *sum += a * b);
                }
                patches += 1;
            }
        }
    }
    if patches == 0 {
        return Err(TrainError::NothingReadable(loader.samples() as u64));
    }
    sums.iter_mut().flatten().for_each(|sum| *sum /= patches as f64);
    Ok(sums)
}

/// The eigenvectors, of the largest eigenvalue first, each over the root of its eigenvalue and `epsilon`, and then their negatives.
fn filters(covariance: Vec<Vec<f64>>, epsilon: f32) -> Vec<f32> {
    let mut found = eigen(covariance);
    found.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let of_sign = |sign: f64| {
        found.iter().flat_map(move |(value, vector)| {
            let scale = sign / (value.max(0.0) + f64::from(epsilon)).sqrt();
            vector.iter().map(move |number| (number * scale) as f32)
        })
    };
    of_sign(1.0).chain(of_sign(-1.0)).collect()
}

/// Eigenvalues and eigenvectors of a symmetric matrix, by Jacobi's rotations.
fn eigen(mut matrix: Vec<Vec<f64>>) -> Vec<(f64, Vec<f64>)> {
    /// Each sweep squares what is left beside the diagonal; six or seven are usual.
    const SWEEPS: usize = 30;
    let count = matrix.len();
    let mut vectors: Vec<Vec<f64>> =
        (0..count).map(|i| (0..count).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    for _ in 0..SWEEPS {
        for (p, q) in (0..count).flat_map(|p| (p + 1..count).map(move |q| (p, q))) {
            if matrix[p][q] == 0.0 {
                continue;
            }
            // The rotation of p and q that makes this element zero.
            let ratio = (matrix[q][q] - matrix[p][p]) / (2.0 * matrix[p][q]);
            let tangent = ratio.signum() / (ratio.abs() + (ratio * ratio + 1.0).sqrt());
            let cosine = 1.0 / (tangent * tangent + 1.0).sqrt();
            let sine = tangent * cosine;
            let rotated = |a: f64, b: f64| (cosine * a - sine * b, sine * a + cosine * b);
            for row in &mut matrix {
                (row[p], row[q]) = rotated(row[p], row[q]);
            }
            for k in 0..count {
                (matrix[p][k], matrix[q][k]) = rotated(matrix[p][k], matrix[q][k]);
                (vectors[p][k], vectors[q][k]) = rotated(vectors[p][k], vectors[q][k]);
            }
        }
    }
    vectors.into_iter().enumerate().map(|(i, vector)| (matrix[i][i], vector)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numpy.linalg.eigh`, up to the sign of vectors.
    #[test]
    fn eigenvectors_of_a_symmetric_matrix() {
        let check = |matrix: &[&[f64]], expected: &[(f64, &[f64])]| {
            let mut found = eigen(matrix.iter().map(|row| row.to_vec()).collect());
            found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            for ((value, vector), (expected, direction)) in found.iter().zip(expected) {
                let along: f64 = vector.iter().zip(*direction).map(|(a, b)| a * b).sum();
                assert!((value - expected).abs() < 1e-8 && (along.abs() - 1.0).abs() < 1e-8, "{value} {vector:?}");
            }
            assert_eq!(found.len(), expected.len());
        };
        let half = 0.5f64.sqrt();
        check(&[&[2.0, 1.0], &[1.0, 2.0]], &[(1.0, &[half, -half]), (3.0, &[half, half])]);
        check(&[&[2.0, 0.0], &[0.0, 1.0]], &[(1.0, &[0.0, 1.0]), (2.0, &[1.0, 0.0])]);
        check(&[&[0.0, 0.0], &[0.0, 0.0]], &[(0.0, &[1.0, 0.0]), (0.0, &[0.0, 1.0])]);
        check(
            &[&[4.0, 1.0, -2.0], &[1.0, 3.0, 0.5], &[-2.0, 0.5, 5.0]],
            &[
                (1.584206686, &[-0.638242617, 0.614546939, -0.463657654]),
                (3.839336454, &[0.445339484, 0.786014400, 0.428782112]),
                (6.576456859, &[-0.627948334, -0.067181961, 0.775349913]),
            ],
        );
    }

    /// What the filters see has no correlation, and a variance of 1 where epsilon is small.
    #[test]
    fn filters_whiten() {
        let covariance = vec![vec![4.0, 1.0, -2.0], vec![1.0, 3.0, 0.5], vec![-2.0, 0.5, 5.0]];
        let found = filters(covariance.clone(), 1e-9);
        let [filters, negatives] = [&found[..9], &found[9..]];
        assert!(filters.iter().zip(negatives).all(|(a, b)| *a == -b));
        for (i, j) in (0..3).flat_map(|i| (0..3).map(move |j| (i, j))) {
            let of = |filter: usize, k: usize| f64::from(filters[filter * 3 + k]);
            let seen: f64 = (0..9).map(|kl| of(i, kl / 3) * covariance[kl / 3][kl % 3] * of(j, kl % 3)).sum();
            assert!((seen - f64::from(u8::from(i == j))).abs() < 1e-6, "{i} {j}: {seen}");
        }
    }
}
