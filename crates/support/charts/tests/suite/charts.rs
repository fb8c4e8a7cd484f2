//! Charts of the data, parsed as an SVG viewer would.

use crate::common::{Element, check_inside, of, parse, texts};
use enmasse_charts::{ChartError, LabelledImage, ScalingRow, class_distribution, contact_sheet, image_sheet, scaling};
use proptest::prelude::*;

fn classes(counts: &[(&str, usize, usize)]) -> Vec<(String, usize, usize)> {
    counts.iter().map(|&(name, train, validation)| (name.to_string(), train, validation)).collect()
}

/// The bars after the legend's two and the page: (x, y, width).
fn bars(elements: &[Element]) -> Vec<(f64, f64, f64)> {
    let all = of(elements, "rect");
    let bars = all.into_iter().filter(|bar| bar.has("x"));
    bars.filter(|bar| bar.number("height") != 12.0)
        .map(|bar| (bar.number("x"), bar.number("y"), bar.number("width")))
        .collect()
}

#[test]
fn the_flowers_have_a_bar_and_their_counts_each() {
    let flowers = [("daisy", 507, 126), ("dandelion", 719, 179), ("roses", 513, 128), ("sunflowers", 560, 139)];
    let chart =
        class_distribution("flower class distribution", &classes(&[&flowers[..], &[("tulips", 640, 159)]].concat()));
    let elements = parse(&chart);
    check_inside(&elements);
    let texts = texts(&elements);
    let expected = ["flower class distribution", "training 2939", "validation 731", "daisy", "507 + 126", "dandelion"];
    assert_eq!(texts[..6], expected);
    assert_eq!(texts[6..], ["719 + 179", "roses", "513 + 128", "sunflowers", "560 + 139", "tulips", "640 + 159"]);
    let bars = bars(&elements);
    assert_eq!(bars.len(), 10);
    let longest = bars[2].2 + bars[3].2;
    for (pair, count) in bars.chunks(2).zip([633.0, 898.0, 641.0, 699.0, 799.0]) {
        assert!((pair[0].2 + pair[1].2 - longest * count / 898.0).abs() < 0.05, "lengths are proportional: {pair:?}");
        assert!((pair[0].0 + pair[0].2 - pair[1].0).abs() < 0.02, "validation continues training: {pair:?}");
    }
}

#[test]
fn a_thousand_classes_fit_a_page_of_screen_proportions() {
    let many: Vec<_> = (0..1000).map(|index| (format!("n{index:08} a class of ImageNet"), 1300, 50)).collect();
    let elements = parse(&class_distribution("ImageNet", &many));
    check_inside(&elements);
    let width = elements[0].number("width");
    let height = elements[0].number("height");
    assert!((0.8..2.5).contains(&(width / height)), "{width}x{height}");
    let mut places: Vec<(i64, i64)> = bars(&elements).iter().map(|bar| (bar.0 as i64, bar.1 as i64)).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 2000, "no two bars stand in one place");
}

#[test]
fn classes_without_samples_and_no_classes_at_all_are_drawn_too() {
    let check = |classes: &[(String, usize, usize)], expected: usize| {
        let elements = parse(&class_distribution("empty", classes));
        check_inside(&elements);
        assert_eq!(bars(&elements).len(), expected);
    };
    check(&[], 0);
    check(&classes(&[("a", 0, 0)]), 0);
    check(&classes(&[("a", 0, 0), ("b", 0, 3)]), 1);
    check(&classes(&[("a", usize::MAX, usize::MAX), ("b", usize::MAX, 1)]), 4);
}

#[test]
fn a_long_name_is_truncated_with_a_tooltip() {
    let name = "Leucanthemum vulgare, the ox-eye daisy, a widespread flowering plant native to Europe";
    let chart = class_distribution("names", &classes(&[(name, 5, 1), ("b", 1, 5)]));
    let elements = parse(&chart);
    assert!(of(&elements, "title").iter().any(|title| title.text == name));
    let texts = texts(&elements);
    let shown = texts.iter().find(|text| text.contains('\u{2026}')).expect("cut");
    assert!(shown.starts_with("Leucanthemum") && shown.ends_with("to Europe"), "{shown}");
    assert!(shown.chars().count() < 45, "{shown}");
}

#[test]
fn a_sheet_holds_the_pixels_that_went_in() {
    let make = |width: usize, height: usize, salt: usize| -> Vec<u8> {
        (0..width * height * 3).map(|index| (index * 37 + salt * 11) as u8).collect()
    };
    let sides = [(32, 32), (1, 1), (7, 3), (3, 31), (32, 5)];
    let data: Vec<Vec<u8>> = sides.iter().enumerate().map(|(salt, &(w, h))| make(w, h, salt)).collect();
    let images: Vec<_> = sides
        .iter()
        .zip(&data)
        .map(|(&(width, height), pixels)| LabelledImage { width, height, pixels, label: "<tulips>" })
        .collect();
    let elements = parse(&image_sheet("augmented & labelled", &images).expect("draws"));
    check_inside(&elements);
    let images = of(&elements, "image");
    assert_eq!(images.len(), sides.len());
    assert_eq!(of(&elements, "text").iter().filter(|text| text.text.trim() == "<tulips>").count(), sides.len());
    for ((image, &(width, height)), pixels) in images.iter().zip(&sides).zip(&data) {
        assert_eq!((image.number("width"), image.number("height")), (width as f64 * 4.0, height as f64 * 4.0));
        let (file_width, file_height, decoded) = decode(image);
        assert_eq!((file_width as usize, file_height as usize), (4 * width, 4 * height));
        let pixel = |x: usize, y: usize| decoded[(y * 4 * width + x) * 3..][..3].to_vec();
        let places = (0..4 * height).flat_map(|y| (0..4 * width).map(move |x| (x, y)));
        for (x, y) in places {
            assert_eq!(pixel(x, y), pixels[(y / 4 * width + x / 4) * 3..][..3], "{x} {y} of {width}x{height}");
        }
    }
}

/// The image in an element: its sides, and its bytes.
fn decode(image: &Element) -> (u32, u32, Vec<u8>) {
    let file = image.attribute("href").strip_prefix("data:image/png;base64,").expect("a PNG");
    let file = unbase64(file);
    let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().expect("PNG");
    let mut decoded = vec![0; reader.output_buffer_size().expect("small")];
    let info = reader.next_frame(&mut decoded).expect("PNG");
    (info.width, info.height, decoded)
}

fn unbase64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        _ => panic!("{c} is not base64"),
    };
    let padding = text.bytes().rev().take_while(|&c| c == b'=').count();
    let groups = text.as_bytes().chunks_exact(4).flat_map(|group| {
        let bits = group.iter().fold(0u32, |bits, &c| bits << 6 | u32::from(value(c)));
        bits.to_be_bytes()[1..].to_vec()
    });
    let mut bytes: Vec<u8> = groups.collect();
    bytes.truncate(bytes.len() - padding);
    bytes
}

#[test]
fn images_are_shown_at_a_visible_size() {
    let check = |side: usize, expected: f64, pixels_of_file: u32| {
        let pixels = vec![9; side * side * 3];
        let image = LabelledImage { width: side, height: side, pixels: &pixels, label: "a" };
        let elements = parse(&image_sheet("one", &[image]).expect("draws"));
        check_inside(&elements);
        let image = of(&elements, "image")[0];
        assert_eq!(image.number("width"), expected, "{side}");
        assert_eq!(decode(image).0, pixels_of_file, "{side}: each pixel of the page has one of the file, or more");
    };
    check(1, 128.0, 128);
    check(28, 112.0, 112);
    check(32, 128.0, 128);
    check(64, 128.0, 128);
    check(96, 96.0, 96);
    check(224, 224.0, 224);
    check(512, 256.0, 512);
}

#[test]
fn bytes_that_do_not_match_the_dimensions_are_refused() {
    let check = |width: usize, height: usize, bytes: usize| {
        let pixels = vec![0; bytes];
        let good = LabelledImage { width: 1, height: 1, pixels: &[1, 2, 3], label: "good" };
        let bad = LabelledImage { width, height, pixels: &pixels, label: "bad\n" };
        let error = image_sheet("t", &[good, bad]).expect_err("refused");
        assert!(matches!(error, ChartError::Pixels { index: 1, .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("image 1") && text.contains(&format!("{width}x{height}")) && !text.contains('\n'),
            "{text}"
        );
    };
    check(2, 2, 11);
    check(2, 2, 13);
    check(0, 0, 0);
    check(0, 5, 0);
    check(usize::MAX, usize::MAX, 3);
    check(1 << 33, 1, 3);
    assert!(matches!(image_sheet("t", &[]), Err(ChartError::NoImages)));
}

proptest! {
    #[test]
    fn any_names_and_counts_give_a_well_formed_page(
        title in ".*",
        classes in prop::collection::vec((".*", any::<usize>(), any::<usize>()), 0..70),
    ) {
        let elements = parse(&class_distribution(&title, &classes));
        check_inside(&elements);
        let texts = of(&elements, "text").len();
        prop_assert_eq!(texts, 3 + 2 * classes.len());
    }

    #[test]
    fn any_labels_give_a_well_formed_sheet(title in ".*", labels in prop::collection::vec(".*", 1..30), width in 1usize..40) {
        let pixels = vec![77; width * 3];
        let sheet = |label| LabelledImage { width, height: 1, pixels: &pixels, label };
        let images: Vec<_> = labels.iter().map(|label| sheet(label.as_str())).collect();
        let elements = parse(&image_sheet(&title, &images).expect("draws"));
        check_inside(&elements);
        prop_assert_eq!(of(&elements, "image").len(), labels.len());
    }
}

#[test]
fn the_speed_of_several_devices_stands_before_the_ideal() {
    let row = |name, devices, images_per_second: f64| ScalingRow {
        name,
        devices,
        images_per_second,
        speed_up: images_per_second / 100.0,
    };
    let rows = [row("1 device", 1, 100.0), row("ddp, 4 devices", 4, 300.04)];
    let elements = parse(&scaling("resnet18", &rows));
    check_inside(&elements);
    let bars: Vec<f64> = bars(&elements).iter().map(|bar| bar.2).collect();
    assert_eq!(bars, [80.0, 80.0, 320.0, 240.03]);
    let texts = texts(&elements);
    assert_eq!(texts[3..5], ["1 device", "100 images/s"]);
    assert_eq!(texts[5..], ["ddp, 4 devices", "300 images/s, 3.00 times one device, 75 %"]);
    // Nothing was measured.
    for rows in [&[][..], &[row("1 device", 1, 0.0)]] {
        check_inside(&parse(&scaling("nothing", rows)));
    }
}

/// A sheet is about as wide as high, and small images are enlarged.
#[test]
fn contact_sheets_have_their_groups_in_rows() {
    let check = |size: usize, groups: &[usize], expected: Result<(u32, u32), &str>| {
        let image = vec![9; size * size * 3];
        let groups: Vec<Vec<Vec<u8>>> = groups.iter().map(|&count| vec![image.clone(); count]).collect();
        match (contact_sheet(size, &groups), expected) {
            (Ok(png), Ok(expected)) => {
                let info = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap().info().size();
                assert_eq!(info, expected, "{size} {}", groups.len());
            }
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected),
            (other, expected) => panic!("{other:?} instead of {expected:?}"),
        }
    };
    check(96, &[2], Ok((16 + 2 * 96 + 4 + 16, 16 + 96 + 16)));
    check(32, &[1; 9], Ok((16 + 3 * 112, 16 + 3 * 112)));
    check(200, &[3, 3, 2], Ok((16 + 608 + 16, 16 + 3 * 216)));
    check(96, &[2; 8], Ok((16 + 2 * 212, 16 + 4 * 112)));
    check(96, &[], Err("a sheet needs at least one image"));
    check(96, &[0, 0], Err("a sheet needs at least one image"));
    let wrong = contact_sheet(2, &[vec![vec![0; 12], vec![0; 11]]]).unwrap_err().to_string();
    assert_eq!(wrong, "image 1 (\"\") has 11 bytes, which does not match 2x2 RGB pixels");
}
