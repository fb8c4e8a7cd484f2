//! Damaged files: an error or pixels, never a panic, in bounded memory and time.

use enmasse_jpeg::{Decoder, Error, Jpeg, Region, Scale};
use jpeg_encoder::{ColorType, SamplingFactor};
use proptest::prelude::*;
use test_support::heap::peak_of;

use crate::images::Coding;
use crate::whole;

const PLAIN: Coding = Coding {
    width: 100,
    height: 60,
    color: ColorType::Rgb,
    sampling: SamplingFactor::F_2_2,
    progressive: false,
    optimized: false,
    restarts: 0,
    quality: 80,
};

proptest! {
    #[test]
    fn damage_does_not_panic(
        number in 0usize..1000,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        scale in prop::sample::select(&Scale::ALL),
    ) {
        let mut bytes = Coding::of(number).encode();
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] ^= value;
        }
        let limit = |bytes: &[u8]| Jpeg::parse(bytes).map_or(0, |jpeg| jpeg.width().saturating_mul(jpeg.height()));
        if limit(&bytes) < 1 << 20 {
            let _ = whole(&mut Decoder::new(), &bytes, scale);
        }
    }
}

/// Wherever it is cut, and whatever region is asked for.
#[test]
fn a_cut_file_is_truncated() {
    let mut decoder = Decoder::new();
    let codings = [
        PLAIN,
        Coding { progressive: true, ..PLAIN },
        Coding { restarts: 3, ..PLAIN },
        Coding { optimized: true, ..PLAIN },
    ];
    for (number, bytes) in codings.map(|coding| coding.encode()).into_iter().enumerate() {
        let start = bytes.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap();
        for end in (start..bytes.len() - 1).step_by(7).chain([bytes.len() - 2, bytes.len() - 1]) {
            let Ok(jpeg) = Jpeg::parse(&bytes[..end]) else { continue };
            for region in
                [Region { left: 0, top: 0, width: 3, height: 2 }, Region { left: 90, top: 50, width: 10, height: 10 }]
            {
                let mut out = vec![0; region.width * region.height * 3];
                let result = decoder.decode(&jpeg, region, Scale::Full, &mut out);
                assert_eq!(result, Err(Error::Truncated), "{number} {end} {region:?}");
            }
        }
    }
}

/// An image whose header claims 89 megapixels takes memory for a row of MCUs, of the region or, since it has no data for most of
/// them, of the image.
#[test]
fn memory_follows_the_region() {
    let mut bytes = Coding { restarts: 2, ..PLAIN }.encode();
    let frame = bytes.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    let [high, low] = 9400u16.to_be_bytes();
    bytes[frame + 5..frame + 9].copy_from_slice(&[high, low, high, low]);
    let jpeg = Jpeg::parse(&bytes).unwrap();
    assert_eq!((jpeg.width(), jpeg.height()), (9400, 9400));
    let region = Region { left: 0, top: 9000, width: 224, height: 16 };
    let mut out = vec![0; region.width * region.height * 3];
    let mut decoder = Decoder::new();
    let (result, peak) = peak_of(|| decoder.decode(&jpeg, region, Scale::Full, &mut out));
    // libjpeg fills up what the end marker cuts off.
    assert_eq!(result, Ok(()));
    assert!(out.iter().all(|&gray| gray == 128));
    assert!(peak < 9400 / 16 * 6 * 128 + (64 << 10), "{peak} bytes");
    assert!(decoder.held_bytes() <= peak, "{} of {peak} bytes", decoder.held_bytes());
}

/// A large image's memory is freed by the next one.
#[test]
fn memory_is_kept_within_reason() {
    let mut decoder = Decoder::new();
    let held = |decoder: &mut Decoder, width: u16, height: u16| {
        let coding = Coding { width, height, progressive: true, ..PLAIN };
        whole(decoder, &coding.encode(), Scale::Full).unwrap();
        decoder.held_bytes()
    };
    let small = held(&mut decoder, 100, 60);
    assert!(small < 64 << 10, "{small} bytes");
    let large = held(&mut decoder, 2000, 1600);
    // Two bytes for each of one and a half samples a pixel.
    assert!((2000 * 1600 * 3..2000 * 1600 * 4).contains(&large), "{large} bytes");
    assert!(held(&mut decoder, 100, 60) < 5 << 20);
}

/// A scan of few bytes that visits every block, again and again.
#[test]
fn scans_are_limited() {
    let bytes = Coding { progressive: true, color: ColorType::Luma, ..PLAIN }.encode();
    let scan = bytes.windows(2).rposition(|pair| pair == [0xFF, 0xDA]).unwrap();
    let (before, last) = bytes[..bytes.len() - 2].split_at(scan);
    let many = [before, &last.repeat(120), &[0xFF, 0xD9]].concat();
    let result = whole(&mut Decoder::new(), &many, Scale::Full);
    assert_eq!(result.map(|_| ()), Err(Error::Damaged("it has more than 100 scans")));
}

#[test]
fn what_is_not_supported_is_named() {
    let bytes = PLAIN.encode();
    let frame = bytes.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    let check = |place: usize, value: u8, expected: Error| {
        let mut bytes = bytes.clone();
        bytes[frame + place] = value;
        assert_eq!(whole(&mut Decoder::new(), &bytes, Scale::Full).map(|_| ()), Err(expected), "{place} {value}");
    };
    check(1, 0xC3, Error::Unsupported("lossless coding"));
    check(1, 0xC9, Error::Unsupported("arithmetic coding"));
    check(4, 12, Error::Unsupported("a precision other than 8 bits"));
    check(6, 0, Error::Unsupported("a frame without dimensions"));
    check(9, 4, Error::Damaged("its frame has a wrong length"));
    check(11, 0x00, Error::Damaged("a component of its frame is invalid"));
    check(11, 0x44, Error::Unsupported("an MCU of more than ten blocks"));
    check(14, 0x31, Error::Unsupported("a component whose samples do not stand for whole numbers of pixels"));
    assert_eq!(Jpeg::parse(b"GIF89a").map(|_| ()), Err(Error::Damaged("it does not begin like a JPEG")));
    assert_eq!(Jpeg::parse(&[0xFF, 0xD8]).map(|_| ()), Err(Error::Truncated));
}

/// Wherever the file before was cut.
#[test]
fn a_damaged_image_changed_the_next_one() {
    let mut decoder = Decoder::new();
    for number in 0..40 {
        let bytes = Coding::of(number).encode();
        let expected = whole(&mut Decoder::new(), &bytes, Scale::Full).unwrap();
        for end in (bytes.len() / 4..bytes.len()).step_by(31) {
            let _ = whole(&mut decoder, &bytes[..end], Scale::Full);
            assert!(whole(&mut decoder, &bytes, Scale::Full).unwrap() == expected, "coding {number}, cut at {end}");
        }
    }
}
