//! First values of parameters: pure functions of (seed, parameter name, element), by PyTorch's rules.

use enmasse_tensor::RandomStream;
use enmasse_tensor::random::key;

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element is this.
    Constant(f32),
    /// Normal with mean 0 and this deviation (Kaiming's rule for ReLU: `sqrt(2 / fan)`).
    Normal {
        /// Standard deviation.
        deviation: f32,
    },
    /// Uniform in `[-bound, bound)` (PyTorch's default for linear and convolution layers: `1 / sqrt(fan in)`).
    Uniform {
        /// Half the width.
        bound: f32,
    },
}

impl Init {
    /// The first values of a range of elements, in PyTorch's order, of the parameter `name`.
    pub fn values(self, seed: u64, name: &str, elements: std::ops::Range<usize>) -> Vec<f32> {
        let key = key(seed, &format!("init {name}"));
        let stream = |element: usize| RandomStream::with_key(key, 0, element as u64);
        match self {
            Init::Constant(value) => vec![value; elements.len()],
            Init::Normal { deviation } => {
                elements.map(|e| (stream(e).normal() * f64::from(deviation)) as f32).collect()
            }
            Init::Uniform { bound } => {
                let bound = f64::from(bound);
                elements.map(|e| stream(e).uniform(-bound, bound) as f32).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pure_function_of_seed_name_and_element() {
        let init = Init::Normal { deviation: 2.0 };
        let all = init.values(5, "conv1.weight", 0..100);
        assert_eq!(all[42], init.values(5, "conv1.weight", 42..43)[0]);
        assert_ne!(all[42], init.values(6, "conv1.weight", 42..43)[0]);
        assert_ne!(all[42], init.values(5, "conv2.weight", 42..43)[0]);
        let uniform = Init::Uniform { bound: 0.5 }.values(0, "fc.weight", 0..1000);
        assert!(uniform.iter().all(|v| (-0.5..0.5).contains(v)));
    }
}
