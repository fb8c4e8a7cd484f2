//! What a ranking by scores finds, threshold by threshold.

/// What has at least a certain score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    /// The lowest of the scores.
    pub threshold: f64,
    /// How many samples have such a score.
    pub predicted: u64,
    /// How many of them have the label.
    pub correct: u64,
}

/// What each distinct score finds as a threshold, from the highest one on. A score that is not a number is below all others.
pub(super) fn thresholds(scored: impl Iterator<Item = (f64, bool)>) -> Vec<Found> {
    let mut scored: Vec<(f64, bool)> = scored
        .map(|(score, is_present)| (if score.is_nan() { f64::NEG_INFINITY } else { score }, is_present))
        .collect();
    scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut all = Vec::<Found>::new();
    let (mut predicted, mut correct) = (0, 0);
    for (threshold, is_present) in scored {
        predicted += 1;
        correct += u64::from(is_present);
        let found = Found { threshold, predicted, correct };
        match all.last_mut() {
            // 0 and -0 are one score.
            Some(last) if last.threshold == threshold => *last = found,
            _ => all.push(found),
        }
    }
    all
}

/// The threshold of the highest F1 of `2 correct / (present + predicted)`; of equal ones the highest. `None` if no sample has the label.
pub(super) fn best_threshold(found: &[Found]) -> Option<f64> {
    let present = found.last().map_or(0, |all| all.correct);
    let mut best: Option<&Found> = None;
    for at in found {
        // Products of whole numbers: rounding decides nothing.
        let product = |a: &Found, b: &Found| u128::from(a.correct) * u128::from(present + b.predicted);
        if best.is_none_or(|best| product(at, best) > product(best, at)) {
            best = Some(at);
        }
    }
    best.filter(|_| present > 0).map(|best| best.threshold)
}
