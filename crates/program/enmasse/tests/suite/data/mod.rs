//! `enmasse data`: each command on small folders of images.

mod check;
mod fetch;
mod pack;
mod show;
mod split;
mod stats;
mod targets;

use std::fs::create_dir_all;
use std::path::{Path, PathBuf};

use jpeg_encoder::ColorType;

use crate::common::{write_jpeg, write_png};

/// Writes a PNG of `width` x `height` pixels of one colour into a folder that is made for it.
fn plain(path: &Path, width: u16, height: u16, colour: [u8; 3]) -> PathBuf {
    create_dir_all(path.parent().expect("a folder")).expect("creates");
    write_png(path, width, height, &colour.repeat(usize::from(width) * usize::from(height)));
    path.to_owned()
}

/// Writes a grey JPEG of 16 x 16 pixels.
fn grey(path: &Path, seed: u8) {
    let pixels: Vec<u8> = (0..256usize).map(|pixel| (pixel * pixel * usize::from(seed) % 251) as u8).collect();
    write_jpeg(path, 16, 16, &pixels, ColorType::Luma);
}

/// Writes a PNG of 18 x 16 pixels that looks like no other of these.
fn textured(path: &Path, seed: u64) {
    brighter(path, seed, 0);
}

/// The same with a little more light.
fn brighter(path: &Path, seed: u64, light: u8) {
    create_dir_all(path.parent().expect("a folder")).expect("creates");
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let mut shade = || {
        // Knuth's generator (MMIX), whose upper bits are the better ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 58) as u8 * 3 + light
    };
    // Squares of two pixels.
    let rows: Vec<Vec<u8>> = (0..8).map(|_| (0..9).flat_map(|_| [shade(); 6]).collect()).collect();
    write_png(path, 18, 16, &rows.into_iter().flat_map(|row| row.repeat(2)).collect::<Vec<u8>>());
}
