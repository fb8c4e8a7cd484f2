//! A region has the pixels of the whole image.

use enmasse_jpeg::{Color, Decoder, Jpeg, Region, Scale};
use jpeg_encoder::ColorType;
use proptest::prelude::*;

use crate::images::{Coding, damaged};
use crate::whole;

/// A region from four fractions.
fn inside(width: usize, height: usize, [a, b, c, d]: [f64; 4]) -> Region {
    let (left, top) = ((a * width as f64) as usize, (b * height as f64) as usize);
    let length = |fraction: f64, room: usize| 1 + (fraction * room as f64) as usize;
    Region { left, top, width: length(c, width - left - 1), height: length(d, height - top - 1) }
}

proptest! {
    #[test]
    fn a_region_is_a_part_of_the_whole(
        number in 0usize..100_000,
        scale in prop::sample::select(&Scale::ALL),
        parts in prop::collection::vec(prop::array::uniform4(0.0..1.0f64), 6),
    ) {
        let coding = Coding::of(number);
        let bytes = coding.encode();
        let mut decoder = Decoder::new();
        let (width, height, pixels) = whole(&mut decoder, &bytes, scale).unwrap();
        let jpeg = Jpeg::parse(&bytes).unwrap();
        for part in parts {
            let region = inside(width, height, part);
            let expected: Vec<u8> = pixels.chunks_exact(width * 3).skip(region.top).take(region.height)
                .flat_map(|row| &row[region.left * 3..][..region.width * 3]).copied().collect();
            let mut found = vec![0; expected.len()];
            decoder.decode(&jpeg, region, scale, &mut found).unwrap();
            prop_assert!(found == expected, "{:?} {:?} of {:?}", scale, region, coding);
        }
    }
}

/// So much is left out that tables for it are made.
#[test]
fn far_regions_of_large_images() {
    let mut decoder = Decoder::new();
    for number in 0..24 {
        let coding = Coding { width: 500, height: 300, ..Coding::of(number) };
        let bytes = coding.encode();
        let jpeg = Jpeg::parse(&bytes).unwrap();
        let (width, height, pixels) = whole(&mut decoder, &bytes, Scale::Full).unwrap();
        for (left, top) in [(0, 250), (470, 0), (470, 280), (200, 150)] {
            let region = Region { left, top, width: 30, height: 20 };
            let rows = pixels.chunks_exact(width * 3).skip(top).take(region.height.min(height));
            let expected: Vec<u8> = rows.flat_map(|row| &row[left * 3..][..90]).copied().collect();
            let mut found = vec![0; expected.len()];
            decoder.decode(&jpeg, region, Scale::Full, &mut found).unwrap();
            assert!(found == expected, "{region:?} of {coding:?}");
        }
    }
}

#[test]
fn headers_say_what_an_image_is() {
    let check = |number: usize| {
        let coding = Coding::of(number);
        let bytes = coding.encode();
        let jpeg = Jpeg::parse(&bytes).unwrap();
        assert_eq!((jpeg.width(), jpeg.height()), (usize::from(coding.width), usize::from(coding.height)));
        assert_eq!(jpeg.progressive(), coding.progressive);
        let color = match coding.color {
            ColorType::Luma => Color::Gray,
            ColorType::Cmyk => Color::Cmyk,
            ColorType::CmykAsYcck => Color::Ycck,
            _ => Color::YCbCr,
        };
        assert_eq!(jpeg.color(), color);
    };
    (0..30).for_each(check);
}

/// Of a damaged image too, wherever the damage is.
#[test]
fn regions_of_damaged_images() {
    let mut decoder = Decoder::new();
    let mut damaged_regions = 0;
    for number in 0..200 {
        let bytes = damaged(number);
        let Ok((width, height, pixels)) = whole(&mut decoder, &bytes, Scale::Full) else { continue };
        let jpeg = Jpeg::parse(&bytes).unwrap();
        for part in [[0.0; 4], [0.0, 0.0, 1.0, 0.5], [0.3, 0.4, 0.2, 0.3], [0.7, 0.8, 1.0, 1.0]] {
            let region = inside(width, height, part);
            let rows = pixels.chunks_exact(width * 3).skip(region.top).take(region.height);
            let expected: Vec<u8> = rows.flat_map(|row| &row[region.left * 3..][..region.width * 3]).copied().collect();
            let mut found = vec![0; expected.len()];
            decoder.decode(&jpeg, region, Scale::Full, &mut found).unwrap();
            assert!(found == expected, "{region:?} of {number}");
            damaged_regions += 1;
        }
    }
    assert!(damaged_regions > 300, "{damaged_regions}");
}
