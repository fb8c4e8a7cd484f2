//! What several of torchvision's families are made of.

use enmasse_graph::{BatchNorm, Conv, Tensor};

/// What stands between two layers.
pub(crate) type Activation = fn(Tensor) -> Tensor;

/// The multiple of 8 nearest to `wanted`, at least 8 and at least nine tenths of it.
pub(crate) fn channels(wanted: f64) -> usize {
    let rounded = ((wanted + 4.0) as usize / 8 * 8).max(8);
    if (rounded as f64) < 0.9 * wanted { rounded + 8 } else { rounded }
}

/// A convolution `NAME.0` and its batch norm `NAME.1`.
pub(crate) fn conv_norm(x: Tensor, name: &str, window: Conv, norm: BatchNorm) -> Tensor {
    x.conv2d(&format!("{name}.0"), window.no_bias().kaiming_normal()).batch_norm_with(&format!("{name}.1"), norm)
}

/// A factor for each channel that follows from the means of all of them.
///
/// Source: J. Hu et al., "Squeeze-and-excitation networks", CVPR 2018.
#[derive(Clone, Copy)]
pub(crate) struct SqueezeExcitation {
    /// Channels between the two convolutions.
    pub squeezed: usize,
    /// A convolution `NAME.fc1` or `NAME.fc2` with this number of outputs.
    pub conv: fn(usize) -> Conv,
    pub activation: Activation,
    /// From numbers to factors.
    pub gate: Activation,
}

impl SqueezeExcitation {
    pub fn forward(self, x: Tensor, name: &str) -> Tensor {
        let y = x.clone().adaptive_avg_pool([1, 1]).conv2d(&format!("{name}.fc1"), (self.conv)(self.squeezed));
        let y = (self.activation)(y).conv2d(&format!("{name}.fc2"), (self.conv)(x.shape().last()));
        x * (self.gate)(y)
    }
}

/// 1x1 up, depthwise, 1x1 down without an activation.
#[derive(Clone, Copy)]
pub(crate) struct InvertedResidual {
    pub kernel: usize,
    pub stride: usize,
    /// Channels of the depthwise convolution.
    pub expanded: usize,
    pub outputs: usize,
    pub norm: BatchNorm,
    pub activation: Activation,
    /// Before the way down.
    pub squeeze_excitation: Option<SqueezeExcitation>,
    /// Probability of leaving out the block.
    pub drop_path: f32,
}

impl InvertedResidual {
    pub fn forward(self, x: Tensor, name: &str) -> Tensor {
        let inputs = x.shape().last();
        let mut parts = (0..).map(|index| format!("{name}.block.{index}"));
        let mut part = || parts.next().unwrap_or_default();
        let mut y = x.clone();
        if self.expanded != inputs {
            y = (self.activation)(conv_norm(y, &part(), Conv::new(self.expanded, 1), self.norm));
        }
        let depthwise =
            Conv::new(self.expanded, self.kernel).stride(self.stride).padding(self.kernel / 2).groups(self.expanded);
        y = (self.activation)(conv_norm(y, &part(), depthwise, self.norm));
        if let Some(squeeze_excitation) = self.squeeze_excitation {
            y = squeeze_excitation.forward(y, &part());
        }
        y = conv_norm(y, &part(), Conv::new(self.outputs, 1), self.norm);
        if self.stride == 1 && inputs == self.outputs {
            y.drop_path(&format!("{name}.stochastic_depth"), self.drop_path) + x
        } else {
            y
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_multiples_of_eight() {
        let check = |wanted: f64, expected| assert_eq!(channels(wanted), expected, "{wanted}");
        check(4.0, 8);
        check(8.0, 8);
        check(12.0, 16);
        check(11.9, 16); // 8 would be less than nine tenths
        check(24.0 * 0.35, 8);
        check(160.0 * 0.75, 120);
        check(1280.0, 1280);
    }
}
