//! A region has the pixels of the whole image, and these are near another decoder's.

use enmasse_jpeg::{Color, Decoder, Jpeg, Region, Scale};
use proptest::prelude::*;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::images::{Coding, SAMPLINGS};
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

pub fn by_zune(bytes: &[u8]) -> Vec<u8> {
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    JpegDecoder::new_with_options(ZCursor::new(bytes), options).decode().unwrap()
}

/// The other decoder rounds differently, interpolates differently between rows of colour, and does not know sequential images
/// of several scans.
#[test]
fn pixels_are_near_another_decoder_s() {
    let mut decoder = Decoder::new();
    for number in 0..200 {
        let sampling = SAMPLINGS[number % 4];
        let (width, height) = (20 + (number % 70) as u16, 20 + (number % 50) as u16);
        let coding = Coding { sampling, width, height, optimized: false, ..Coding::of(number) };
        let bytes = coding.encode();
        let (_, _, ours) = whole(&mut decoder, &bytes, Scale::Full).unwrap();
        let theirs = by_zune(&bytes);
        let each = ours.iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b));
        let (largest, sum) = each.fold((0, 0), |(largest, sum), each| (each.max(largest), sum + usize::from(each)));
        let mean = sum as f64 / ours.len() as f64;
        let most = if number % 4 == 0 { 3 } else { 32 };
        assert!(largest <= most && mean < 0.5, "{coding:?}: {largest} {mean}");
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
        assert_eq!(jpeg.color(), if coding.gray { Color::Gray } else { Color::YCbCr });
    };
    (0..30).for_each(check);
}
