//! Tests of heatmaps over images.

use super::*;

/// What the package grad-cam makes of a map (`fixtures/heatmaps.py`).
#[test]
fn a_map_becomes_what_grad_cam_makes_of_it() {
    let fixture: serde_json::Value =
        serde_json::from_str(include_str!("../../../../fixtures/heatmap_scaled.json")).unwrap();
    let numbers = |name: &str| -> Vec<f64> {
        fixture[name].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let sides = |name: &str| <[f64; 2]>::try_from(numbers(name)).unwrap().map(|side| side as usize);
    let found = scaled(&numbers("sums"), sides("grid"), sides("size"));
    let expected = numbers("heatmap");
    assert_eq!(found.len(), expected.len());
    // The fixture has six digits of f32 numbers.
    for (found, expected) in found.iter().zip(&expected) {
        assert!((f64::from(*found) - expected).abs() < 2e-6, "{found} {expected}");
    }
}

#[test]
fn what_speaks_for_nothing_is_0() {
    assert_eq!(scaled(&[-1.0, -2.0], [1, 2], [2, 3]), [0.0; 6]);
    assert_eq!(scaled(&[3.0], [1, 1], [1, 2]), [0.0; 2]);
    // A map that is larger than the image.
    assert_eq!(scaled(&[0.0, 9.0, 9.0], [1, 3], [1, 1]), [0.0]);
}
