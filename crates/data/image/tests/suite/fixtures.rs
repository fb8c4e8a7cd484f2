//! Decoding and transforms compared with Pillow's and torchvision's results (`fixtures/make.py`).

use std::path::{Path, PathBuf};

use enmasse_image::{
    Canvas, CropBox, CropResize, EvalCrop, EvalTransform, Image, ImageError, ImageRegion, PaddingMode, RandomCrop,
    RandomHorizontalFlip, RandomResizedCrop, RandomStream, ReadOptions, Resampling, Resizer, Transform, decode,
};
use serde_json::Value;

const PLAIN: ReadOptions = ReadOptions { convert_rgb: false, exif_transpose: false, fast: false };
const CONVERTING: ReadOptions = ReadOptions { convert_rgb: true, ..PLAIN };

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn cases(kind: &str) -> Vec<Value> {
    let cases: Value = serde_json::from_slice(&std::fs::read(fixture("cases.json")).unwrap()).unwrap();
    let cases = cases[kind].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    cases
}

fn text<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap()
}

fn number(case: &Value, key: &str) -> usize {
    case[key].as_u64().unwrap() as usize
}

fn crop_box(value: &Value) -> CropBox {
    let [left, top, width, height] = ["left", "top", "width", "height"].map(|key| number(value, key));
    CropBox { left, top, width, height }
}

/// An image that Pillow wrote as an RGB PNG.
fn pixels(name: &str) -> Image {
    decode::open(fixture(name), PLAIN).unwrap()
}

/// The largest difference of two values.
fn difference(ours: &Image, theirs: &Image) -> u8 {
    assert_eq!((ours.width(), ours.height()), (theirs.width(), theirs.height()));
    ours.pixels().iter().zip(theirs.pixels()).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

#[test]
fn decodes_as_pillow_does() {
    for case in cases("decode") {
        let (file, mode) = (text(&case, "file"), text(&case, "mode"));
        let ours = decode::open(fixture(file), ReadOptions { convert_rgb: mode != "RGB", ..PLAIN }).unwrap();
        assert_eq!(difference(&ours, &pixels(text(&case, "expected"))), 0, "{file}");
    }
}

/// `ImageOps.exif_transpose`; without the option the orientation is ignored, as by torchvision.
#[test]
fn turns_images_as_pillow_does() {
    for case in cases("turned") {
        let file = text(&case, "file");
        let options = ReadOptions { exif_transpose: true, ..PLAIN };
        let ours = decode::open(fixture(file), options).unwrap();
        assert_eq!(difference(&ours, &pixels(text(&case, "expected"))), 0, "{file}");
        let stored = decode::open(fixture(file), PLAIN).unwrap();
        assert_eq!((stored.width(), stored.height()), (13, 9), "{file}");
    }
}

#[test]
fn other_modes_are_errors_without_conversion() {
    for case in cases("decode") {
        let (file, mode) = (text(&case, "file"), text(&case, "mode"));
        let result = decode::open(fixture(file), PLAIN);
        assert_eq!(result.is_ok(), mode == "RGB", "{file}");
        if let Err(error) = result {
            let error = error.to_string();
            assert!(error.contains(file) && error.contains(&format!("of mode {mode}")), "{error}");
            assert!(error.contains("`convert_rgb = false`") && !error.contains('\n'), "{error}");
        }
    }
}

/// A truncated image is an error; a damaged one is an error or an image, never a panic.
#[test]
fn truncated_and_damaged() {
    for case in cases("decode") {
        let file = text(&case, "file");
        let whole = std::fs::read(fixture(file)).unwrap();
        let mut image = Image::default();
        // Of an animated GIF nothing after the first frame is read.
        let read = if file == "image.animation.gif" { 50 } else { 97 };
        for part in [1, 2, 9, 10, 30, 50, 70, 90, 97].into_iter().filter(|&part| part <= read) {
            let end = whole.len() * part / 100;
            assert!(decode::decode(&whole[..end], CONVERTING, &mut image).is_err(), "{file} cut at {part} %");
        }
        for damage in 0..whole.len().min(1500) {
            let mut bytes = whole.clone();
            let at = damage * 7919 % bytes.len();
            bytes[at] ^= 1 << (damage % 8);
            let _ = decode::decode(&bytes, CONVERTING, &mut image);
        }
    }
}

fn resampling(case: &Value) -> Resampling {
    serde_json::from_value(case["interpolation"].clone()).unwrap()
}

fn evaluation(case: &Value) -> EvalTransform {
    let resize = number(case, "resize");
    let resampling = resampling(case);
    EvalTransform { resize, resampling, ..EvalTransform::new(number(case, "size")) }
}

#[test]
fn evaluates_as_torchvision_does() {
    let mut resizer = Resizer::new();
    for case in cases("eval") {
        let source = pixels(text(&case, "source"));
        let transform = evaluation(&case);
        let mut ours = vec![77; transform.size * transform.size * 3];
        transform.fit(&source, &mut resizer, &mut ours);
        assert_eq!(crc32(&ours) as usize, number(&case, "expected"), "{case}");
    }
}

#[test]
fn ten_crops_as_torchvision_does() {
    let mut seen = 0;
    for case in cases("eval") {
        let Some(expected) = case["crops"].as_array() else { continue };
        let source = pixels(text(&case, "source"));
        let transform = evaluation(&case);
        let found = EvalCrop::several(10).unwrap().into_iter().map(|crop| {
            let mut view = ImageRegion::default();
            let mut pixels = vec![0; transform.size * transform.size * 3];
            let read = |image: &mut Image| {
                image.clone_from(&source);
                Ok::<(), ImageError>(())
            };
            view.whole(read).unwrap();
            transform.apply_to_region(&mut view, &mut Canvas::default(), crop, &mut pixels).unwrap();
            crc32(&pixels).into()
        });
        let found: Vec<u64> = found.collect();
        let expected: Vec<u64> = expected.iter().map(|crc| crc.as_u64().unwrap()).collect();
        assert_eq!(found, expected, "{case}");
        seen += 1;
    }
    assert_eq!(seen, 32);
}

#[test]
fn crops_and_flips_as_torchvision_does() {
    for case in cases("train") {
        let mut canvas = Canvas::new(pixels(text(&case, "source")));
        let size = number(&case, "size");
        let crop_resize = CropResize::whole(crop_box(&case["box"]), (size, size), resampling(&case));
        canvas.replace(size, size, |image, resizer, out| resizer.resize_part(image, &crop_resize, out));
        let flip = if case["flip"].as_bool().unwrap() { 1.0 } else { 0.0 };
        RandomHorizontalFlip { probability: flip }.apply(&mut canvas, &mut RandomStream::new(0, "", 0, 0));
        assert_eq!(crc32(canvas.image().pixels()) as usize, number(&case, "expected"), "{case}");
    }
}

#[test]
fn cuts_squares_out_of_margins_as_torchvision_does() {
    for case in cases("padded") {
        let mut canvas = Canvas::new(pixels(text(&case, "source")));
        let transform = RandomCrop {
            size: number(&case, "size"),
            padding: number(&case, "padding"),
            padding_mode: PaddingMode::Constant,
            resampling: Resampling::Bilinear,
        };
        transform.cut(&mut canvas, crop_box(&case["box"]));
        assert_eq!(crc32(canvas.image().pixels()) as usize, number(&case, "expected"), "{case}");
    }
}

#[test]
fn falls_back_to_torchvision_s_central_crop() {
    let whole = RandomResizedCrop { scale: (1.0, 1.0), ..RandomResizedCrop::new(8) };
    for case in cases("fallback") {
        let [width, height] = [0, 1].map(|i| case["size"][i].as_u64().unwrap() as usize);
        let found = whole.draw(&mut RandomStream::new(0, "", 0, 0), width, height);
        assert_eq!(found, crop_box(&case["box"]), "{case}");
    }
}

#[test]
fn unusable_files() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, content: &[u8], expected: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let error = decode::open(&path, PLAIN).unwrap_err();
        assert!(matches!(error, ImageError::Image { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(name) && error.contains(expected) && !error.contains('\n'), "{error}");
    };
    check("empty.jpg", b"", "the file is empty");
    check("text.jpg", b"no image at all\n", "not a JPEG, PNG, WebP, BMP or GIF image, but text");
    check("scan.png", b"II*\0\x08\0\0\0", "but a TIFF");
    check("plain.bmp", b"P6 1 1 255\n\0\0\0", "but a PPM");
    check("phone.jpg", b"\0\0\0\x18ftypheic", "but an AVIF or HEIC");
    check("start.jpg", b"\xFF\xD8\xFF", "damaged or truncated JPEG");
    check("start.png", b"\x89PNG\r\n\x1A\n", "damaged or truncated PNG");

    // A JPEG and a PNG whose headers claim dimensions beyond any memory.
    let mut huge = std::fs::read(fixture("image.420.jpg")).unwrap();
    let frame = huge.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    huge[frame + 5..frame + 9].fill(0xFF);
    check("huge.jpg", &huge, "65535x65535 exceed");
    let mut header = b"IHDR\0\x01\x86\xA0\0\x01\x86\xA0\x08\x02\0\0\0".to_vec();
    let checksum = crc32(&header);
    header.extend(checksum.to_be_bytes());
    check("huge.png", &[b"\x89PNG\r\n\x1A\n\0\0\0\x0D".as_slice(), &header].concat(), "100000x100000 exceed");

    let missing = decode::open(folder.path().join("missing.jpg"), PLAIN).unwrap_err().to_string();
    assert!(missing.contains("missing.jpg: no such file or directory"), "{missing}");
}

/// The content decides, not the name.
#[test]
fn misnamed_but_good() {
    let folder = tempfile::tempdir().unwrap();
    for (from, name) in [("image.rgb.png", "a.jpg"), ("image.444.jpg", "b.png")] {
        std::fs::copy(fixture(from), folder.path().join(name)).unwrap();
        assert_eq!(decode::open(folder.path().join(name), PLAIN).unwrap(), pixels_of(from));
    }
}

fn pixels_of(name: &str) -> Image {
    decode::open(fixture(name), PLAIN).unwrap()
}

/// Stray bytes between headers are skipped, as by libjpeg, but a truncated image is still not accepted as complete.
#[test]
fn stray_bytes_between_headers() {
    let whole = std::fs::read(fixture("image.420.jpg")).unwrap();
    let tables = whole.windows(2).position(|w| w == [0xFF, 0xDB]).unwrap();
    let stray = [&whole[..tables], &[0; 7], &whole[tables..]].concat();
    let mut image = Image::default();
    decode::decode(&stray, PLAIN, &mut image).unwrap();
    assert_eq!(image, pixels_of("image.420.jpg"));
    let error = decode::decode(&stray[..stray.len() * 2 / 3], PLAIN, &mut image).unwrap_err();
    assert!(error.contains("the data end before the image"), "{error}");
}

/// PNG's checksum.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & 0u32.wrapping_sub(crc & 1)))
    })
}
