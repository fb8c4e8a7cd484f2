//! The moving average of the weights (EMA).

use std::ops::Range;

use super::Operation;

/// The first update copies the values. Later ones compute `average += (1 - decay) * (value - average)` in place.
///
/// As PyTorch's `AveragedModel` with `get_ema_multi_avg_fn(decay)` and `use_buffers=True`. Skipped steps are no updates, as in
/// [`crate::Update::scaled`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Average {
    /// The share of the old average that each update keeps.
    pub decay: f32,
    /// Whether the loss is scaled.
    pub scaled: bool,
}

impl Operation for Average {
    const NAME: &'static str = "average";
    const SIGNATURE: &'static str = "(values.., averages.., unscale? [2], skipped_steps? [1]) -> ()";
    const PYTORCH: Option<&'static str> = Some("torch.optim.swa_utils.AveragedModel");

    fn attributes(&self) -> String {
        format!("decay {}{}", self.decay, if self.scaled { " scaled" } else { "" })
    }

    fn changes(&self, inputs: usize) -> Range<usize> {
        let values = inputs.saturating_sub(if self.scaled { 2 } else { 0 }) / 2;
        values..2 * values
    }
}
