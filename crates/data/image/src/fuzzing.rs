//! For fuzzing: resizing keeps its promises for any dimensions. Compiled with `--cfg fuzzing` alone.

use enmasse_system::simd::SimdLevel;

use crate::{CropBox, CropResize, EvalTransform, Image, Resampling, Resizer};

/// Longest side of an image, and of the part of a result that is computed.
const MAX_SIDE: usize = 300;
/// Longest side of a whole result, of which a part is computed.
const MAX_FULL: usize = 100_000;

/// Any part of any image, resized to any dimensions, is the same with the kernels of all levels. So is what evaluation makes
/// of the image. The first bytes are the dimensions, the others are pixels.
pub fn resize(bytes: &[u8]) {
    let Some((numbers, pixels)) = bytes.split_first_chunk::<48>() else { return };
    let mut numbers = numbers.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number) as usize);
    let mut below = |limit: usize| numbers.next().unwrap_or(0) % limit;
    let (width, height) = (1 + below(MAX_SIDE), 1 + below(MAX_SIDE));
    let pixels = pixels.iter().chain([&0]).cycle().take(width * height * 3).copied().collect();
    let image = Image::new(width, height, pixels).expect("its length is right");
    let mut span = |limit: usize, longest: usize| {
        let start = below(limit);
        (start, 1 + below((limit - start).min(longest)))
    };
    let (left, width) = span(width, MAX_SIDE);
    let (top, height) = span(height, MAX_SIDE);
    let crop = CropBox { left, top, width, height };
    let full = (1 + below(MAX_FULL), 1 + below(MAX_FULL));
    let mut span = |limit: usize| {
        let start = below(limit);
        (start, 1 + below((limit - start).min(MAX_SIDE)))
    };
    let ((left, width), (top, height)) = (span(full.0), span(full.1));
    let part = CropBox { left, top, width, height };
    let resampling = if full.1 % 4 < 2 { Resampling::Bilinear } else { Resampling::Bicubic };
    let evaluation = EvalTransform { size: part.width, resize: full.0, grayscale: full.1 % 2 == 0, resampling };
    let crop_resize = CropResize { crop, full, part, resampling };
    let results = SimdLevel::all().map(|level| {
        let mut resizer = Resizer::at(level);
        let mut cut = vec![1; part.width * part.height * 3];
        resizer.resize_part(&image, &crop_resize, &mut cut);
        let mut fitted = vec![1; evaluation.size * evaluation.size * 3];
        evaluation.fit(&image, &mut resizer, &mut fitted);
        (cut, fitted)
    });
    let results: Vec<_> = results.collect();
    assert!(results.iter().all(|result| *result == results[0]));
}
