//! Initial values of parameters: pure functions of (seed, parameter name, element), by PyTorch's rules.

use enmasse_tensor::Shape;
use enmasse_tensor::random::{Distribution, key};

use crate::Layout;

/// How a parameter is initialised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element has this value.
    Constant(f32),
    /// Normal with mean 0 and this deviation (Kaiming's rule for ReLU: `sqrt(2 / fan)`).
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// Uniform in `[-bound, bound)` (PyTorch's default for linear and convolution layers: `1 / sqrt(fan in)`).
    Uniform {
        /// Half the width of the interval.
        bound: f32,
    },
    /// Of filters `[outputs, inputs, height, width]`: each of the first outputs repeats the input of its number (PyTorch's `dirac_`).
    /// Further ones are uniform.
    Dirac {
        /// Channels of the input.
        inputs: usize,
        /// Height and width.
        kernel: [usize; 2],
        /// Half the width of the interval of further outputs.
        bound: f32,
    },
    /// Of the first filters, `[2 * n, inputs, height, width]` with `n = inputs * height * width`: the eigenvectors of what they see of
    /// training images, each over the root of its eigenvalue, and then the negative ones. The values follow from data, which are not
    /// known here. Until they are set, the filters are uniform.
    Whitening {
        /// Added to the eigenvalues.
        epsilon: f32,
        /// Half the width of the interval.
        bound: f32,
    },
}

impl Init {
    /// The initial values of a range of elements of the parameter `name`, in PyTorch's order.
    pub fn values(self, seed: u64, name: &str, elements: std::ops::Range<usize>) -> Vec<f32> {
        let mut values = vec![0.0; elements.len()];
        self.run(parameter_key(seed, name), elements.start, 1, &mut values);
        values
    }

    /// Writes the same values in stored order, for a parameter of this shape and layout: `values` are its stored elements
    /// from `first` on.
    pub fn fill(self, seed: u64, name: &str, layout: Layout, shape: &Shape, first: usize, values: &mut [f32]) {
        let key = parameter_key(seed, name);
        layout.for_each_run(shape, first..first + values.len(), |stored, element, stride| {
            self.run(key, element, stride, &mut values[stored.start - first..stored.end - first]);
        });
    }

    /// Computes elements `first`, `first + stride` and so on, in PyTorch's order.
    fn run(self, key: [u32; 2], first: usize, stride: usize, values: &mut [f32]) {
        let distribution = match self {
            Init::Constant(value) => return values.fill(value),
            Init::Normal { std } => Distribution::Normal { std },
            Init::Uniform { bound } | Init::Dirac { bound, .. } | Init::Whitening { bound, .. } => {
                Distribution::Uniform { bound }
            }
        };
        distribution.fill(key, first as u64, stride as u64, values);
        if let Init::Dirac { inputs, kernel: [height, width], .. } = self {
            let taps = height * width;
            let middle = height / 2 * width + width / 2;
            for (element, value) in (first..).step_by(stride).zip(values) {
                let output = element / taps / inputs;
                let input = element / taps % inputs;
                let tap = element % taps;
                if output < inputs {
                    *value = f32::from(output == input && tap == middle);
                }
            }
        }
    }
}

fn parameter_key(seed: u64, name: &str) -> [u32; 2] {
    key(seed, &format!("init {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FilterOrder;

    #[test]
    fn a_pure_function_of_seed_name_and_element() {
        let init = Init::Normal { std: 2.0 };
        let all = init.values(5, "conv1.weight", 0..100);
        assert_eq!(all[42], init.values(5, "conv1.weight", 42..43)[0]);
        assert_ne!(all[42], init.values(6, "conv1.weight", 42..43)[0]);
        assert_ne!(all[42], init.values(5, "conv2.weight", 42..43)[0]);
        let uniform = Init::Uniform { bound: 0.5 }.values(0, "fc.weight", 0..1000);
        assert!(uniform.iter().all(|v| (-0.5..0.5).contains(v)));
    }

    /// `dirac_` of PyTorch on the first filters alone, for kernels of both parities.
    #[test]
    fn dirac_repeats_the_inputs() {
        let init = Init::Dirac { inputs: 2, kernel: [3, 2], bound: 0.5 };
        let values = init.values(7, "conv.weight", 0..36);
        let mut expected = [0.0; 24];
        (expected[3], expected[21]) = (1.0, 1.0);
        assert_eq!(values[..24], expected);
        assert_eq!(values[24..], Init::Uniform { bound: 0.5 }.values(7, "conv.weight", 24..36));
        assert_eq!(init.values(7, "conv.weight", 20..23), [0.0, 1.0, 0.0]);
    }

    #[test]
    fn stored_order_has_the_same_values() {
        let check = |layout: Layout, shape: Shape, piece: usize| {
            let init = Init::Dirac { inputs: shape[shape.len() - 1], kernel: [1, 1], bound: 1.0 };
            let values = init.values(1, "w", 0..shape.elements());
            let mut expected = vec![0.0; shape.elements()];
            layout.for_each(&shape, |stored, torch| expected[stored] = values[torch]);
            let mut found = vec![0.0; shape.elements()];
            for (number, part) in found.chunks_mut(piece).enumerate() {
                init.fill(1, "w", layout, &shape, number * piece, part);
            }
            assert_eq!(found, expected, "{layout:?} {shape:?} in pieces of {piece}");
        };
        for piece in [1, 4, 7, 64, 1000] {
            check(Layout::Convolution(FilterOrder::Hwio), [3, 2, 5, 7].into(), piece);
            check(Layout::Convolution(FilterOrder::Ohwi), [7, 3, 2, 5].into(), piece);
            check(Layout::Linear, [6, 5].into(), piece);
            check(Layout::Plain, [11].into(), piece);
        }
    }
}
