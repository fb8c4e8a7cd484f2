//! Sizes of images that models take.

use enmasse_models::Model;

/// Pixels along each side of a model's patches; 1 if it has none.
pub fn patch(model: &Model) -> usize {
    let name = model.name();
    let rest = name.split_once("_patch").map(|(_, rest)| rest.split('_').next().unwrap_or_default());
    rest.map_or(1, |pixels| pixels.parse().unwrap())
}

/// A size that a model takes, next to another.
pub fn near(size: usize, model: &Model) -> usize {
    size.next_multiple_of(patch(model))
}
