//! Steps that store activations in bf16: as close to the exact result as PyTorch's under autocast, tensor by tensor.
//!
//! The test compares typical errors, geometric means over many seeds; `fixtures/make.py`, which measured PyTorch's,
//! says why. All tensors have the same limit, including biases of six elements: over so many seeds the ratio varies little. Only
//! that of a scalar, the loss, varies by factors. It is above the limit if it is so by more than two standard errors. No error
//! counts as smaller than the last bits of f32. There is no other tolerance.
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

/// The errors' logarithms of all seeds, by tensor name, and whether the tensor is a scalar.
type Logarithms = BTreeMap<String, (bool, Vec<f64>)>;

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
        for (candidate, logarithms) in candidates.iter().zip(&mut found) {
            for (name, values) in case.run_step(candidate.device) {
                let logarithm = error(&values, &truth[&name]).ln();
                let entry = logarithms.entry(name).or_insert((values.len() == 1, Vec::new()));
                entry.1.push(logarithm);
            }
        }
    }
    let torch = read(case.name);
    let failures = candidates
        .iter()
        .zip(&found)
        .flat_map(|(candidate, logarithms)| compare(case.name, candidate, logarithms, &torch, all));
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// The norm of the difference, but at least the error of f32, and never zero.
fn error(values: &[f64], truth: &[f64]) -> f64 {
    let square: f64 = values.iter().zip(truth).map(|(a, b)| (a - b).powi(2)).sum();
    let norm = truth.iter().map(|b| b * b).sum::<f64>().sqrt();
    let error = square.sqrt();
    let least = (1e-7 * norm).max(1e-30);
    // NaN stays NaN.
    if error < least { least } else { error }
}

/// A tensor's typical error as a multiple of PyTorch's.
struct Ratio<'a> {
    tensor: &'a str,
    value: f64,
    /// By which factor chance alone may change that of a scalar: two standard errors. PyTorch's error varies as ours. 1 for others.
    chance: f64,
}

impl<'a> Ratio<'a> {
    fn new(tensor: &'a str, (is_scalar, logarithms): &(bool, Vec<f64>), torch: f64) -> Self {
        let seeds = logarithms.len() as f64;
        let mean = logarithms.iter().sum::<f64>() / seeds;
        let variance = logarithms.iter().map(|logarithm| (logarithm - mean).powi(2)).sum::<f64>() / (seeds - 1.0);
        let errors = if *is_scalar { 2.0 } else { 0.0 };
        Ratio { tensor, value: mean.exp() / torch, chance: (errors * (2.0 * variance / seeds).sqrt()).exp() }
    }
}

/// The errors above the limit, of all tensors or of the median one.
fn compare(
    case: &str,
    candidate: &Candidate,
    logarithms: &Logarithms,
    torch: &BTreeMap<String, f64>,
    all: bool,
) -> Vec<String> {
    let label = format!("{case} on {} in bf16", candidate.name);
    assert!(logarithms.keys().eq(torch.keys()), "{label}: other tensors than PyTorch's");
    let tensors = logarithms.iter().zip(torch.values());
    let mut ratios: Vec<Ratio> = tensors.map(|((name, of), &torch)| Ratio::new(name, of, torch)).collect();
    ratios.sort_by(|a, b| a.value.total_cmp(&b.value));
    let middle = ratios.len() / 2;
    let median = ratios[middle].value;
    let worst = &ratios[ratios.len() - 1];
    println!(
        "{label}: errors relative to PyTorch's: median {median:.2}, largest {:.2} of {}, of which chance may be {:.2}",
        worst.value, worst.tensor, worst.chance
    );
    let compared = if all { &ratios[..] } else { &ratios[middle..=middle] };
    let limit = candidate.limit;
    let is_above = |ratio: &&Ratio| ratio.value.is_nan() || ratio.value > limit * if all { ratio.chance } else { 1.0 };
    let failure = |Ratio { tensor, value, chance }: &Ratio| {
        format!("{label}: {tensor} {value:.2} times as far off as PyTorch, limit {limit}, {chance:.2} for chance")
    };
    compared.iter().filter(is_above).map(failure).collect()
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
