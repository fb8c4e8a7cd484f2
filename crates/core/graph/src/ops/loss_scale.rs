//! Loss scaling for f16: the scale enters where backward begins, and leaves where gradients are summed.

use std::ops::Range;

use super::Operation;

/// Every element times the factor; `y` may lie over `x`. Backward of a scaled or weighted loss begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scale;

impl Operation for Scale {
    const NAME: &'static str = "scale";
    const SIGNATURE: &'static str = "(x, factor [1]) -> (y)";

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }
}

/// The factor that undoes the scale, and the scale.
///
/// The factor is `1 / scale`, or 0 if an element of the values is not finite or `1 / scale` is not: then the step is skipped.
/// The values are all gradients, or their norm, which is not finite if one of them is not. If the update is cut over ranks, each looks at
/// its part, and all skip a step that one of them has to skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unscale;

impl Operation for Unscale {
    const NAME: &'static str = "unscale";
    const SIGNATURE: &'static str = "(values.., scale [1]) -> (unscale [2])";
    const PYTORCH: Option<&'static str> = Some("torch.amp.GradScaler.unscale_");
}

/// The end of a step of a scaled loss.
///
/// A skipped step multiplies the scale by `backoff` and counts as skipped. Any other one is good, and every `interval`-th good
/// one in a row multiplies the scale by `growth`, unless the result is infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateScale {
    /// Factor after enough good steps.
    pub growth: f32,
    /// Factor after a skipped step.
    pub backoff: f32,
    /// Good steps in a row until the scale grows.
    pub interval: u32,
}

impl Operation for UpdateScale {
    const NAME: &'static str = "update_scale";
    const SIGNATURE: &'static str = "(unscale [2], scale [1], good_steps [1], skipped_steps [1]) -> ()";
    const PYTORCH: Option<&'static str> = Some("torch.amp.GradScaler.update");

    fn attributes(&self) -> String {
        format!("growth {} backoff {} interval {}", self.growth, self.backoff, self.interval)
    }

    fn changes(&self, inputs: usize) -> Range<usize> {
        1.min(inputs)..inputs
    }
}
