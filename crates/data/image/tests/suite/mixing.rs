//! Mixed images compared with torchvision's (`fixtures/mix.py`), and what is drawn.

use std::collections::BTreeMap;

use enmasse_image::{Mixing, Mixture, RandomResizedCrop, RandomStream, TrainTransform};

use crate::fixtures::{crc32, fixture};

const BOTH: Mixing = Mixing { mixup_alpha: 0.8, cutmix_alpha: 1.0 };
const CUTMIX: Mixing = Mixing { mixup_alpha: 0.0, ..BOTH };

/// Pseudo-random bytes, shifted to the right by some bits, and a number added.
fn image(size: usize, shift: u32, base: u8) -> Vec<u8> {
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24 >> shift) as u8 + base
    };
    (0..size * size * 3).map(|_| byte()).collect()
}

#[test]
fn mixtures_are_those_of_torchvision() {
    let text = std::fs::read_to_string(fixture("mix.txt")).unwrap();
    let mut kinds = BTreeMap::<&str, usize>::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<f64>().unwrap();
        let size = number(1) as usize;
        let share = number(2);
        let expected = &words[words.len() - 2..];
        let mixture = match words[0] {
            "mixup" => Mixture::mixup(share),
            _ => Mixture::cutmix(share, (number(3) as usize, number(4) as usize), size),
        };
        let (mut first, mut second) = (image(size, 0, 0), image(size, 2, 30));
        mixture.apply([&mut first, &mut second], size);
        // torchvision's targets are floats of 32 bits.
        let own = expected[0].parse::<f64>().unwrap();
        assert!((mixture.share(size) - own).abs() < 1e-7, "{line}: {}", mixture.share(size));
        assert_eq!(crc32(&[first, second].concat()).to_string(), expected[1], "{line}");
        *kinds.entry(words[0]).or_default() += 1;
    }
    assert!(kinds["mixup"] >= 32 && kinds["cutmix"] >= 50, "{kinds:?}");
}

/// Beta(a, a) has the mean 1/2 and the variance 1 / (4 (2 a + 1)). CutMix keeps more, since rectangles are cut at the edges.
#[test]
fn shares_have_their_distribution() {
    const DRAWS: u64 = 8000;
    let lambdas = |mixing: Mixing| -> Vec<f64> {
        let draw = |index| mixing.draw(&mut RandomStream::new(7, "test", 0, index), 64).share(64);
        (0..DRAWS).map(draw).collect()
    };
    let mean = |lambdas: &[f64]| lambdas.iter().sum::<f64>() / DRAWS as f64;
    for alpha in [0.2, 1.0, 4.0] {
        let lambdas = lambdas(Mixing { mixup_alpha: alpha, cutmix_alpha: 0.0 });
        let variance = lambdas.iter().map(|share| (share - 0.5).powi(2)).sum::<f64>() / DRAWS as f64;
        let expected = 0.25 / (2.0 * alpha + 1.0);
        assert!((mean(&lambdas) - 0.5).abs() < 0.02, "{alpha}: {}", mean(&lambdas));
        assert!((variance / expected - 1.0).abs() < 0.06, "{alpha}: {variance}, not {expected}");
    }
    assert!((0.55..0.75).contains(&mean(&lambdas(CUTMIX))));
    // One of both kinds, each as often: only CutMix's lambdas are those of areas.
    let is_area = |index| {
        let mut images = [vec![0; 64 * 64 * 3], vec![255; 64 * 64 * 3]];
        let [first, second] = &mut images;
        BOTH.draw(&mut RandomStream::new(7, "test", 1, index), 64).apply([first, second], 64);
        images[0].contains(&255)
    };
    let areas = (0..2000).filter(|&index| is_area(index)).count();
    assert!(areas.abs_diff(1000) < 120, "{areas} of 2000");
}

#[test]
fn the_list_names_it() {
    let check = |list: TrainTransform, expected: &str| assert_eq!(list.mixed(BOTH).to_string(), expected);
    check(TrainTransform::empty(8), "mixed mixup_alpha=0.8 cutmix_alpha=1");
    let crop = TrainTransform::empty(8).then(RandomResizedCrop::new(8));
    let expected = format!("{crop}; mixed mixup_alpha=0.8 cutmix_alpha=1");
    check(crop, &expected);
}
