//! Heatmaps compared with those of the package grad-cam, and attention rollouts with products of matrices (`fixtures/heatmaps.py`).

use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::Device;
use enmasse_graph::HeatmapMethod;
use enmasse_reference::Reference;
use safetensors::SafeTensors;

use super::case::CASES;

/// Checks every heatmap of the fixture. `limit` is that of the largest error by the largest number of the map.
fn check(device: &dyn Device, limit: f64) {
    let bytes = include_bytes!("../../../../../../fixtures/heatmaps.safetensors");
    let fixture = SafeTensors::deserialize(bytes).unwrap();
    assert!(fixture.len() > 12);
    for (name, tensor) in fixture.tensors() {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        let (method, found) = case.heatmaps(device);
        let is_rollout = name.starts_with("vit");
        assert_eq!(method == HeatmapMethod::AttentionRollout, is_rollout, "{name}");
        let expected: Vec<f64> =
            tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect();
        assert_eq!(found.len(), expected.len(), "{name}");
        let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let error = found.iter().zip(&expected).fold(0.0, |error: f64, (a, b)| error.max((a - b).abs())) / largest;
        println!("{name} on {}: error {error:.1e}, correlation {:.9}", device.name(), correlation(&found, &expected));
        assert!(error <= limit, "{name} on {}: error {error:.1e} above {limit:.0e}", device.name());
        assert!(correlation(&found, &expected) >= 0.99, "{name}");
    }
}

/// Pearson's correlation.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (of_a, of_b) = (mean(a), mean(b));
    let sum = |f: fn(f64, f64) -> f64| a.iter().zip(b).map(|(a, b)| f(a - of_a, b - of_b)).sum::<f64>();
    sum(|a, b| a * b) / (sum(|a, _| a * a) * sum(|_, b| b * b)).sqrt()
}

#[test]
fn heatmaps_on_the_reference() {
    // Both sides compute in f64; the fixture holds f32.
    check(&Reference, 1e-6);
}

#[test]
fn heatmaps_on_the_cpu() {
    for exact in [true, false] {
        check(&Cpu::new(CpuOptions { threads: 2, exact, ..CpuOptions::default() }).unwrap(), 1e-4);
    }
}
