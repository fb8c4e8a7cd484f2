//! Writes the images of the tests for `tests/fixtures/pillow.py`.
//!
//! `cargo run -p enmasse-jpeg --example images -- DIR`

#[path = "../tests/suite/images.rs"]
mod images;

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    for number in 0..images::NUMBER {
        std::fs::write(format!("{folder}/{number:03}.jpg"), images::Coding::of(number).encode())?;
    }
    Ok(())
}
