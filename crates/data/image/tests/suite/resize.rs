//! The resize compared with a plain twin, and the draws of random crops.

use enmasse_image::{
    AlternatingFlip, Canvas, Crop, CropBox, CropResize, EvalCrop, EvalTransform, Image, ImageRegion, PaddingMode,
    RandomCrop, RandomHorizontalFlip, RandomResizedCrop, RandomStream, Resampling, Resizer, TrainTransform, Transform,
};
use proptest::prelude::*;

fn noise(width: usize, height: usize, seed: usize) -> Image {
    let byte = |i: usize| ((i + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 29) as u8;
    Image::new(width, height, (0..width * height * 3).map(byte).collect()).unwrap()
}

/// A plain image: columns of rows of channels.
type Plain = Vec<Vec<[u8; 3]>>;

fn plain(image: &Image, crop: CropBox) -> Plain {
    let pixel = |x, y| [0, 1, 2].map(|c| image.pixels()[(y * image.width() + x) * 3 + c]);
    (crop.top..crop.top + crop.height)
        .map(|y| (crop.left..crop.left + crop.width).map(|x| pixel(x, y)).collect())
        .collect()
}

fn transpose(image: &Plain) -> Plain {
    (0..image[0].len()).map(|x| image.iter().map(|row| row[x]).collect()).collect()
}

/// Both filters by their definitions, and how far they reach.
fn filter(bicubic: bool) -> (fn(f64) -> f64, f64) {
    let cubic = |x: f64| match x.abs() {
        x if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
        _ => 0.0,
    };
    if bicubic { (cubic, 2.0) } else { (|x| (1.0 - x.abs()).max(0.0), 1.0) }
}

/// Resizes every row to `target` pixels, by the formulas of Pillow's `precompute_coeffs` and `normalize_coeffs_8bpc`.
fn resize_rows(image: &Plain, target: usize, bicubic: bool) -> Plain {
    let source = image[0].len();
    if source == target {
        return image.clone();
    }
    let scale = source as f64 / target as f64;
    let (filter, reach) = filter(bicubic);
    let support = reach * scale.max(1.0);
    let resize_row = |row: &Vec<[u8; 3]>| -> Vec<[u8; 3]> {
        (0..target)
            .map(|x| {
                let center = (x as f64 + 0.5) * scale;
                let first = ((center - support + 0.5) as i64).max(0) as usize;
                let end = ((center + support + 0.5) as usize).min(source);
                let weights: Vec<f64> =
                    (first..end).map(|at| filter((at as f64 - center + 0.5) * (1.0 / scale.max(1.0)))).collect();
                let sum: f64 = weights.iter().sum();
                let fixed: Vec<i64> = weights.iter().map(|w| (w / sum * 4_194_304.0).round() as i64).collect();
                [0, 1, 2].map(|c| {
                    let total: i64 = (first..end).map(|at| i64::from(row[at][c]) * fixed[at - first]).sum();
                    ((total + 2_097_152) >> 22).clamp(0, 255) as u8
                })
            })
            .collect()
    };
    image.iter().map(resize_row).collect()
}

/// Both passes, in the order that Pillow 13 chooses.
fn resize_plainly(image: &Plain, width: usize, height: usize, bicubic: bool) -> Plain {
    let across = |image: &Plain| transpose(&resize_rows(&transpose(image), height, bicubic));
    let saved_rows = image.len() as i64 - height as i64;
    let saved_columns = image[0].len() as i64 - width as i64;
    if saved_rows > 0 && saved_rows > 2 * saved_columns {
        resize_rows(&across(image), width, bicubic)
    } else {
        across(&resize_rows(image, width, bicubic))
    }
}

fn bytes(image: &Plain, part: CropBox) -> Vec<u8> {
    let rows = image[part.top..part.top + part.height].iter();
    rows.flat_map(|row| row[part.left..part.left + part.width].concat()).collect()
}

/// The random numbers of a sample.
fn draws(seed: u64, epoch: u64, index: u64) -> RandomStream {
    RandomStream::new(seed, "draws", epoch, index)
}

/// A box inside `width` × `height` from four fractions.
fn inside(width: usize, height: usize, [a, b, c, d]: [f64; 4]) -> CropBox {
    let (left, top) = ((a * width as f64) as usize, (b * height as f64) as usize);
    let length = |fraction: f64, room: usize| 1 + (fraction * room as f64) as usize;
    CropBox { left, top, width: length(c, width - left - 1), height: length(d, height - top - 1) }
}

proptest! {
    #[test]
    fn resize_equals_its_plain_twin(
        (width, height, to_width, to_height) in (1usize..90, 1usize..90, 1usize..90, 1usize..90),
        crop in prop::array::uniform4(0.0..1.0f64),
        part in prop::array::uniform4(0.0..1.0f64),
        seed in 0usize..1000,
        bicubic: bool,
    ) {
        let image = noise(width, height, seed);
        let crop = inside(width, height, crop);
        let part = inside(to_width, to_height, part);
        let expected = bytes(&resize_plainly(&plain(&image, crop), to_width, to_height, bicubic), part);
        let resampling = if bicubic { Resampling::Bicubic } else { Resampling::Bilinear };
        let crop_resize = CropResize { crop, full: (to_width, to_height), part, resampling };
        let mut out = vec![0; part.width * part.height * 3];
        Resizer::new().resize_part(&image, &crop_resize, &mut out);
        prop_assert_eq!(out, expected);
    }

    /// Every square of an image with margins, compared with a pixel-by-pixel computation.
    #[test]
    fn squares_of_padded_images(
        size in 1usize..20, margin in 0usize..20, index in 0u64..1000, flip: bool, reflects: bool,
    ) {
        let padding = margin % size;
        let padding_mode = if reflects { PaddingMode::Reflect } else { PaddingMode::Constant };
        let transform = RandomCrop { size, padding, padding_mode, resampling: Resampling::Bilinear };
        transform.check().unwrap();
        let image = noise(size, size, index as usize);
        let crop = transform.draw(&mut draws(5, 1, index));
        prop_assert!(crop.left.max(crop.top) <= 2 * padding && (crop.width, crop.height) == (size, size));
        let mut canvas = Canvas::new(image.clone());
        transform.cut(&mut canvas, crop);
        let flips = RandomHorizontalFlip { probability: f64::from(u8::from(flip)) };
        flips.apply(&mut canvas, &mut draws(5, 1, index));
        for (at, &byte) in canvas.image().pixels().iter().enumerate() {
            let y = at / 3 / size;
            let x = at / 3 % size;
            let channel = at % 3;
            let x = if flip { size - 1 - x } else { x };
            let x = (x + crop.left).wrapping_sub(padding);
            let y = (y + crop.top).wrapping_sub(padding);
            // numpy.pad(mode="reflect")
            let mirrored = |at: usize| match (at as isize).unsigned_abs() {
                inside if inside < size => inside,
                beyond => 2 * (size - 1) - beyond,
            };
            let (x, y) = if reflects { (mirrored(x), mirrored(y)) } else { (x, y) };
            let expected = if x < size && y < size { image.pixels()[(y * size + x) * 3 + channel] } else { 0 };
            prop_assert_eq!(byte, expected);
        }
    }

    /// Crops lie inside the image; if the first draws fit (nearly always here), area and ratio are within their
    /// limits.
    #[test]
    fn crops_are_within_limits(width in 40usize..400, height in 40usize..400, index in 0u64..1000) {
        let transform = RandomResizedCrop::new(8);
        let crop = transform.draw(&mut draws(1, 2, index), width, height);
        prop_assert!(crop.fits(width, height));
        let area = (crop.width * crop.height) as f64 / (width * height) as f64;
        let ratio = crop.width as f64 / crop.height as f64;
        prop_assert!((0.06..=1.0).contains(&area) && (0.7..1.43).contains(&ratio), "{:?} {} {}", crop, area, ratio);
        prop_assert_eq!(crop, transform.draw(&mut draws(1, 2, index), width, height));
    }
}

/// The draws follow torchvision's distribution: uniform area, flips at the requested rate.
#[test]
fn draws_have_the_right_means() {
    let transform = RandomResizedCrop::new(8);
    let draw = |seed, epoch, index| transform.draw(&mut draws(seed, epoch, index), 500, 500);
    let n = 4000;
    let crops: Vec<CropBox> = (0..n).map(|index| draw(3, 1, index)).collect();
    let mean = |f: &dyn Fn(&CropBox) -> f64| crops.iter().map(f).sum::<f64>() / n as f64;
    // Crops of nearly the whole area fit only if they are nearly square, so the mean lies below (0.08 + 1) / 2.
    // torchvision 0.28 has 0.478 (six runs of as many draws: 0.471 to 0.484), with the crops' centres in the middle.
    let area = mean(&|crop| (crop.width * crop.height) as f64 / 250_000.0);
    assert!((area - 0.478).abs() < 0.015, "{area}");
    for center in [mean(&|c| (2 * c.left + c.width) as f64 / 2.0), mean(&|c| (2 * c.top + c.height) as f64 / 2.0)] {
        assert!((center - 250.0).abs() < 4.0, "{center}");
    }
    let flip = RandomHorizontalFlip { probability: 0.5 };
    let flips = (0..n).filter(|&index| flip.draw(&mut draws(3, 1, index))).count();
    assert!(flips.abs_diff(n as usize / 2) < 130, "{flips}");
    assert!(draw(0, 0, 0) != draw(1, 0, 0) && draw(0, 0, 0) != draw(0, 1, 0) && draw(0, 0, 0) != draw(0, 0, 1));
}

/// Half of the images in the first epoch, the others in the next, and so on; any two images alternate independently.
#[test]
fn alternating_flips() {
    let flipped =
        |epoch| -> Vec<bool> { (0..1000).map(|index| AlternatingFlip.draw(&draws(3, epoch, index))).collect() };
    let first = flipped(0);
    assert!(first.iter().filter(|flips| **flips).count().abs_diff(500) < 80);
    let second: Vec<bool> = first.iter().map(|flips| !flips).collect();
    assert_eq!((flipped(1), flipped(2), flipped(7)), (second.clone(), first, second));
    let list =
        TrainTransform::empty(3).then(EvalTransform { resize: 3, ..EvalTransform::new(3) }).then(AlternatingFlip);
    assert_eq!(list.to_string(), "resize_center_crop size=3 resize=3; alternating_flip");
    let of_epoch = |epoch| {
        let mut canvas = Canvas::new(noise(3, 3, 1));
        list.apply(&mut canvas, 5, epoch, 0);
        canvas.image().clone()
    };
    let mut mirrored = Canvas::new(of_epoch(0));
    RandomHorizontalFlip { probability: 1.0 }.apply(&mut mirrored, &mut draws(0, 0, 0));
    assert!(of_epoch(1) == *mirrored.image() && of_epoch(2) == of_epoch(0));
}

/// airbench's views: the image, moved by a pixel down to the right and up to the left, and the mirror images of all three.
#[test]
fn views_of_an_image() {
    let image = Image::new(4, 4, (0..48).collect()).unwrap();
    let found = EvalCrop::views("flip+shift").unwrap().into_iter().map(|crop| {
        let mut view = ImageRegion::default();
        let mut pixels = vec![0; 48];
        view.whole(|to: &mut Image| {
            to.clone_from(&image);
            Ok::<(), enmasse_image::ImageError>(())
        })
        .unwrap();
        let transform = EvalTransform { resize: 4, ..EvalTransform::new(4) };
        transform.check_crop(crop).unwrap();
        transform.apply_to_region(&mut view, &mut Canvas::default(), crop, &mut pixels).unwrap();
        (crop.weight(), pixels.iter().step_by(3).map(|byte| byte / 3).collect::<Vec<u8>>())
    });
    let of = |weight: f64, rows: [u8; 4], columns: [u8; 4]| {
        (weight, rows.iter().flat_map(|row| columns.map(|column| row * 4 + column)).collect::<Vec<u8>>())
    };
    let expected = [
        of(2.0, [0, 1, 2, 3], [0, 1, 2, 3]),
        of(2.0, [0, 1, 2, 3], [3, 2, 1, 0]),
        of(1.0, [1, 0, 1, 2], [1, 0, 1, 2]),
        of(1.0, [1, 0, 1, 2], [2, 1, 0, 1]),
        of(1.0, [1, 2, 3, 2], [1, 2, 3, 2]),
        of(1.0, [1, 2, 3, 2], [2, 3, 2, 1]),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    assert_eq!(EvalCrop::views("flip").unwrap().len(), 2);
    assert_eq!(EvalCrop::views("shift"), None);
    let one = EvalCrop::views("flip+shift").unwrap()[2];
    assert!(EvalTransform { resize: 1, ..EvalTransform::new(1) }.check_crop(one).is_err());
}

/// Margins of 4: nine equally likely places along each side; draws depend on seed, epoch and index.
#[test]
fn squares_lie_anywhere_in_the_margins() {
    let transform =
        RandomCrop { size: 32, padding: 4, padding_mode: PaddingMode::Constant, resampling: Resampling::Bilinear };
    let draw = |seed, epoch, index| transform.draw(&mut draws(seed, epoch, index));
    let n = 4500;
    let mut counts = [[0usize; 9]; 2];
    for crop in (0..n).map(|index| draw(3, 1, index)) {
        counts[0][crop.left] += 1;
        counts[1][crop.top] += 1;
    }
    assert!(counts.as_flattened().iter().all(|count| count.abs_diff(n as usize / 9) < 100), "{counts:?}");
    let all = |seed, epoch| (0..20).map(|index| draw(seed, epoch, index)).collect::<Vec<_>>();
    assert!(all(0, 0) == all(0, 0) && all(0, 0) != all(1, 0) && all(0, 0) != all(0, 1));
}

#[test]
fn images_of_the_right_size_are_copied() {
    let image = noise(32, 32, 5);
    let mut resizer = Resizer::new();
    let mut out = vec![0; 32 * 32 * 3];
    EvalTransform { resize: 32, ..EvalTransform::new(32) }.fit(&image, &mut resizer, &mut out);
    assert_eq!(out, image.pixels());
    let mut canvas = Canvas::new(image.clone());
    canvas.resize(CropBox::whole(32, 32), 32, 32);
    assert_eq!(canvas.image(), &image);
    TrainTransform::crop_and_flip(32, &Crop::None { resize: 32 }, Resampling::Bilinear, 0.0).apply(
        &mut canvas,
        0,
        0,
        0,
    );
    assert_eq!(canvas.image(), &image);
}

#[test]
fn default_resize_is_in_proportion() {
    let check = |size, resize| assert_eq!(EvalTransform::new(size).resize, resize);
    check(224, 256);
    check(64, 73);
    check(32, 37);
    check(128, 146);
}

/// The lengths that timm and torchvision resize to.
#[test]
fn a_share_of_the_resized_image() {
    let check = |size, crop_pct, resize| assert_eq!(EvalTransform::new(size).cropped(crop_pct).resize, resize);
    check(224, 0.875, 256);
    check(224, 0.9, 248);
    check(240, 0.882, 272);
    check(224, 224.0 / 232.0, 232);
    check(236, 236.0 / 255.0, 255);
    check(32, 1.0, 32);
}

/// Extremely long images need no memory beyond the result's.
#[test]
fn elongated_images() {
    let mut out = vec![0; 64 * 64 * 3];
    for (width, height) in [(60_000, 1), (1, 60_000), (1, 1)] {
        EvalTransform::new(64).fit(&noise(width, height, 1), &mut Resizer::new(), &mut out);
    }
}
