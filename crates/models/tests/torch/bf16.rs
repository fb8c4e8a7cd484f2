//! Steps that store maps in bf16: as close to the exact result as PyTorch's under autocast, tensor by tensor.
//!
//! The test compares typical errors, geometric means over many seeds; `fixtures/make.py`, which measured PyTorch's,
//! says why. All tensors have the same limit, including the loss and biases of six elements: over so many seeds the
//! ratio varies little. No error counts as smaller than the last bits of f32. There is no other tolerance.

use std::collections::BTreeMap;
use std::path::Path;

use enmasse_device::Device;
use enmasse_graph::Precision;
use enmasse_reference::Reference;

use crate::case::Case;

/// As in `fixtures/make.py`.
const SEEDS: u64 = 32;

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
    let mut found = vec![Logarithms::new(); candidates.len()];
    for seed in 0..SEEDS {
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
    let failures =
        candidates.iter().zip(&found).flat_map(|(candidate, sums)| compare(case.name, candidate, sums, &torch));
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

/// The errors above the limit.
fn compare(case: &str, candidate: &Candidate, sums: &Logarithms, torch: &BTreeMap<String, f64>) -> Vec<String> {
    let label = format!("{case} on {} in bf16", candidate.name);
    assert!(sums.keys().eq(torch.keys()), "{label}: other tensors than PyTorch's");
    let mut ratios: Vec<(f64, &str)> = (sums.iter().zip(torch.values()))
        .map(|((name, sum), torch)| ((sum / SEEDS as f64).exp() / torch, name.as_str()))
        .collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (median, (worst, name)) = (ratios[ratios.len() / 2].0, ratios[ratios.len() - 1]);
    println!("{label}: errors relative to PyTorch's: median {median:.2}, largest {worst:.2} of {name}");
    (ratios.iter().filter(|(ratio, _)| ratio.is_nan() || *ratio > candidate.limit))
        .map(|(ratio, name)| {
            format!("{label}: {name} {ratio:.2} times as far off as PyTorch, limit {}", candidate.limit)
        })
        .collect()
}

/// PyTorch's typical errors in a case, by tensor.
fn read(case: &str) -> BTreeMap<String, f64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/bf16.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let entries = text.lines().skip_while(|line| *line != case).skip(1).map_while(|line| line.strip_prefix(' '));
    let entry = |entry: &str| {
        let mut words = entry.split(' ');
        let (name, error) = (words.next().unwrap(), words.next().unwrap());
        (name.to_string(), error.parse().unwrap())
    };
    entries.map(entry).collect()
}
