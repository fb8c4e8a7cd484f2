//! Choices of blocks: the least work of all within a budget.

use super::*;
use crate::{CompileOptions, Conv, Pool, Tensor, compile};

/// The choice with the least work by trying all.
fn by_trying(estimate: &Estimate, peak: usize) -> Option<u64> {
    let count = estimate.bytes.len();
    let choices = (0..1_usize << count).map(|bits| (0..count).map(|block| bits >> block & 1 == 1).collect::<Vec<_>>());
    choices.filter(|chosen| estimate.peak(chosen) <= peak).map(|chosen| estimate.work_of(&chosen)).min()
}

#[test]
fn a_choice_has_the_least_work_of_all() {
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..200 {
        let count = 1 + random(8) as usize;
        // At most as many bytes as levels, so that nothing is rounded.
        let bytes: Vec<usize> = (0..count).map(|_| random(100) as usize).collect();
        let work = (0..count).map(|_| 1 + random(50)).collect();
        let mut sum = 0;
        let mut peaks = vec![random(200) as usize];
        for bytes in &bytes {
            sum += bytes;
            peaks.push(sum + random(200) as usize);
        }
        let estimate = Estimate { bytes, work, peaks };
        let most = estimate.peak(&vec![false; count]);
        for peak in [0, most / 4, most / 2, most * 3 / 4, most] {
            // The stem takes what it takes.
            let Some(expected) = by_trying(&estimate, peak) else { continue };
            let found = estimate.choice(peak).unwrap_or_else(|| panic!("{estimate:?} within {peak}"));
            assert!(estimate.peak(&found) <= peak, "{estimate:?} within {peak}: {found:?}");
            assert_eq!(estimate.work_of(&found), expected, "{estimate:?} within {peak}: {found:?}");
        }
        let choices = estimate.choices();
        assert!(choices.is_sorted_by_key(|(chosen, _)| estimate.work_of(chosen)));
        assert_eq!(choices.last().map(|(chosen, _)| chosen.contains(&false)), Some(false));
    }
}

fn blocks(x: Tensor) -> Tensor {
    let mut x = x.conv2d("stem", Conv::new(8, 3).padding(1)).relu().checkpoint();
    for name in ["a", "b", "c", "d"] {
        let conv = |x: Tensor, part: &str, width| x.conv2d(&format!("{name}.{part}"), Conv::new(width, 3).padding(1));
        let y = conv(conv(x.clone(), "conv1", 16).relu(), "conv2", 8);
        x = (y + x).relu().checkpoint();
    }
    x.adaptive_avg_pool([1, 1]).flatten().linear("fc", 5)
}

/// Without marks.
fn pools(mut x: Tensor) -> Tensor {
    for (name, width) in [("a", 8), ("b", 16), ("c", 24)] {
        x = x.conv2d(&format!("{name}.conv1"), Conv::new(width, 3).padding(1)).relu();
        x = x.conv2d(&format!("{name}.conv2"), Conv::new(width, 3).padding(1)).relu().max_pool(Pool::new(2));
    }
    x.flatten().linear("fc", 5)
}

fn plans(model: fn(Tensor) -> Tensor, recompute: Recompute) -> Result<Plans, GraphError> {
    compile(&model, &CompileOptions { recompute, ..CompileOptions::new("net", 8, 32, 5) })
}

fn recomputed(plans: &Plans) -> &Recomputed {
    plans.train.as_ref().and_then(|plan| plan.recomputed.as_ref()).unwrap()
}

#[test]
fn budgets_are_met_and_a_larger_one_computes_no_more() {
    // Of the net with pools the first block takes most.
    for (model, count, different) in [(blocks as fn(Tensor) -> Tensor, 4, 4), (pools, 3, 2)] {
        let whole = plans(model, Recompute::Nothing).unwrap().bytes();
        let least = plans(model, Recompute::All).unwrap();
        let Recomputed { layers, blocks, bytes, flops } = recomputed(&least);
        assert_eq!((layers.len(), *blocks, *bytes), (count, count, [whole, least.bytes()]));
        assert!(flops[1] > flops[0] && bytes[1] < bytes[0], "{least:?}");
        let mut before = u64::MAX;
        let mut choices = BTreeSet::new();
        for part in 0..=20 {
            let budget = least.bytes() + (whole - least.bytes()) * part / 20;
            let plans = plans(model, Recompute::Within(budget)).unwrap();
            let found = recomputed(&plans);
            assert!(plans.bytes() <= budget, "{} of {budget}", plans.bytes());
            assert!(found.flops[1] <= before, "{found}: {before} before");
            before = found.flops[1];
            choices.insert(found.layers.clone());
        }
        // With the whole budget nothing is computed again.
        assert!(choices.contains(&Vec::new()) && choices.len() >= different, "{choices:?}");
    }
}

#[test]
fn a_share_is_of_the_plans_without() {
    let whole = plans(blocks, Recompute::Nothing).unwrap().bytes();
    let of = |recompute| plans(blocks, recompute).unwrap().train.unwrap().to_string();
    assert_eq!(of(Recompute::Share(0.8)), of(Recompute::Within((whole as f64 * 0.8) as usize)));
    let text = of(Recompute::Share(0.8));
    let line = text.lines().find(|line| line.starts_with("recompute ")).unwrap();
    assert!(line.contains(" of 4 blocks, ") && line.contains(".conv1"), "{line}");
}

#[test]
fn a_budget_that_cannot_be_met_names_the_least() {
    let check = |model: fn(Tensor) -> Tensor| {
        let error = plans(model, Recompute::Within(1 << 10)).map(|_| ()).unwrap_err().to_string();
        let (_, rest) = error.split_once("less than ").unwrap();
        let (least, _) = rest.split_once(" KiB").unwrap();
        let budget = least.parse::<usize>().unwrap() << 10;
        assert!(plans(model, Recompute::Within(budget)).unwrap().bytes() <= budget, "{error}");
        assert!(error.starts_with("`recompute` within 1 KiB: no choice of blocks"), "{error}");
    };
    check(blocks);
    check(pools);
    // No blocks at all.
    check(|x| x.flatten().linear("fc", 5));
}
