//! A device's requirements on plans: the order of filters, the types of features, the channels of images, the operations to fuse, and
//! what it stores for gradients.
//!
//! A plan is compiled for a device's [`Target`], before gradients and memory are planned.
//! Algorithms are names that the device owns: it refuses a plan that names an unknown one.
//!
//! The device chooses the order of convolution weights. The CPU's is [`FilterOrder::Hwio`], a GPU's
//! is [`FilterOrder::Ohwi`], and the reference runs either. `layout` converts between these and
//! PyTorch's.

use std::fmt;

use crate::{FilterOrder, Graph, Mode, ValueId, fuse};

/// Rewrites the forward graph of a mode before gradients and memory are planned. The given values must stay.
pub type Fuse<'a> = dyn Fn(&mut Graph, &[ValueId], Mode) + 'a;

/// A device's decisions about plans, as `Device::target` returns them. [`crate::compile()`] uses the default.
pub struct Target<'a> {
    /// The order in which it stores filters.
    pub filters: FilterOrder,
    /// Whether features, the matrices before the logits, and their gradients have the element type of the plan's precision like
    /// images and tokens. Then linear layers multiply in it too. Logits stay f32.
    pub narrow_features: bool,
    /// Fuses the operations that it computes as one.
    pub fuse: Box<Fuse<'a>>,
    /// Bytes of activations for each byte that tells which of them the activation of a batch norm passed. `None` where gradients find
    /// that out from other values: see [`crate::ops::BatchNormReduce`].
    pub gate_bytes: Option<usize>,
    /// What the channels of normalised images are a multiple of where they have 16 bits and only convolutions of one group, whose windows
    /// overlap, read them. The further channels are zeros, which weights do not have. `None` where images have their own channels alone.
    pub image_channels: Option<usize>,
    /// Whether the plan says how gradients are compressed ([`crate::CompileOptions::compress`]) and keeps what that loses. Otherwise that
    /// is the device's own affair.
    pub compresses_sums: bool,
}

impl Default for Target<'_> {
    fn default() -> Self {
        let fuse: Box<Fuse> = Box::new(|graph, keep, _| fuse(graph, keep));
        Target {
            filters: FilterOrder::default(),
            narrow_features: false,
            gate_bytes: None,
            image_channels: None,
            compresses_sums: false,
            fuse,
        }
    }
}

impl fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { filters, narrow_features, gate_bytes, image_channels, compresses_sums, fuse: _ } = self;
        f.debug_struct("Target")
            .field("filters", filters)
            .field("narrow_features", narrow_features)
            .field("gate_bytes", gate_bytes)
            .field("image_channels", image_channels)
            .field("compresses_sums", compresses_sums)
            .finish_non_exhaustive()
    }
}
