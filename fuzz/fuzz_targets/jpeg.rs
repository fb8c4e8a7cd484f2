//! JPEG images, and parts of them at any scale.

#![no_main]

use enmasse_jpeg::{Decoder, Jpeg, Region, Scale};
use test_support::heap::peak_of;

/// Pixels of the largest image that is decoded: a short file may claim many.
const MAX: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(jpeg) = Jpeg::parse(bytes) else { return };
    if jpeg.width() * jpeg.height() > MAX {
        return;
    }
    let mut decoder = Decoder::new();
    for scale in Scale::ALL {
        let (width, height) = jpeg.scaled(scale);
        let mut pixels = vec![0; width * height * 3];
        let all = Region { left: 0, top: 0, width, height };
        let (result, peak) = peak_of(|| decoder.decode(&jpeg, all, scale, &mut pixels));
        // Coefficients of four inks, where blocks at the edges count as whole, and rows of an MCU.
        let blocks = jpeg.width().next_multiple_of(32) * jpeg.height().next_multiple_of(32);
        assert!(peak <= 9 * blocks + 1024 * jpeg.width() + (1 << 16), "it took {peak} bytes");
        if result.is_err() {
            continue;
        }
        // Any part, drawn from the file.
        let draw = |place: usize, most: usize| {
            bytes.get(bytes.len() / 2 + place).map_or(0, |&byte| usize::from(byte) * most / 256)
        };
        let (left, top) = (draw(0, width), draw(1, height));
        let part = Region { left, top, width: 1 + draw(2, width - left), height: 1 + draw(3, height - top) };
        let mut found = vec![0; part.width * part.height * 3];
        // What is not needed is not checked, so there may be an error less, but not one more.
        decoder.decode(&jpeg, part, scale, &mut found).expect("the whole image can be decoded");
        let rows = pixels.chunks_exact(width * 3).skip(top);
        for (found, row) in found.chunks_exact(part.width * 3).zip(rows) {
            assert_eq!(found, &row[left * 3..][..part.width * 3], "{part:?} at {scale:?}");
        }
    }
});
