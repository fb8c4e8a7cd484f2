//! Writes the pictures of the tests for `tests/fixtures/pillow.py`.
//!
//! `cargo run -p enmasse-jpeg --example pictures -- DIR`

#[path = "../tests/suite/pictures.rs"]
mod pictures;

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    for number in 0..pictures::NUMBER {
        std::fs::write(format!("{folder}/{number:03}.jpg"), pictures::Coding::of(number).encode())?;
    }
    Ok(())
}
