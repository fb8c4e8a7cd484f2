//! An optimiser's step.

use std::ops::Range;

use super::Operation;
use crate::Update;

impl Operation for Update {
    const NAME: &'static str = "update";
    const SIGNATURE: &'static str =
        "(gradients.., parameters.., state.. of each name, norm? [1], unscale? [2], skipped_steps? [1]) -> ()";
    const PYTORCH: Option<&'static str> = Some("torch.optim.Optimizer.step");

    fn attributes(&self) -> String {
        self.to_string()
    }

    /// Parameters and state, which follow the gradients.
    fn changes(&self, inputs: usize) -> Range<usize> {
        let kinds = 2 + self.optimizer.state_names().len();
        let parameters = inputs.saturating_sub(self.others()) / kinds;
        parameters..parameters * kinds
    }
}
