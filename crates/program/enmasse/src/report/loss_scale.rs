//! What a run in f16 says of steps that are skipped one after another. A few at the start are usual: the scale begins high.

use enmasse_device::LossScale;

/// Steps in a row that are worth a line: the scale is then a thousandth of what it was.
const MANY: u32 = 10;

/// Watches the steps of a scaled loss.
#[derive(Debug, Default)]
pub struct Skips {
    in_a_row: u32,
    is_told: bool,
    is_hopeless: bool,
}

impl Skips {
    /// The line after a step; `None` if there is nothing new to say.
    pub fn step(&mut self, LossScale { scale, skipped }: LossScale) -> Option<String> {
        self.in_a_row = if skipped { self.in_a_row + 1 } else { 0 };
        if skipped && scale < 1.0 && !std::mem::replace(&mut self.is_hopeless, true) {
            return Some(format!(
                "warning: gradients overflow f16 at a loss scale of {scale}: the model diverges in f16; --precision bf16 has \
                 the range of f32"
            ));
        }
        if self.in_a_row == MANY && !std::mem::replace(&mut self.is_told, true) {
            return Some(format!(
                "warning: {MANY} steps in a row were skipped, because their gradients overflow f16, at last at a loss scale of \
                 {scale}"
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps after which there is a line, and their lines.
    fn lines(steps: impl IntoIterator<Item = bool>, mut scale: f64) -> Vec<(u32, String)> {
        let mut skips = Skips::default();
        let step = |(number, skipped): (u32, bool)| {
            let line = skips.step(LossScale { scale, skipped });
            scale *= if skipped { 0.5 } else { 1.0 };
            line.map(|line| (number, line))
        };
        (1..).zip(steps).filter_map(step).collect()
    }

    #[test]
    fn many_in_a_row_are_told_once() {
        assert_eq!(lines([[true; 9], [false; 9], [true; 9]].concat(), 2f64.powi(30)), []);
        let many = "warning: 10 steps in a row were skipped, because their gradients overflow f16, at last at a loss scale of \
                    128";
        let found = lines([vec![true; 12], vec![false], vec![true; 3]].concat(), 65536.0);
        assert_eq!(found, [(10, many.to_owned())]);
    }

    #[test]
    fn a_scale_that_cannot_help_is_told_once() {
        let found = lines([true; 30], 65536.0);
        assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [10, 18]);
        let hopeless = "warning: gradients overflow f16 at a loss scale of 0.5: the model diverges in f16; --precision bf16 has \
                        the range of f32";
        assert_eq!(found[1].1, hopeless);
        assert_eq!(lines([true, false, true], 0.5), [(1, hopeless.to_owned())]);
    }
}
