//! How sure an accuracy is.

/// The share of resamples below the interval, and above it.
const TAIL: f64 = 0.025;
/// Chances smaller than this, relative to the greatest, do not count.
const NEGLIGIBLE: f64 = 1e-20;

/// The 95 % interval of an accuracy by the percentile bootstrap: it draws the same number of images again, and 95 % of such draws
/// have an accuracy in it. `None` without images.
///
/// How many images of a draw are right has a binomial distribution, so this takes its quantiles, which 1000 draws would only
/// estimate. Where all images are right every draw is the same. Then the lower end is the accuracy of which so many right images in a row
/// have a chance of 2.5 %, as by Clopper and Pearson; and so is the upper end where none is right.
pub fn accuracy_interval(correct: u64, samples: u64) -> Option<[f64; 2]> {
    if samples == 0 || correct > samples {
        return None;
    }
    let all = samples as f64;
    let of_one_kind = TAIL.powf(1.0 / all);
    if correct == samples {
        return Some([of_one_kind, 1.0]);
    }
    if correct == 0 {
        return Some([0.0, 1.0 - of_one_kind]);
    }
    // The chances of `correct` right images, of more and of fewer, relative to the first, which is the greatest.
    let odds = correct as f64 / (samples - correct) as f64;
    let upwards = |&(right, chance): &(u64, f64)| {
        let next = chance * odds * (samples - right) as f64 / (right + 1) as f64;
        (right < samples && next > NEGLIGIBLE).then_some((right + 1, next))
    };
    let downwards = |&(right, chance): &(u64, f64)| {
        let next = chance / odds * right as f64 / (samples - right + 1) as f64;
        (right > 0 && next > NEGLIGIBLE).then(|| (right - 1, next))
    };
    let more: Vec<(u64, f64)> = std::iter::successors(Some((correct, 1.0)), upwards).skip(1).collect();
    let mut chances: Vec<(u64, f64)> = std::iter::successors(Some((correct, 1.0)), downwards).collect();
    chances.reverse();
    chances.extend(more);
    let total: f64 = chances.iter().map(|(_, chance)| chance).sum();
    let quantile = |share: f64| {
        let mut below = 0.0;
        let found = chances.iter().find(|(_, chance)| {
            below += chance;
            below >= share * total
        });
        found.map_or(correct, |(right, _)| *right) as f64 / all
    };
    Some([quantile(TAIL), quantile(1.0 - TAIL)])
}
