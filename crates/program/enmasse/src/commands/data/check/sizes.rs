//! The sizes of images in words: the extremes, and how many have a shorter side of which length.

use std::collections::BTreeMap;

use enmasse_wording::grouped;
use serde_json::{Value, json};

/// The sizes of some images.
pub struct Sizes {
    /// By number of pixels.
    smallest: (usize, usize),
    largest: (usize, usize),
    /// Images whose shorter side has this power of two, and not the next one.
    shorter: BTreeMap<usize, usize>,
}

impl Sizes {
    /// Of these widths and heights.
    pub fn of(sizes: impl Iterator<Item = (usize, usize)> + Clone) -> Self {
        let area = |&(width, height): &(usize, usize)| width * height;
        let mut shorter = BTreeMap::new();
        for (width, height) in sizes.clone() {
            *shorter.entry(1 << width.min(height).max(1).ilog2()).or_default() += 1;
        }
        let smallest = sizes.clone().min_by_key(area);
        let largest = sizes.max_by_key(area);
        Sizes { smallest: smallest.unwrap_or_default(), largest: largest.unwrap_or_default(), shorter }
    }

    /// `145x240 to 500x442; shorter side 128 to 255: 488, 256 to 511: 512`.
    pub fn in_words(&self) -> String {
        let (width, height) = self.smallest;
        let (most_width, most_height) = self.largest;
        if self.smallest == self.largest {
            return format!("{width}x{height}");
        }
        let ranges = self.shorter.iter().map(|(&from, &count)| match from {
            1 => format!("1: {}", grouped(count as u64)),
            _ => format!("{from} to {}: {}", 2 * from - 1, grouped(count as u64)),
        });
        let ranges = ranges.collect::<Vec<_>>().join(", ");
        format!("{width}x{height} to {most_width}x{most_height}; shorter side {ranges}")
    }

    pub fn to_json(&self) -> Value {
        json!({ "smallest": self.smallest, "largest": self.largest, "shorter_side": self.shorter.iter().collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_and_ranges() {
        let check = |sizes: &[(usize, usize)], expected: &str| {
            assert_eq!(Sizes::of(sizes.iter().copied()).in_words(), expected)
        };
        check(&[(32, 32), (32, 32)], "32x32");
        check(
            &[(1, 9), (100, 300), (127, 128), (128, 500)],
            "1x9 to 128x500; shorter side 1: 1, 64 to 127: 2, 128 to 255: 1",
        );
        check(&[], "0x0");
    }
}
