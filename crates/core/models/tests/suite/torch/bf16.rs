//! Steps that store activations in bf16: as close to the exact result as PyTorch's under autocast, tensor by tensor.
//!
//! The test compares typical errors, geometric means over many seeds; `fixtures/make.py`, which measured PyTorch's,
//! says why. All tensors have the same limit, including the loss and biases of six elements: over so many seeds the
//! ratio varies little. No error counts as smaller than the last bits of f32. There is no other tolerance.
//!
//! All seeds take a minute. Where tests may not take long, a few seeds run, and only the median tensor
//! is held to the limit.

use std::collections::BTreeMap;
use std::path::Path;

use enmasse_device::Device;
use enmasse_graph::Precision;
use enmasse_reference::Reference;

use super::case::Case;

/// As in `fixtures/make.py`.
const SEEDS: u64 = 32;

/// Over so few seeds, errors of scalars vary by factors.
const SEEDS_OF_A_SHORT_RUN: u64 = 3;

/// Sums over seeds of the errors' logarithms, by tensor name.
type Logarithms = BTreeMap<String, f64>;

/// A device, and the limit of a tensor's error as a multiple of PyTorch's.
pub struct Candidate<'a> {
    /// The name in messages.
    pub name: String,
    pub device: &'a dyn Device,
    pub limit: f64,
}

/// Runs the first step of a case with bf16 plans on each device. No tensor's typical error may exceed the limit times
/// that of PyTorch under autocast; both errors are against f64.
pub fn check(case: &Case, candidates: &[Candidate]) {
    let all = test_support::time();
    let seeds = if all { SEEDS } else { SEEDS_OF_A_SHORT_RUN };
    let mut found = vec![Logarithms::new(); candidates.len()];
    for seed in 0..seeds {
        let case = Case { seed, precision: Precision::Bf16, ..case.clone() };
        let truth = case.run_step(&Reference);
        for (candidate, sums) in candidates.iter().zip(&mut found) {
            for (name, values) in case.run_step(candidate.device) {
                let logarithm = error(&values, &truth[&name]).ln();
                *sums.entry(name).or_default() += logarithm;
            }
        }
    }
    let torch = read(case.name);
    let failures = candidates.iter().zip(&found).flat_map(|(candidate, sums)| {
        let means = sums.iter().map(|(name, sum)| (name.as_str(), (sum / seeds as f64).exp()));
        compare(case.name, candidate, means.collect(), &torch, all)
    });
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// The norm of the difference, but at least the error of f32, and never zero.
fn error(values: &[f64], truth: &[f64]) -> f64 {
    let square: f64 = values.iter().zip(truth).map(|(a, b)| (a - b).powi(2)).sum();
    let norm = truth.iter().map(|b| b * b).sum::<f64>().sqrt();
    let (error, least) = (square.sqrt(), (1e-7 * norm).max(1e-30));
    // NaN stays NaN.
    if error < least { least } else { error }
}

/// The errors above the limit, of all tensors or of the median one.
fn compare(
    case: &str,
    candidate: &Candidate,
    means: BTreeMap<&str, f64>,
    torch: &BTreeMap<String, f64>,
    all: bool,
) -> Vec<String> {
    let label = format!("{case} on {} in bf16", candidate.name);
    assert!(means.keys().eq(torch.keys()), "{label}: other tensors than PyTorch's");
    let mut ratios: Vec<(f64, &str)> =
        (means.iter().zip(torch.values())).map(|((name, mean), torch)| (mean / torch, *name)).collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (median, (worst, name)) = (ratios[ratios.len() / 2], ratios[ratios.len() - 1]);
    println!("{label}: errors relative to PyTorch's: median {:.2}, largest {worst:.2} of {name}", median.0);
    let (compared, limit) = (if all { ratios } else { vec![median] }, candidate.limit);
    (compared.iter().filter(|(ratio, _)| ratio.is_nan() || *ratio > limit))
        .map(|(ratio, name)| format!("{label}: {name} {ratio:.2} times as far off as PyTorch, limit {limit}"))
        .collect()
}

/// PyTorch's typical errors in a case, by tensor.
fn read(case: &str) -> BTreeMap<String, f64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/bf16.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let entries = text.lines().skip_while(|line| *line != case).skip(1).map_while(|line| line.strip_prefix(' '));
    let entry = |entry: &str| {
        let mut words = entry.split(' ');
        let (name, error) = (words.next().unwrap(), words.next().unwrap());
        (name.to_string(), error.parse().unwrap())
    };
    entries.map(entry).collect()
}
