//! One fixture file: PyTorch's results in f64, and the error of its own f32 run.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;

use super::formula::sketch;

/// The results of a run, by the names documented in `fixtures/make.py`.
pub type Results = BTreeMap<String, Vec<f64>>;

/// The fixture of one case.
pub struct Fixture(BTreeMap<String, Entry>);

struct Entry {
    sketch: Vec<f64>,
    denominator: f64,
    torch_error: f64,
}

impl Fixture {
    /// Reads `fixtures/CASE.safetensors`.
    pub fn read(case: &str) -> Fixture {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures").join(format!("{case}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let notes = header.metadata().as_ref().unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let entry = |name: &str| {
            let floats = tensors.tensor(name).unwrap().data().chunks_exact(4);
            let sketch = floats.map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
            let (denominator, torch_error) = notes[name].split_once(' ').unwrap();
            Entry { sketch, denominator: denominator.parse().unwrap(), torch_error: torch_error.parse().unwrap() }
        };
        Fixture(tensors.names().into_iter().map(|name| (name.to_string(), entry(name))).collect())
    }

    /// The error of each result, with its limit: `floor`, or twice PyTorch's error if that is larger and `twice_torch`
    /// is set (ten times for values far smaller than others of their kind). Panics unless the results are exactly the
    /// fixture's.
    pub fn errors(&self, results: &Results, floor: f64, twice_torch: bool) -> Vec<(String, f64, f64)> {
        let names = |missing: &dyn Fn(&&String) -> bool| self.0.keys().chain(results.keys()).find(missing).cloned();
        let unmatched = names(&|name| self.0.contains_key(*name) != results.contains_key(*name));
        assert_eq!(unmatched, None, "only in the fixture or only in the results");
        let error = |(name, entry): (&String, &Entry)| {
            let found = sketch(&results[name]);
            assert_eq!(found.len(), entry.sketch.len(), "{name}");
            let square: f64 = found.iter().zip(&entry.sketch).map(|(a, b)| (a - b).powi(2)).sum();
            // A value far smaller than others of its kind, like the gradient of a bias before a batch norm, which is
            // zero, consists of rounding errors of larger values, on both sides.
            let norm = entry.sketch.iter().map(|value| value * value).sum::<f64>().sqrt();
            let factor = if norm < 0.5 * entry.denominator { 10.0 } else { 2.0 };
            let limit = if twice_torch { floor.max(factor * entry.torch_error) } else { floor };
            (name.clone(), square.sqrt() / entry.denominator, limit)
        };
        self.0.iter().map(error).collect()
    }
}
