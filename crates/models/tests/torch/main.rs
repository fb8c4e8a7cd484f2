//! Whole training steps against PyTorch: logits, loss, every gradient, and what three steps leave behind.
//!
//! `fixtures/make.py` made the other side and says what is in it. The errors are printed with `--nocapture`.

mod case;
mod fixture;
mod formula;

use std::collections::BTreeMap;

use enmasse_cpu::{Cpu, CpuOptions, Isa};
use enmasse_device::Device;
use enmasse_reference::Reference;

use case::{CASES, Case};
use fixture::Fixture;

/// Runs a case on a device and compares everything; `floor` is the limit of the error per tensor.
fn check(device: &dyn Device, case: &Case, shards: usize, floor: f64, twice_torch: bool) {
    let label = format!("{} on {}, shards {shards}", case.name, device.name());
    let errors = Fixture::read(case.name).errors(&case.run(device, shards), floor, twice_torch);
    let mut worst: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, error, _) in &errors {
        let kind = name.split_once('.').map_or(name.as_str(), |(kind, _)| kind);
        let worst = worst.entry(kind).or_default();
        *worst = worst.max(*error);
    }
    let worst: Vec<String> = worst.iter().map(|(kind, error)| format!("{kind} {error:.1e}")).collect();
    println!("{label}: largest errors: {}", worst.join(", "));
    let failures: Vec<String> = (errors.iter().filter(|(_, error, limit)| error.is_nan() || error > limit))
        .map(|(name, error, limit)| format!("{name}: error {error:.2e} above {limit:.2e}"))
        .collect();
    assert!(failures.is_empty(), "{label}:\n{}", failures.join("\n"));
}

#[test]
fn reference() {
    // Both sides compute in f64; what differs is that the files hold f32, whose rounding is up to 6e-8.
    CASES.iter().for_each(|case| check(&Reference, case, 1, 1e-7, false));
}

#[test]
fn reference_in_shards() {
    // With common statistics, shards of a batch are the batch: the same fixtures hold.
    for case in &CASES {
        for shards in (2..=case.batch).filter(|shards| case.batch.is_multiple_of(*shards)) {
            check(&Reference, case, shards, 1e-7, false);
        }
    }
}

#[test]
fn cpu_at_every_level() {
    for isa in Isa::ALL {
        if !isa.available() {
            println!("skipped: this machine has no {isa}");
            continue;
        }
        // Direct sums, and Winograd, whose rounding is about twice as large.
        for (exact, floor) in [(true, 1e-4), (false, 2e-4)] {
            let cpu = Cpu::new(CpuOptions { threads: 2, isa: Some(isa), exact, ..CpuOptions::default() }).unwrap();
            CASES.iter().for_each(|case| check(&cpu, case, 1, floor, true));
        }
    }
}
