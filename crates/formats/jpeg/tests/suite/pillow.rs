//! Checksums of pixels compared with Pillow's (`fixtures/pillow.py`).

use crc32fast::Hasher;
use enmasse_jpeg::{Decoder, Scale};

use crate::images::{Coding, NUMBER, NUMBER_DAMAGED, damaged};
use crate::whole;

#[test]
fn pixels_are_those_of_pillow() {
    let lines: Vec<&str> = include_str!("../fixtures/pillow.txt").lines().collect();
    assert_eq!(lines.len(), NUMBER);
    let mut decoder = Decoder::new();
    for (number, line) in lines.into_iter().enumerate() {
        let coding = Coding::of(number);
        let bytes = coding.encode();
        let [file, scales, expected] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let found = format!("{:08x}", crc32fast::hash(&bytes));
        assert_eq!(found, file, "the encoder writes other files than when fixtures/pillow.py ran");
        let mut pixels = Hasher::new();
        for scale in Scale::ALL {
            if scales.contains(&scale.denominator().to_string()) {
                pixels.update(&whole(&mut decoder, &bytes, scale).unwrap().2);
            }
        }
        assert_eq!(format!("{:08x}", pixels.finalize()), expected, "{number} at 1/{scales}: {coding:?}");
    }
}

#[test]
fn damaged_images_are_those_of_pillow() {
    let lines: Vec<&str> = include_str!("../fixtures/damaged.txt").lines().collect();
    assert_eq!(lines.len(), NUMBER_DAMAGED);
    let mut decoder = Decoder::new();
    for (number, line) in lines.into_iter().enumerate() {
        let bytes = damaged(number);
        let (file, expected) = line.split_once(' ').unwrap();
        let found = format!("{:08x}", crc32fast::hash(&bytes));
        assert_eq!(found, file, "the encoder writes other files than when fixtures/pillow.py ran");
        let found = match whole(&mut decoder, &bytes, Scale::Full) {
            Ok((.., pixels)) => format!("{:08x}", crc32fast::hash(&pixels)),
            Err(_) => "refused".to_owned(),
        };
        assert_eq!(found, expected, "{number}");
    }
}
