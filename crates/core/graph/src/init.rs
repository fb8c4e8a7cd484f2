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
            Init::Uniform { bound } => Distribution::Uniform { bound },
        };
        distribution.fill(key, first as u64, stride as u64, values);
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

    #[test]
    fn stored_order_has_the_same_values() {
        let check = |layout: Layout, shape: Shape, piece: usize| {
            let init = Init::Normal { std: 1.0 };
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
