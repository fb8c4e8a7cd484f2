//! How much of the time of gradients' sums is hidden under computation, and how much could be.
//!
//! A sum is hidden while its rank still computes gradients. What remains once the last gradient is
//! ready cannot be hidden, since the update needs it. The time of a sum begins when the last rank
//! has joined it, which is known with all starts on one clock.

/// The sum of a bucket on one rank, in seconds on the clock of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sum {
    /// When all ranks had its gradients.
    pub ready: f64,
    /// When all ranks had begun it: until then this rank waits for others, and nothing travels.
    pub began: f64,
    /// When it ended on this rank.
    pub ended: f64,
}

/// Seconds of sums of gradients, over all traced steps and ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overlap {
    /// Their total time.
    pub seconds: f64,
    /// The part of it in which the rank went on computing gradients.
    pub hidden: f64,
    /// The part of it that would be hidden if each sum began once its gradients were ready and the one before had ended.
    pub hideable: f64,
}

impl Overlap {
    /// The part of the time that is hidden, 0 to 1; `None` if there were no sums.
    pub fn share(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.hidden / self.seconds)
    }

    /// The same of the time that could be hidden; `None` if none could.
    pub fn share_of_hideable(&self) -> Option<f64> {
        (self.hideable > 0.0).then(|| self.hidden / self.hideable)
    }

    pub(super) fn plus(self, more: Overlap) -> Overlap {
        Overlap {
            seconds: self.seconds + more.seconds,
            hidden: self.hidden + more.hidden,
            hideable: self.hideable + more.hideable,
        }
    }

    /// A step of one rank, whose last gradient was ready at `last`. `waits` are the times in which the rank waited for other
    /// ranks instead of computing, none within another.
    pub(super) fn of_step(sums: &[Sum], last: f64, waits: &[[f64; 2]]) -> Overlap {
        let mut overlap = Overlap::default();
        // When the sum before would have ended, had each begun as early as possible.
        let mut free = f64::NEG_INFINITY;
        for &Sum { ready, began, ended } in sums {
            let seconds = (ended - began).max(0.0);
            let computing = before([began, ended], last);
            let waited: f64 = waits.iter().map(|&[from, to]| before([from.max(began), to.min(ended)], last)).sum();
            let earliest = ready.max(free);
            free = earliest + seconds;
            overlap = overlap.plus(Overlap {
                seconds,
                hidden: (computing - waited).max(0.0),
                hideable: before([earliest, free], last),
            });
        }
        overlap
    }
}

/// The length of an interval as far as it lies before `end`.
fn before([from, to]: [f64; 2], end: f64) -> f64 {
    (to.min(end) - from).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_hide_until_the_last_gradient_is_ready() {
        // Each sum: ready, began, ended.
        let check = |sums: &[[f64; 3]], last: f64, waits: &[[f64; 2]], expected: [f64; 3]| {
            let sums: Vec<Sum> = sums.iter().map(|&[ready, began, ended]| Sum { ready, began, ended }).collect();
            let Overlap { seconds, hidden, hideable } = Overlap::of_step(&sums, last, waits);
            assert_eq!([seconds, hidden, hideable], expected, "{sums:?}, last {last}, waits {waits:?}");
        };
        check(&[], 0.0, &[], [0.0; 3]);
        // The only one begins with the last gradient.
        check(&[[4.0, 4.0, 9.0]], 4.0, &[[4.0, 9.0]], [5.0, 0.0, 0.0]);
        // Hidden as well as can be: the first in whole, the second in part, the third not at all.
        let all = [[1.0, 1.0, 3.0], [2.0, 3.0, 7.0], [6.0, 7.0, 8.0]];
        check(&all, 6.0, &[[6.0, 8.0]], [7.0, 5.0, 5.0]);
        // The first began late, so less was left for the second.
        check(&[[1.0, 4.0, 6.0], [2.0, 6.0, 8.0]], 6.0, &[[6.0, 8.0]], [4.0, 2.0, 4.0]);
        // Another rank came late: only then could it begin.
        check(&[[5.0, 5.0, 7.0], [6.0, 7.0, 8.0]], 6.0, &[], [3.0, 1.0, 1.0]);
        // While the rank waits for something else, it computes nothing.
        check(&[[1.0, 1.0, 5.0], [9.0, 9.0, 10.0]], 9.0, &[[0.0, 2.0], [4.0, 6.0], [9.0, 10.0]], [5.0, 2.0, 4.0]);
        // Clocks that differ a little more than the sum takes.
        check(&[[1.0, 1.5, 1.4], [2.0, 2.0, 3.0]], 2.0, &[[2.0, 3.0]], [1.0, 0.0, 0.0]);
    }

    #[test]
    fn shares() {
        let check = |seconds: f64, hidden: f64, hideable: f64, expected: (Option<f64>, Option<f64>)| {
            let overlap = Overlap { seconds, hidden, hideable };
            assert_eq!((overlap.share(), overlap.share_of_hideable()), expected);
        };
        check(0.0, 0.0, 0.0, (None, None));
        check(8.0, 0.0, 0.0, (Some(0.0), None));
        check(8.0, 2.0, 4.0, (Some(0.25), Some(0.5)));
    }
}
