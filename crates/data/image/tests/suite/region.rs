//! What is decoded and resized of an image of which a part is wanted.

use std::path::Path;

use enmasse_image::{
    Canvas, CropBox, CropResize, Image, ImageRegion, ReadOptions, RegionRequest, Resampling, Resizer, decode,
};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use proptest::prelude::*;

/// A photograph-like image: smooth colours, an edge, and texture.
fn image(width: usize, height: usize) -> Vec<u8> {
    let pixel = |x: usize, y: usize| {
        let (x, y) = (x as f64 / width as f64, y as f64 / height as f64);
        let texture = 12.0 * (90.0 * x).sin() * (70.0 * y).cos();
        let edge = if (x - 0.6).powi(2) + (y - 0.4).powi(2) < 0.04 { 60.0 } else { 0.0 };
        [60.0 + 120.0 * x + texture, 90.0 + 80.0 * y + edge, 200.0 - 90.0 * x * y - texture].map(|color| color as u8)
    };
    (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect()
}

fn write(path: &Path, width: usize, height: usize, sampling: SamplingFactor) {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, 90);
    encoder.set_sampling_factor(sampling);
    encoder.encode(&image(width, height), width as u16, height as u16, ColorType::Rgb).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// The part of a large image at a smaller scale, compared with the part at full size: levels of difference.
#[test]
fn shrunk_images_are_near_those_at_full_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.jpg");
    write(&path, 1024, 768, SamplingFactor::R_4_2_0);
    let check = |size: usize, crop: CropBox, shrink: usize| {
        let crop_resize = CropResize::whole(crop, (size, size), Resampling::Bilinear);
        assert_eq!(crop_resize.wanted(), RegionRequest { part: crop, shrink });
        let cut = |fast: bool| {
            let options = ReadOptions { fast, ..ReadOptions::default() };
            let mut view = ImageRegion::default();
            let mut out = vec![0; size * size * 3];
            decode::read_part(&path, options, &|_, _| crop_resize.wanted(), &mut view).unwrap();
            Resizer::new().crop_resize(&view, &crop_resize, &mut out);
            out
        };
        let (fast, exact) = (cut(true), cut(false));
        let mut canvas = Canvas::new(decode::open(&path, ReadOptions::default()).unwrap());
        canvas.resize(crop, size, size);
        assert!(exact == canvas.image().pixels(), "{crop_resize:?}");
        let each = || fast.iter().zip(&exact).map(|(a, b)| a.abs_diff(*b));
        let mean = each().map(f64::from).sum::<f64>() / fast.len() as f64;
        assert_eq!(fast == exact, shrink == 1);
        assert!(mean < 1.0 && each().max().unwrap() <= 24, "{crop_resize:?}: {mean} {:?}", each().max());
    };
    check(224, CropBox { left: 3, top: 5, width: 447, height: 700 }, 1);
    check(224, CropBox { left: 3, top: 5, width: 448, height: 700 }, 2);
    check(224, CropBox { left: 501, top: 1, width: 523, height: 448 }, 2);
    check(100, CropBox { left: 1, top: 2, width: 1023, height: 766 }, 4);
    check(48, CropBox { left: 7, top: 9, width: 600, height: 500 }, 8);
    check(96, CropBox::whole(1024, 768), 8);
}

proptest! {
    /// The wanted part has everything that the result depends on, and is no larger.
    #[test]
    fn what_is_wanted_is_what_has_an_influence(
        (width, height, to_width, to_height) in (1usize..70, 1usize..70, 1usize..50, 1usize..50),
        part in prop::array::uniform4(0.0..1.0f64),
        bicubic: bool,
    ) {
        let inside = |length: usize, start: f64, share: f64| {
            let start = (start * length as f64) as usize;
            (start, 1 + (share * (length - start - 1) as f64) as usize)
        };
        let (left, across) = inside(to_width, part[0], part[1]);
        let (top, down) = inside(to_height, part[2], part[3]);
        let part = CropBox { left, top, width: across, height: down };
        let resampling = if bicubic { Resampling::Bicubic } else { Resampling::Bilinear };
        let crop_resize = CropResize { crop: CropBox::whole(width, height), full: (to_width, to_height), part, resampling };
        let wanted = crop_resize.wanted().part;
        prop_assert!(wanted.fits(width, height), "{:?}", wanted);
        let result = |inner: u8, outer: u8| {
            let is_in = |x: usize, y: usize| {
                (wanted.left..wanted.left + wanted.width).contains(&x) && (wanted.top..wanted.top + wanted.height).contains(&y)
            };
            let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| [if is_in(x, y) { inner } else { outer }; 3]));
            let image = Image::new(width, height, pixels.collect()).unwrap();
            let mut out = vec![0; across * down * 3];
            Resizer::new().resize_part(&image, &crop_resize, &mut out);
            out
        };
        prop_assert!(result(100, 0).iter().all(|&byte| byte == 100));
        prop_assert!(result(0, 255).iter().all(|&byte| byte == 0));
    }
}
