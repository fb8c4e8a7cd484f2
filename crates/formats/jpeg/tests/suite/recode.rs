//! A recoded image has the same pixels, and decoding skips what lies beside a region.

use enmasse_jpeg::{Decoder, Error, Jpeg, Scale};

use crate::images::{Coding, NUMBER};
use crate::whole;

#[test]
fn no_pixel_changes() {
    let mut decoder = Decoder::new();
    for number in 0..NUMBER {
        let coding = Coding::of(number);
        let bytes = coding.encode();
        let recoded = decoder.recode(&bytes).unwrap();
        let jpeg = Jpeg::parse(&recoded).unwrap();
        assert!(!jpeg.progressive() && jpeg.color() == Jpeg::parse(&bytes).unwrap().color());
        for scale in Scale::ALL {
            let (before, after) = (whole(&mut decoder, &bytes, scale), whole(&mut decoder, &recoded, scale));
            assert!(before.unwrap() == after.unwrap(), "{scale:?} of {coding:?}");
        }
        assert!(decoder.recode(&recoded).unwrap() == recoded, "{coding:?}");
    }
}

/// The places of a marker.
fn markers(bytes: &[u8], marker: u8) -> Vec<usize> {
    let pairs = bytes.windows(2).enumerate();
    pairs.filter(|(_, pair)| *pair == [0xFF, marker]).map(|(at, _)| at).collect()
}

#[test]
fn segments_are_kept() {
    let bytes = Coding { width: 100, height: 60, progressive: true, ..Coding::of(0) }.encode();
    let (start, rest) = bytes.split_at(2);
    let comment = [&[0xFF, 0xFE, 0, 8][..], b"a note"].concat();
    let profile = [&[0xFF, 0xE2, 0, 6][..], &[1, 2, 3, 4]].concat();
    let noted = [start, &comment, &profile, rest, b"more"].concat();
    let recoded = Decoder::new().recode(&noted).unwrap();
    assert!(recoded.starts_with(&[start, &comment, &profile].concat()));
    assert!(recoded.ends_with(&[0xFF, 0xD9]));
    let header = &recoded[..markers(&recoded, 0xF0)[0]];
    let count = |marker: u8| markers(header, marker).len();
    assert_eq!([0xC0, 0xC2, 0xC4, 0xDB, 0xDA].map(count), [1, 0, 0, markers(&bytes, 0xDB).len(), 0]);
}

#[test]
fn what_cannot_be_recoded_is_named() {
    let mut decoder = Decoder::new();
    let mut check = |bytes: &[u8], expected: Error| assert_eq!(decoder.recode(bytes), Err(expected));
    let bytes = Coding { gray: false, progressive: true, ..Coding::of(0) }.encode();
    check(&bytes[..bytes.len() - 2], Error::Truncated);
    check(&bytes[..2], Error::Truncated);
    check(b"GIF89a", Error::Damaged("it does not begin like a JPEG"));
    // One that has streams already: another version of them, and a row that begins elsewhere.
    let recoded = Decoder::new().recode(&bytes).unwrap();
    let streams = markers(&recoded, 0xF0)[0];
    for (place, expected) in [
        (streams + 11, Error::Unsupported("this extension of JPEG, or its version,")),
        (streams + 14, Error::Damaged("its coefficients are damaged")),
    ] {
        let mut damaged = recoded.clone();
        damaged[place] = 0x7F;
        check(&damaged, expected);
    }
    let mut inks = Vec::new();
    jpeg_encoder::Encoder::new(&mut inks, 90).encode(&[7; 16 * 4], 4, 4, jpeg_encoder::ColorType::Cmyk).unwrap();
    check(&inks, Error::Unsupported("decoding a CMYK image"));
    // Other divisors for the components whose scans come later.
    let second = markers(&bytes, 0xDA)[1];
    let table = [&[0xFF, 0xDB, 0, 67, 1][..], &[9; 64]].concat();
    let changed = [&bytes[..second], &table, &bytes[second..]].concat();
    check(&changed, Error::Unsupported("a quantization table after the first scan"));
    // A coefficient of an image that no encoder writes: 15 bits.
    let wide =
        Coding { gray: true, width: 8, height: 8, optimized: false, progressive: false, restarts: 0, ..Coding::of(0) };
    let bytes = wide.encode();
    let scan = markers(&bytes, 0xDA)[0];
    let codes = [&[0xFF, 0xC4, 0, 20, 0][..], &[1; 1], &[0; 15], &[12]].concat();
    // The code, a value of twelve bits, and ones, which end the block at once or are unknown.
    let changed = [&bytes[..scan], &codes, &bytes[scan..scan + 10], &[0x40, 0x05, 0x4A, 0xFF, 0xD9]].concat();
    check(&changed, Error::Unsupported("a coefficient of more than eight bits of precision"));
}
