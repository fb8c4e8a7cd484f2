//! Augmentation compared with torchvision's on PIL images (`fixtures/augment.py`), its draws, and its limits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::str::FromStr;

use crate::fixtures::{crc32, fixture};
use enmasse_image::{
    Affine, AugMix, AutoAugment, AutoAugmentPolicy, AutoOperation, Canvas, ColorJitter, ErasingValue, GaussianBlur,
    Image, Interpolation, Jitter, Normalization, RandAugment, RandomAffine, RandomErasing, RandomGrayscale,
    RandomPerspective, RandomRotation, RandomStream, RandomVerticalFlip, Transform, TrivialAugmentWide,
};

/// The lines of `augment.txt` of one kind, as words.
fn cases(kind: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(fixture("augment.txt")).unwrap();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let cases: Vec<_> =
        text.lines().map(words).filter(|words| words[0] == kind).map(|words| words[1..].to_vec()).collect();
    assert!(!cases.is_empty());
    cases
}

fn cifar_10() -> Normalization {
    Normalization { mean: vec![0.4914, 0.4822, 0.4465], std: vec![0.2470, 0.2435, 0.2616] }
}

fn number<T: FromStr<Err: Debug>>(word: &str) -> T {
    word.parse().unwrap()
}

/// Pseudo-random bytes, shifted to the right by some bits, and a number added.
fn image(width: usize, height: usize, shift: u32, base: u8) -> Image {
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24 >> shift) as u8 + base
    };
    Image::new(width, height, (0..width * height * 3).map(|_| byte()).collect()).unwrap()
}

/// The arguments of [`image`] in the script.
const SOURCES: [(usize, usize, u32, u8); 12] = [
    (1, 1, 0, 0),
    (1, 4, 0, 0),
    (5, 1, 0, 0),
    (2, 2, 0, 0),
    (3, 3, 0, 0),
    (17, 13, 0, 0),
    (16, 16, 0, 0),
    (48, 64, 0, 0),
    (130, 9, 0, 0),
    (17, 13, 2, 30),
    (40, 40, 4, 200),
    (9, 9, 8, 77),
];

fn stream(index: u64) -> RandomStream {
    RandomStream::new(7, "test", 0, index)
}

/// Calls the function that torchvision gives this name.
fn call(canvas: &mut Canvas, name: &str, arguments: &[String]) {
    let given: Vec<f64> = arguments.iter().filter_map(|word| word.parse().ok()).collect();
    let is_bilinear = arguments.last().is_some_and(|word| word == "bilinear");
    let interpolation = if is_bilinear { Interpolation::Bilinear } else { Interpolation::Nearest };
    match (name, &given[..]) {
        ("adjust_brightness", &[factor]) => canvas.adjust_brightness(factor),
        ("adjust_contrast", &[factor]) => canvas.adjust_contrast(factor),
        ("adjust_saturation", &[factor]) => canvas.adjust_saturation(factor),
        ("adjust_sharpness", &[factor]) => canvas.adjust_sharpness(factor),
        ("adjust_hue", &[factor]) => canvas.adjust_hue(factor),
        ("posterize", &[bits]) => canvas.posterize(bits as u32),
        ("solarize", &[threshold]) => canvas.solarize(threshold),
        ("rgb_to_grayscale", []) => canvas.rgb_to_grayscale(),
        ("autocontrast", []) => canvas.autocontrast(),
        ("equalize", []) => canvas.equalize(),
        ("invert", []) => canvas.invert(),
        ("vflip", []) => RandomVerticalFlip { probability: 1.0 }.apply(canvas, &mut stream(0)),
        ("rotate", &[angle]) => canvas.rotate(angle, interpolation),
        ("affine", &[angle, x, y, scale, shear_x, shear_y]) => {
            let affine = Affine { angle, translate: (x, y), scale, shear: (shear_x, shear_y), center: None };
            canvas.affine(&affine, interpolation);
        }
        ("perspective", corners) => {
            let last = [canvas.image().width(), canvas.image().height()].map(|length| (length - 1) as f64);
            let (corners, _) = corners.as_chunks::<2>();
            let places = corners.iter().map(|corner| [0, 1].map(|axis| (corner[axis] * last[axis]).trunc()));
            canvas.perspective(places.collect::<Vec<_>>().try_into().unwrap(), interpolation);
        }
        (name, &[magnitude]) => {
            let operation = AutoOperation::ALL.iter().find(|operation| format!("{operation:?}") == name).unwrap();
            operation.apply(canvas, magnitude, interpolation);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn operations_have_the_bytes_of_torchvision() {
    for case in cases("operation") {
        let [name, arguments @ .., expected] = &case[..] else { panic!("{case:?}") };
        let mut pixels = Vec::new();
        for (width, height, shift, base) in SOURCES {
            // Places that coincide have no perspective.
            if name != "perspective" || width.min(height) > 8 {
                let mut canvas = Canvas::new(image(width, height, shift, base));
                call(&mut canvas, name, arguments);
                pixels.extend_from_slice(canvas.image().pixels());
            }
        }
        assert_eq!(crc32(&pixels), number::<u32>(expected), "{name} {arguments:?}");
    }
}

/// The blur is computed in floats, in another order than torchvision's.
#[test]
fn blurs_differ_by_rounding_alone() {
    for case in cases("blur") {
        let [width, height, kernel_size, sigma, expected] = &case[..] else { panic!("{case:?}") };
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let expected: Vec<u8> = expected.as_bytes().chunks_exact(2).map(byte).collect();
        let mut canvas = Canvas::new(image(number(width), number(height), 0, 0));
        canvas.gaussian_blur(number(kernel_size), number(sigma));
        let found = canvas.image().pixels();
        let off: Vec<u8> = found.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).filter(|&d| d > 0).collect();
        assert!(found.len() == expected.len() && off.len() <= 1 && off.iter().all(|&d| d == 1), "{off:?} of {case:?}");
    }
}

/// A canvas may show images smaller than a kernel or a filter, and hold pixels of earlier ones.
#[test]
fn operations_depend_on_the_image_alone() {
    let mut used = Canvas::new(image(70, 50, 0, 0));
    for case in cases("operation") {
        let [name, arguments @ .., _] = &case[..] else { panic!("{case:?}") };
        for (width, height) in [(1, 1), (2, 9), (16, 16)] {
            let source = image(width, height, 0, 0);
            let mut fresh = Canvas::new(source.clone());
            used.replace(width, height, |_, _, after| after.copy_from_slice(source.pixels()));
            for canvas in [&mut fresh, &mut used] {
                call(canvas, name, arguments);
                canvas.gaussian_blur(9, 1.5);
                AugMix::default().apply(canvas, &mut stream(5));
            }
            assert_eq!(fresh.image(), used.image(), "{name} {arguments:?}");
        }
    }
}

type Draw<'a> = &'a dyn Fn(&mut RandomStream) -> Vec<(AutoOperation, f64)>;

/// The strengths of each operation in many draws, each once, as the bits of floats; and how often it is drawn with each sign.
type Drawn = (BTreeMap<String, BTreeSet<u64>>, BTreeMap<(String, bool), usize>);

fn drawn(draw: Draw) -> Drawn {
    let (mut magnitudes, mut counts) = Drawn::default();
    for (operation, magnitude) in (0..6000).flat_map(|index| draw(&mut stream(index))) {
        let name = format!("{operation:?}");
        magnitudes.entry(name.clone()).or_default().insert(magnitude.abs().to_bits());
        *counts.entry((name, magnitude < 0.0)).or_default() += 1;
    }
    (magnitudes, counts)
}

/// The last bit of torchvision's magnitudes depends on the width of a machine's vectors.
#[test]
fn magnitudes_are_those_of_torchvision() {
    let cases = cases("magnitude");
    let (rand, trivial) = (RandAugment::default(), TrivialAugmentWide::default());
    let mix = AugMix { severity: 10, ..AugMix::default() };
    let policies =
        [AutoAugmentPolicy::ImageNet, AutoAugmentPolicy::Cifar10, AutoAugmentPolicy::Svhn].map(AutoAugment::new);
    let of_policies =
        |random: &mut RandomStream| policies.iter().flat_map(|policy| policy.draw(random, 57, 33)).flatten().collect();
    let check = |method: &str, draw: Draw| {
        let (magnitudes, _) = drawn(draw);
        let expected: Vec<_> = cases.iter().filter(|case| case[0] == method).collect();
        assert_eq!(magnitudes.len(), expected.len(), "{method}");
        for case in expected {
            let found = magnitudes[&case[1]].iter().map(|&bits| f64::from_bits(bits));
            let (sum, most): (f64, f64) = (number(&case[3]), number(&case[4]));
            let near = |found: f64, expected: f64| (found - expected).abs() <= 1e-6 * expected;
            if method == "auto_augment" {
                // No policy has all of them.
                let is_step = |found: f64| (0..10).any(|step| near(found, most * f64::from(step) / 9.0));
                assert!(found.into_iter().all(|found| is_step(found) || case[1] == "Posterize"), "{case:?}");
                continue;
            }
            assert_eq!(found.clone().count(), number::<usize>(&case[2]), "{case:?}");
            assert!(near(found.clone().sum(), sum) && near(found.fold(0.0, f64::max), most), "{case:?}");
        }
    };
    check("rand_augment", &|random| vec![rand.draw(random, 57, 33)]);
    check("trivial_augment_wide", &|random| vec![trivial.draw(random)]);
    check("aug_mix", &|random| vec![mix.draw(random, 57, 33)]);
    check("auto_augment", &of_policies);
}

#[test]
fn operations_are_equally_frequent_and_their_signs_too() {
    let method = RandAugment::default();
    let (_, counts) = drawn(&|random| vec![method.draw(random, 32, 32)]);
    // Fourteen operations, of which nine have a sign.
    assert_eq!(counts.len(), 14 + 9);
    let signed: BTreeSet<_> = counts.keys().filter(|(_, is_negative)| *is_negative).map(|(name, _)| name).collect();
    for ((name, _), &count) in &counts {
        let expected = if signed.contains(name) { 6000 / 28 } else { 6000 / 14 };
        assert!(count.abs_diff(expected) < expected / 4, "{name}: {count}, not {expected}");
    }
}

/// How many of 4000 draws fulfil a condition.
fn share(condition: impl Fn(&mut RandomStream) -> bool) -> f64 {
    (0..4000).filter(|&index| condition(&mut stream(index))).count() as f64 / 4000.0
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 0.03, "{found}, not {expected}");
}

/// The first pair of the policy for CIFAR-10 is Invert with 0.1 and Contrast with 0.2; no other pair has both.
#[test]
fn policies_follow_their_probabilities() {
    let cifar = AutoAugment::new(AutoAugmentPolicy::Cifar10);
    let has = |random: &mut RandomStream, wanted: AutoOperation| {
        cifar.draw(random, 32, 32).into_iter().flatten().any(|(operation, _)| operation == wanted)
    };
    near(share(|random| has(random, AutoOperation::Invert)), (0.1 + 0.1) / 25.0);
    // Of the nine pairs with Equalize one has it twice.
    let once = 0.9 + 0.6 + 0.3 + 0.2 + 0.2 + 0.6 + 0.8;
    near(share(|random| has(random, AutoOperation::Equalize)), (once + 1.0 - 0.4 * 0.5 + 0.6 - 0.2 * 0.6) / 25.0);
}

#[test]
fn jitters_in_ranges_and_in_any_order() {
    let jitter = ColorJitter::new(0.4, 1.5, 0.0, 0.1);
    assert_eq!((jitter.brightness, jitter.contrast), ((0.6, 1.4), (0.0, 2.5)));
    let mut orders = BTreeMap::<Vec<char>, usize>::new();
    for index in 0..6000 {
        let changes: Vec<Jitter> = jitter.draw(&mut stream(index)).into_iter().flatten().collect();
        let order = changes.iter().map(|change| match *change {
            Jitter::Brightness(factor) if (0.6..1.4).contains(&factor) => 'b',
            Jitter::Contrast(factor) if (0.0..2.5).contains(&factor) => 'c',
            Jitter::Hue(factor) if (-0.1..0.1).contains(&factor) => 'h',
            other => panic!("{other:?}"),
        });
        *orders.entry(order.collect()).or_default() += 1;
    }
    assert!(orders.len() == 6 && orders.values().all(|count| count.abs_diff(1000) < 150), "{orders:?}");
}

#[test]
fn erases_as_much_as_it_says() {
    let erasing = RandomErasing::new(0.25, cifar_10());
    near(share(|random| erasing.draw(random, 32, 32).is_some()), 0.25);
    let all = RandomErasing { probability: 1.0, ..erasing.clone() };
    let mut areas = Vec::new();
    for index in 0..4000 {
        let part = all.draw(&mut stream(index), 64, 48).unwrap();
        assert!(part.fits(64, 48) && part.width < 64 && part.height < 48, "{part:?}");
        areas.push((part.width * part.height) as f64 / (64.0 * 48.0));
    }
    assert!(areas.iter().all(|area| (0.01..0.35).contains(area)));
    near(areas.iter().sum::<f64>() / 4000.0, (0.02 + 0.33) / 2.0);
    let whole = RandomErasing { scale: (1.0, 1.0), ..all.clone() };
    assert_eq!(whole.draw(&mut stream(1), 64, 48), None);

    let colors = |value, normalization| {
        let mut canvas = Canvas::new(image(20, 20, 8, 255));
        let erasing = RandomErasing { value, normalization, ..all.clone() };
        erasing.apply(&mut canvas, &mut stream(1));
        let (pixels, _) = canvas.image().pixels().as_chunks::<3>();
        pixels.iter().copied().filter(|pixel| *pixel != [255; 3]).collect::<Vec<_>>()
    };
    let mean = colors(ErasingValue::Mean, cifar_10());
    assert!(!mean.is_empty() && mean.iter().all(|pixel| *pixel == [125, 123, 114]), "{mean:?}");
    let drawn = colors(ErasingValue::Random, cifar_10());
    assert!(
        drawn.iter().any(|pixel| pixel[0] != pixel[1]) && drawn.iter().any(|pixel| *pixel != drawn[0]),
        "{drawn:?}"
    );
    let grey = colors(ErasingValue::Random, Normalization { mean: vec![0.1307], std: vec![0.3081] });
    assert!(grey.iter().all(|pixel| pixel[0] == pixel[1] && pixel[1] == pixel[2]), "{grey:?}");
}

#[test]
fn moves_within_its_limits() {
    let affine = RandomAffine {
        translate: (0.1, 0.5),
        scale: (0.5, 2.0),
        shear: ((-5.0, 5.0), (1.0, 2.0)),
        ..RandomAffine::new(30.0)
    };
    let perspective = RandomPerspective::new(1.0);
    for index in 0..2000 {
        let Affine { angle, translate, scale, shear, center } = affine.draw(&mut stream(index), 100, 21);
        assert!(angle.abs() <= 30.0 && translate.0.abs() <= 10.0 && translate.1.abs() <= 10.0 && center.is_none());
        assert!(translate.0 == translate.0.trunc() && translate.1 == translate.1.trunc());
        assert!((0.5..=2.0).contains(&scale) && shear.0.abs() <= 5.0 && (1.0..=2.0).contains(&shear.1));
        let corners = perspective.draw(&mut stream(index), 100, 21);
        let inside = |[x, y]: [f64; 2], left: f64, top: f64| {
            (left..=left + 25.0).contains(&x) && (top..=top + 5.0).contains(&y) && x == x.trunc() && y == y.trunc()
        };
        let starts = [(0.0, 0.0), (74.0, 0.0), (74.0, 15.0), (0.0, 15.0)];
        assert!(corners.iter().zip(starts).all(|(corner, (left, top))| inside(*corner, left, top)), "{corners:?}");
    }
    let source = image(9, 7, 0, 0);
    let unchanged = |change: &dyn Fn(&mut Canvas)| {
        let mut canvas = Canvas::new(source.clone());
        change(&mut canvas);
        assert_eq!(*canvas.image(), source);
    };
    unchanged(&|canvas| RandomRotation::new(0.0).apply(canvas, &mut stream(0)));
    unchanged(&|canvas| RandomAffine::new(0.0).apply(canvas, &mut stream(0)));
    unchanged(&|canvas| RandomPerspective::new(0.0).apply(canvas, &mut stream(0)));
    unchanged(&|canvas| RandomGrayscale { probability: 0.0 }.apply(canvas, &mut stream(0)));
    unchanged(&|canvas| GaussianBlur::new(9, 0.0).apply(canvas, &mut stream(0)));
    // Three corners in one place: there is no such map.
    unchanged(&|canvas| canvas.perspective([[3.0, 3.0]; 4], Interpolation::Bilinear));
}

#[test]
fn parameters_out_of_range() {
    let check = |transform: &dyn Transform, expected: &str| {
        let error = transform.check().unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    };
    let normalization = Normalization { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] };
    check(&RandomVerticalFlip { probability: -0.1 }, "a vertical flip probability of -0.1 is out of range");
    check(&RandomGrayscale { probability: f64::NAN }, "a grayscale probability of NaN is out of range");
    check(&GaussianBlur::new(224, 2.0), "a gaussian_blur probability of 2 is out of range");
    check(
        &GaussianBlur { kernel_size: 4, ..GaussianBlur::new(9, 1.0) },
        "a kernel_size of 4 is out of range: use an odd",
    );
    let sigma = GaussianBlur { sigma: (0.0, 1.0), ..GaussianBlur::new(9, 1.0) };
    check(
        &sigma,
        "the sigma of gaussian_blur, 0..1, is out of range: use finite numbers above 0, the smaller one first",
    );
    check(&ColorJitter::new(f64::INFINITY, 0.0, 0.0, 0.0), "the brightness of color_jitter, 0..inf, is out of range");
    let hue =
        "the hue of color_jitter, -0.6..0.6, is out of range: use numbers from -0.5 to 0.5, the smaller one first";
    check(&ColorJitter::new(0.1, 0.1, 0.1, 0.6), hue);
    check(&RandomRotation { degrees: (5.0, -5.0), ..RandomRotation::new(1.0) }, "5..-5, is out of range");
    check(
        &RandomAffine { translate: (0.0, 1.1), ..RandomAffine::new(1.0) },
        "the translate of random_affine, 1.1..1.1",
    );
    check(&RandomAffine { scale: (0.0, 1.0), ..RandomAffine::new(1.0) }, "use numbers from 0.001 to 1000");
    check(&RandomAffine { shear: ((0.0, 90.0), (0.0, 0.0)), ..RandomAffine::new(1.0) }, "use numbers from -89 to 89");
    check(&RandomPerspective { distortion_scale: 2.0, ..RandomPerspective::new(1.0) }, "from 0 to 1");
    check(&RandomErasing::new(1.1, normalization.clone()), "an erasing probability of 1.1 is out of range");
    check(&RandomErasing { scale: (0.5, 1.5), ..RandomErasing::new(1.0, normalization.clone()) }, "from 0 to 1");
    check(&RandomErasing { ratio: (0.0, 1.0), ..RandomErasing::new(1.0, normalization) }, "above 0");
    check(&RandAugment { num_ops: 0, ..RandAugment::default() }, "0 operations are out of range: use 1 to 100");
    check(&RandAugment { magnitude: 31, ..RandAugment::default() }, "a magnitude of 31 is out of range: use 0 to 30");
    check(&TrivialAugmentWide { num_magnitude_bins: 1, ..TrivialAugmentWide::default() }, "use 2 to 1000");
    check(&AugMix { severity: 11, ..AugMix::default() }, "a severity of 11 is out of range: use 1 to 10");
    check(&AugMix { mixture_width: 17, ..AugMix::default() }, "17 chains of 0 operations are out of range");
    check(&AugMix { alpha: 0.0, ..AugMix::default() }, "an alpha of 0 is out of range");
}
