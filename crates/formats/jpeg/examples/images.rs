//! Writes the images of the tests for `tests/fixtures/pillow.py`.
//!
//! `cargo run -p enmasse-jpeg --example images -- DIR`

#[path = "../tests/suite/images.rs"]
mod images;

use images::{Coding, NUMBER, NUMBER_DAMAGED, damaged};

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    (0..NUMBER)
        .try_for_each(|number| std::fs::write(format!("{folder}/{number:03}.jpg"), Coding::of(number).encode()))?;
    (0..NUMBER_DAMAGED)
        .try_for_each(|number| std::fs::write(format!("{folder}/damaged-{number:03}.jpg"), damaged(number)))
}
