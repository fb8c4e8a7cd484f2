//! Measures how fast the JPEG files of a folder are decoded: as a whole, and in the middle quarter.
//!
//! `cargo run --release -p enmasse-jpeg --example speed -- DIR [ROUNDS]`

use std::path::Path;
use std::time::Instant;
use std::{env, fs, io};

use enmasse_jpeg::{Decoder, Jpeg, Region, Scale};

fn read(folder: &Path, files: &mut Vec<Vec<u8>>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => read(&path, files)?,
            false => files.push(fs::read(path)?),
        }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let folder = arguments.first().map_or(".", String::as_str);
    let rounds: usize = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let mut files = Vec::new();
    read(Path::new(folder), &mut files)?;
    let (mut decoder, mut pixels) = (Decoder::new(), Vec::new());
    let images: Vec<Jpeg> = files.iter().filter_map(|bytes| Jpeg::parse(bytes).ok()).collect();
    for parts in [1, 2] {
        let (mut best, mut failed) = (f64::INFINITY, 0);
        for _ in 0..rounds {
            let began = Instant::now();
            for jpeg in &images {
                let (width, height) = (jpeg.width() / parts, jpeg.height() / parts);
                let (left, top) = ((jpeg.width() - width) / 2, (jpeg.height() - height) / 2);
                pixels.resize(width * height * 3, 0);
                let region = Region { left, top, width, height };
                failed += usize::from(decoder.decode(jpeg, region, Scale::Full, &mut pixels).is_err());
            }
            best = best.min(began.elapsed().as_secs_f64() * 1e3 / images.len() as f64);
        }
        println!("1/{parts} of each side: {best:.4} ms an image, {failed} errors");
    }
    Ok(())
}
