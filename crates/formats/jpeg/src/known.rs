//! What the scans of a progressive image have told of a component's coefficients.

use crate::scan::Scan;

/// How many of the lowest bits are missing of the first coefficients, for which libjpeg makes up: all if the number is below 0.
#[derive(Clone, Copy)]
pub(crate) struct Known(pub [i8; Self::WATCHED]);

impl Known {
    /// Number of these coefficients.
    pub const WATCHED: usize = 10;

    /// Before the first scan.
    pub const NOTHING: Known = Known([-1; Self::WATCHED]);

    /// After the last one.
    pub const ALL: Known = Known([0; Self::WATCHED]);

    /// Notes what a scan tells.
    pub fn learn(&mut self, scan: &Scan) {
        let watched = scan.first.min(Self::WATCHED)..(scan.last + 1).min(Self::WATCHED);
        self.0[watched].fill(scan.low as i8);
    }

    /// Whether a scan has had first coefficients.
    pub fn has_begun(&self) -> bool {
        self.0[0] >= 0
    }

    /// Whether there is nothing to make up for. The first coefficient does not count.
    pub fn is_complete(&self) -> bool {
        self.has_begun() && self.0[1..].iter().all(|&missing| missing == 0)
    }
}
