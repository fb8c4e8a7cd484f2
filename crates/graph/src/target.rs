//! What a plan owes to the device that will run it: the order of filters, and what is fused.

use std::fmt;

use enmasse_tensor::Shape;

use crate::{Graph, ValueId, fuse};

/// The order in which a device keeps the weights of convolutions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FilterOrder {
    /// `[kernel height, kernel width, input, output]`: output channels lie next to each other.
    #[default]
    Hwio,
    /// `[output, kernel height, kernel width, input]`: input channels do, as in activations (cuDNN calls it KRSC).
    Ohwi,
}

impl FilterOrder {
    /// The name in plans.
    pub const fn name(self) -> &'static str {
        match self {
            FilterOrder::Hwio => "hwio",
            FilterOrder::Ohwi => "ohwi",
        }
    }

    /// The stored shape of filters.
    pub fn shape(self, kernel: [usize; 2], inputs: usize, outputs: usize) -> Shape {
        match self {
            FilterOrder::Hwio => [kernel[0], kernel[1], inputs, outputs].into(),
            FilterOrder::Ohwi => [outputs, kernel[0], kernel[1], inputs].into(),
        }
    }
}

impl fmt::Display for FilterOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Rewrites a forward graph before memory is planned, but for the values given, which must stay.
pub type Fuse<'a> = dyn Fn(&mut Graph, &[ValueId]) + 'a;

/// What a device decides about plans; [`crate::compile`] is for the default. `Device::target` makes one.
pub struct Target<'a> {
    /// How it keeps filters.
    pub filters: FilterOrder,
    /// Which operations it wants as one.
    pub fuse: Box<Fuse<'a>>,
}

impl Default for Target<'_> {
    fn default() -> Self {
        Target { filters: FilterOrder::default(), fuse: Box::new(fuse) }
    }
}

impl fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("filters", &self.filters).finish_non_exhaustive()
    }
}
