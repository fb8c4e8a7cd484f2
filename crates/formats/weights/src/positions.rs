//! Position embeddings of vision transformers for images of another size: those of a file, interpolated.

/// The position embedding of a model, `[1, before + height * width, channels]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions {
    /// The tensor's name.
    pub name: String,
    /// Places before those of the patches, which are taken as they are.
    pub before: usize,
    /// Rows and columns of patches.
    pub grid: [usize; 2],
    /// Whether neighbours are averaged where the grid becomes smaller, as timm does. DINOv2's own code does not.
    pub antialias: bool,
}

/// A position embedding that was interpolated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpolated {
    /// The tensor's name.
    pub name: String,
    /// Rows and columns in the file, a square.
    pub in_file: usize,
    /// Rows and columns of the model.
    pub in_model: [usize; 2],
}

impl Positions {
    /// The embedding of a file with this shape for the model's grid, if its patches are a square.
    pub(crate) fn interpolate(&self, shape: &[usize], values: &[f32]) -> Option<(Interpolated, Vec<f32>)> {
        let &[1, tokens, channels] = shape else { return None };
        let patches = tokens.checked_sub(self.before)?;
        let side = patches.isqrt();
        if side == 0 || side * side != patches {
            return None;
        }
        let (before, patches) = values.split_at(self.before * channels);
        let [height, width] = self.grid;
        // Columns first: what a row of the file has for each column of the model.
        let wide = resized(patches, [side, side, channels], width, self.antialias);
        let all = resized(&wide, [1, side, width * channels], height, self.antialias);
        let interpolated = Interpolated { name: self.name.clone(), in_file: side, in_model: self.grid };
        Some((interpolated, [before, &all].concat()))
    }
}

/// `[outer, size, inner]` with another number of entries along the middle axis.
fn resized(values: &[f32], [outer, size, inner]: [usize; 3], to: usize, antialias: bool) -> Vec<f32> {
    let mut result = Vec::with_capacity(outer * to * inner);
    for block in values.chunks_exact(size * inner) {
        for at in 0..to {
            let mut sums = vec![0.0; inner];
            for (from, weight) in taps(size, to, at, antialias) {
                let entry = &block[from * inner..(from + 1) * inner];
                sums.iter_mut().zip(entry).for_each(|(sum, &value)| *sum += weight * f64::from(value));
            }
            result.extend(sums.into_iter().map(|sum| sum as f32));
        }
    }
    result
}

/// The entries of which one of `to` is made, and their weights: PyTorch's bicubic interpolation.
fn taps(size: usize, to: usize, at: usize, antialias: bool) -> Vec<(usize, f64)> {
    let scale = size as f64 / to as f64;
    let centre = (at as f64 + 0.5) * scale;
    if antialias {
        let step = scale.max(1.0);
        let first = (centre - 2.0 * step + 0.5).max(0.0) as usize;
        let end = ((centre + 2.0 * step + 0.5) as usize).min(size);
        let weights: Vec<f64> = (first..end).map(|from| cubic((from as f64 + 0.5 - centre) / step, -0.5)).collect();
        let sum: f64 = weights.iter().sum();
        return (first..end).zip(weights.into_iter().map(|weight| weight / sum)).collect();
    }
    let base = (centre - 0.5).floor();
    let tap = |offset: i32| {
        let from = base + f64::from(offset);
        (from.clamp(0.0, size as f64 - 1.0) as usize, cubic(from + 0.5 - centre, -0.75))
    };
    (-1..=2).map(tap).collect()
}

/// The cubic convolution kernel.
fn cubic(x: f64, a: f64) -> f64 {
    match x.abs() {
        x if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => ((x - 5.0) * x + 8.0) * x * a - 4.0 * a,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `torch.nn.functional.interpolate(torch.arange(n * n) ** 2 / 10, mode="bicubic")`, in f64.
    fn check(side: usize, grid: [usize; 2], antialias: bool, expected: &[f32]) {
        let patches = (0..side * side).flat_map(|at| [(at * at) as f32 / 10.0, 1.0]);
        let values: Vec<f32> = [7.0, -7.0].into_iter().chain(patches).collect();
        let positions = Positions { name: "pos_embed".into(), before: 1, grid, antialias };
        let (interpolated, found) = positions.interpolate(&[1, 1 + side * side, 2], &values).unwrap();
        assert_eq!((interpolated.in_file, interpolated.in_model), (side, grid));
        let (before, patches) = found.split_at(2);
        assert_eq!(before, [7.0, -7.0]);
        for (pair, expected) in patches.chunks(2).zip(expected) {
            let near = |found: f32, expected: f32| (found - expected).abs() < 2e-5 * expected.abs().max(1.0);
            assert!(near(pair[0], *expected) && near(pair[1], 1.0), "{side} to {grid:?}: {patches:?}");
        }
        assert_eq!(patches.len(), 2 * expected.len());
    }

    #[test]
    fn values_of_pytorch() {
        check(4, [2, 3], true, &[1.062, 1.90534, 3.07799, 10.1065, 12.864, 15.9509]);
        check(4, [2, 3], false, &[0.400145, 1.05, 2.11745, 11.1209, 14.175, 17.6467]);
        check(
            3,
            [5, 4],
            true,
            &[
                -0.0707829, -0.0515011, 0.0857034, 0.254816, 0.179962, 0.338585, 0.678749, 0.987202, 0.863433, 1.27558,
                1.98503, 2.54701, 2.63496, 3.30064, 4.37938, 5.19489, 3.7335, 4.53852, 5.82021, 6.77506,
            ],
        );
        check(
            3,
            [5, 4],
            false,
            &[
                -0.0894434, -0.0859098, 0.0480074, 0.215799, 0.134013, 0.286253, 0.652645, 0.969142, 0.849756, 1.24888,
                2.00122, 2.5646, 2.5375, 3.1835, 4.3218, 5.13206, 3.76176, 4.55646, 5.92723, 6.8862,
            ],
        );
        check(5, [2, 2], true, &[3.68542, 6.55897, 28.5088, 36.6102]);
        check(1, [2, 1], false, &[0.0, 0.0]);
    }

    #[test]
    fn what_is_no_square_is_left() {
        let positions = Positions { name: "pos_embed".into(), before: 1, grid: [2, 2], antialias: true };
        for shape in [&[1, 8, 1][..], &[1, 1, 8], &[8, 1], &[2, 5, 1]] {
            assert!(positions.interpolate(shape, &[0.0; 8]).is_none(), "{shape:?}");
        }
    }
}
