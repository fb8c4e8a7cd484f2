//! Which samples with labels or numbers are for validation, so that both parts have about the same shares of each.

use std::collections::BTreeSet;

use enmasse_tensor::RandomStream;

use crate::targets::Targets;

/// Ranges of numbers with as many samples each, of which the same share validates.
const BINS: usize = 10;

/// Marks a share of the samples for validation. The same seed, names and targets mark the same ones.
pub(crate) fn held_out(targets: &Targets, names: &[String], split_seed: u64, fraction: f64) -> Vec<bool> {
    match targets {
        Targets::Labels { .. } => by_labels(targets, names, split_seed, fraction),
        Targets::Numbers { .. } => by_numbers(targets, split_seed, fraction),
    }
}

/// Iterative stratification (Sechidis, Tsoumakas and Vlahavas, 2011): the samples of the rarest label are distributed first, each
/// to the part that lacks most of this label, then those of the rarest label among the others. The order of a label's samples is
/// drawn.
fn by_labels(targets: &Targets, names: &[String], split_seed: u64, fraction: f64) -> Vec<bool> {
    let samples = targets.len();
    let mut of_label = vec![Vec::new(); names.len()];
    for sample in 0..samples {
        targets.labels_of(sample).iter().for_each(|&label| of_label[label as usize].push(sample));
    }
    let share = |count: usize| [count as f64 * (1.0 - fraction), count as f64 * fraction];
    // What training and validation lack, of each label and in all.
    let mut lacking: Vec<[f64; 2]> = of_label.iter().map(|own| share(own.len())).collect();
    let mut lacking_in_all = share(samples);
    let mut left: Vec<usize> = of_label.iter().map(Vec::len).collect();
    let mut rarest: BTreeSet<(usize, usize)> =
        (0..).zip(&left).filter(|(_, left)| **left > 0).map(|(label, left)| (*left, label)).collect();
    let mut part: Vec<Option<bool>> = vec![None; samples];
    while let Some((_, label)) = rarest.pop_first() {
        let own: Vec<usize> = of_label[label].iter().copied().filter(|&sample| part[sample].is_none()).collect();
        let order = RandomStream::new(split_seed, &format!("split {}", names[label]), 0, 0).permutation(own.len());
        for sample in order.into_iter().map(|place| own[place as usize]) {
            let validates = lacks_more(lacking[label], lacking_in_all);
            part[sample] = Some(validates);
            lacking_in_all[usize::from(validates)] -= 1.0;
            for other in targets.labels_of(sample).iter().map(|&label| label as usize) {
                lacking[other][usize::from(validates)] -= 1.0;
                if rarest.remove(&(left[other], other)) && left[other] > 1 {
                    rarest.insert((left[other] - 1, other));
                }
                left[other] -= 1;
            }
        }
    }
    // Those without labels make up the numbers.
    let rest: Vec<usize> = (0..samples).filter(|&sample| part[sample].is_none()).collect();
    let order = RandomStream::new(split_seed, "split of samples without labels", 0, 0).permutation(rest.len());
    for sample in order.into_iter().map(|place| rest[place as usize]) {
        let validates = lacks_more(lacking_in_all, lacking_in_all);
        part[sample] = Some(validates);
        lacking_in_all[usize::from(validates)] -= 1.0;
    }
    part.into_iter().map(|part| part == Some(true)).collect()
}

/// Whether validation lacks more of a label than training, or as much of it and more in all.
fn lacks_more([train, validation]: [f64; 2], [all_train, all_validation]: [f64; 2]) -> bool {
    // Sums of shares differ in their last bits only.
    let differs = (train - validation).abs() > 1e-6;
    if differs { validation > train } else { all_validation > all_train + 1e-6 }
}

/// The same share of each tenth of the samples, in the order of their first number.
fn by_numbers(targets: &Targets, split_seed: u64, fraction: f64) -> Vec<bool> {
    let samples = targets.len();
    let mut order: Vec<usize> = (0..samples).collect();
    let first = |sample: usize| targets.numbers_of(sample).first().copied().unwrap_or_default();
    order.sort_by(|&one, &other| first(one).total_cmp(&first(other)));
    let mut held = vec![false; samples];
    // Up to the end of each range the share is as exact as whole samples can be.
    let held_before = |end: usize| (end as f64 * fraction) as usize;
    for bin in 0..BINS {
        let start = bin * samples / BINS;
        let end = (bin + 1) * samples / BINS;
        let drawn = RandomStream::new(split_seed, &format!("split range {bin}"), 0, 0).permutation(end - start);
        let count = held_before(end) - held_before(start);
        drawn.into_iter().take(count).for_each(|place| held[order[start + place as usize]] = true);
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|label| format!("label {label}")).collect()
    }

    /// Samples with labels of very different frequencies, and many with none.
    fn labelled(samples: usize) -> Targets {
        let mut targets = Targets::labels(6);
        for sample in 0..samples {
            let every = [2, 3, 7, 20, 50, 101];
            targets.push_labels((0..6).filter(|&label| sample % every[label as usize] == 1));
        }
        targets
    }

    #[test]
    fn each_label_has_its_share() {
        for (samples, fraction, seed) in [(1000, 0.2, 0), (1000, 0.1, 1), (303, 0.25, 2), (40, 0.5, 3)] {
            let targets = labelled(samples);
            let held = held_out(&targets, &names(6), seed, fraction);
            assert_eq!(held, held_out(&targets, &names(6), seed, fraction));
            let count = |keep: &dyn Fn(usize) -> bool| (0..samples).filter(|&sample| keep(sample)).count() as f64;
            let check = |of: f64, validating: f64, what: &str| {
                assert!((validating - of * fraction).abs() <= 1.5, "{what}: {validating} of {of} at {fraction}");
            };
            check(samples as f64, count(&|sample| held[sample]), "all");
            for label in 0..6 {
                let has = |sample: usize| targets.labels_of(sample).contains(&label);
                check(count(&has), count(&|sample| has(sample) && held[sample]), "a label");
            }
        }
        assert_ne!(held_out(&labelled(500), &names(6), 0, 0.2), held_out(&labelled(500), &names(6), 1, 0.2));
    }

    #[test]
    fn a_single_sample_of_a_label_is_for_training() {
        let mut targets = Targets::labels(2);
        (0..20).for_each(|sample| targets.push_labels((0..2).filter(|&label| label == 0 || sample == 7)));
        for seed in 0..20 {
            let held = held_out(&targets, &names(2), seed, 0.2);
            assert!(!held[7]);
            assert_eq!(held.iter().filter(|held| **held).count(), 4);
        }
    }

    #[test]
    fn each_range_of_numbers_has_its_share() {
        for (samples, fraction) in [(1000, 0.2), (57, 0.2), (8, 0.25), (5, 0.2), (3, 0.2), (100, 0.0)] {
            let mut targets = Targets::numbers(1);
            // All orders of values, and equal ones.
            (0..samples).for_each(|sample| targets.push_numbers(&[(sample * 37 % 50) as f32]));
            let held = held_out(&targets, &names(1), 0, fraction);
            assert_eq!(held.iter().filter(|held| **held).count(), (samples as f64 * fraction) as usize);
            let mut values: Vec<(f32, bool)> =
                (0..samples).map(|sample| (targets.numbers_of(sample)[0], held[sample])).collect();
            values.sort_by(|one, other| one.0.total_cmp(&other.0));
            // The sorting is stable, as that of the draw.
            for (bin, own) in values.chunks(samples.div_ceil(BINS)).enumerate().filter(|_| samples == 1000) {
                assert_eq!(own.iter().filter(|(_, held)| *held).count(), 20, "{bin}");
            }
        }
    }
}
