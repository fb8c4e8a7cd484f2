//! Decoding takes memory by an image's true size, whatever a file claims.

use std::borrow::Cow;

use enmasse_image::{Image, ReadOptions, decode};
use png::{BitDepth, ColorType, Encoder, Info};
use test_support::heap::{held_after, peak_of};

const CONVERTING: ReadOptions = ReadOptions { convert_rgb: true, exif_transpose: true, fast: true };

/// The decoder's answer, and the greatest number of bytes that it held.
fn decoded(bytes: &[u8]) -> (Result<(), String>, usize) {
    peak_of(|| decode::decode(bytes, CONVERTING, &mut Image::default()))
}

/// A PNG of 8x8 pixels whose header may claim more.
fn png(claimed: u32, icc_profile: Option<Cow<'static, [u8]>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut info = Info::with_size(claimed, claimed);
    (info.color_type, info.bit_depth, info.icc_profile) = (ColorType::Rgb, BitDepth::Eight, icc_profile);
    let mut writer = Encoder::with_info(&mut bytes, info).unwrap().write_header().unwrap();
    let _ = writer.write_image_data(&[7; 8 * 8 * 3]);
    drop(writer);
    bytes
}

/// A JPEG of `edge` by `edge` pixels.
fn square(edge: u16, progressive: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, 90);
    encoder.set_progressive(progressive);
    let pixels: Vec<u8> = (0..usize::from(edge) * usize::from(edge) * 3).map(|place| (place * 7) as u8).collect();
    encoder.encode(&pixels, edge, edge, jpeg_encoder::ColorType::Rgb).unwrap();
    bytes
}

/// One large image took its memory from each loader thread for the rest of a run, and up to twice as much as it needs.
#[test]
fn the_next_image_frees_a_large_one() {
    let mut image = Image::default();
    let mut held = |edge: u16| {
        let bytes = square(edge, false);
        let ((), more) = held_after(|| decode::decode(&bytes, CONVERTING, &mut image).unwrap());
        more
    };
    let pixels = |edge: isize| edge * edge * 3;
    assert_eq!(held(600), pixels(600));
    assert_eq!(held(1200), pixels(1200) - pixels(600));
    // Not much smaller: the memory stays.
    assert_eq!(held(900), 0);
    assert_eq!(held(800), pixels(800) - pixels(1200));
    // Nothing of up to 4 MiB is worth freeing.
    assert_eq!(held(500), 0);
    assert_eq!(held(16), 0);
}

/// The coefficients that our own decoder had read stayed while the other one took the same again.
#[test]
fn a_damaged_image_took_the_memory_of_two_decoders() {
    let mut bytes = square(1024, true);
    bytes.truncate(bytes.len() * 3 / 4);
    let (result, peak) = decoded(&bytes);
    assert!(result.is_err());
    let most = 1024 * 1024 * (3 + 6) + (1 << 20);
    assert!(peak <= most, "{peak} bytes");
}

/// A JPEG of 16x16 pixels whose header claims more.
fn jpeg(claimed: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut bytes, 90);
    encoder.encode(&[7; 16 * 16 * 3], 16, 16, jpeg_encoder::ColorType::Rgb).unwrap();
    let frame = bytes.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    let [high, low] = claimed.to_be_bytes();
    bytes.splice(frame + 5..frame + 9, [high, low, high, low]);
    bytes
}

/// A BMP header that claims dimensions.
fn bmp(claimed: u32) -> Vec<u8> {
    let mut bytes = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    bytes.extend([claimed, claimed, 1 | 24 << 16].map(u32::to_le_bytes).concat());
    bytes.resize(54, 0);
    bytes
}

/// A GIF of one pixel whose canvas may claim more.
fn gif(claimed: u16) -> Vec<u8> {
    let [low, high] = claimed.to_le_bytes();
    let canvas = [b'G', b'I', b'F', b'8', b'9', b'a', low, high, low, high, 0x80, 0, 0];
    [&canvas[..], &[0; 6], b",\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0;"].concat()
}

/// The start of a lossy WebP that claims dimensions.
fn webp(claimed: u16) -> Vec<u8> {
    let [low, high] = claimed.to_le_bytes();
    let frame = [0x10, 0, 0, 0x9D, 0x01, 0x2A, low, high, low, high];
    [b"RIFF\x16\0\0\0WEBPVP8 \x0A\0\0\0".as_slice(), &frame].concat()
}

/// A JPEG header of 1 KB took 268 MB in each loader thread.
#[test]
fn a_short_file_cannot_claim_many_pixels() {
    let check = |bytes: Vec<u8>, claimed: usize| {
        let (result, peak) = decoded(&bytes);
        let expected = format!("truncated: {} bytes cannot hold {claimed}x{claimed} pixels", bytes.len());
        assert_eq!(result, Err(expected));
        assert!(peak < 1 << 20, "{peak} bytes");
    };
    check(jpeg(9216), 9216);
    check(png(9216, None), 9216);
    check(bmp(9216), 9216);
    check(gif(9216), 9216);
    check(webp(9216), 9216);
    assert_eq!(decoded(&gif(1)).0, Ok(()));
}

/// A file of 2 MB took 709 MB.
#[test]
fn colour_profiles_are_not_decompressed() {
    let (result, peak) = decoded(&png(8, Some(vec![0; 32 << 20].into())));
    assert_eq!(result, Ok(()));
    assert!(peak < 4 << 20, "{peak} bytes");
}
