//! Images of every format.

#![no_main]

use enmasse_image::{Image, ReadOptions, decode};
use test_support::heap::peak_of;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let strict = ReadOptions { convert_rgb: false, exif_transpose: true, fast: true };
    let converting = ReadOptions { convert_rgb: true, ..strict };
    let mut image = Image::default();
    let (result, peak) = peak_of(|| decode::decode(bytes, converting, &mut image));
    match result {
        Ok(()) => {
            let pixels = image.width() * image.height();
            assert!(pixels > 0 && image.pixels().len() == 3 * pixels);
            // A JPEG's blocks at the edges count as whole.
            let blocks = image.width().next_multiple_of(32) * image.height().next_multiple_of(32);
            assert!(peak <= 15 * blocks + 4 * bytes.len() + (1 << 20), "it took {peak} bytes");
        }
        Err(problem) => assert!(!problem.contains('\n') && !problem.contains("panicked"), "{problem}"),
    }
    // The same image, or an error that names its mode.
    let mut same = Image::default();
    if decode::decode(bytes, strict, &mut same).is_ok() {
        assert_eq!(same.pixels(), image.pixels());
    }
});
