//! Images that look alike: a small grey copy and a hash of 64 bits, which survive scaling and compression, and the search for
//! near ones.
//!
//! The hash is the "difference hash" of N. Krawetz ("Kind of Like That", 2013): whether the image, reduced to 9 x 8 greys, becomes
//! lighter from each pixel to the next one in its row. Smooth images have equal hashes by chance, so the greys are compared as well.

use std::collections::HashMap;

use enmasse_image::{CropBox, Image, Resizer};

const COLUMNS: usize = 9;
const ROWS: usize = 8;

/// An image whose reduced greys differ less than this has no perceptual hash: its bits would be noise, and any plain image near it.
const PLAIN: u8 = 16;

/// Two images look alike if their greys differ by at most so many levels on average, apart from a difference in brightness.
const LEVELS: i32 = 6;

/// What an image looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerceptualHash {
    bits: u64,
    greys: [u8; COLUMNS * ROWS],
}

impl PerceptualHash {
    /// The perceptual hash of an image; `None` if it is plain, or has no pixels.
    pub fn of(image: &Image, resizer: &mut Resizer) -> Option<Self> {
        if image.pixels().is_empty() {
            return None;
        }
        let mut reduced = [0; COLUMNS * ROWS * 3];
        let whole = CropBox::whole(image.width(), image.height());
        resizer.resize(image, whole, COLUMNS, ROWS, &mut reduced);
        // As in Pillow's convert("L"), from ITU-R 601-2.
        let luma = |place: usize| {
            let [red, green, blue] = [0, 1, 2].map(|channel| u32::from(reduced[place * 3 + channel]));
            ((red * 299 + green * 587 + blue * 114) / 1000) as u8
        };
        let greys: [u8; COLUMNS * ROWS] = std::array::from_fn(luma);
        let (darkest, lightest) = (greys.iter().min()?, greys.iter().max()?);
        if lightest - darkest < PLAIN {
            return None;
        }
        let steps = greys.chunks_exact(COLUMNS).flat_map(|row| row.windows(2));
        let bits = steps.fold(0, |bits, step| bits << 1 | u64::from(step[1] > step[0]));
        Some(PerceptualHash { bits, greys })
    }

    /// The number of bits in which the hashes differ; `None` if the greys differ more than those of images that look alike.
    fn distance(&self, other: &PerceptualHash) -> Option<u32> {
        let distance = (self.bits ^ other.bits).count_ones();
        if distance > Nearest::WITHIN {
            return None;
        }
        let sum = |greys: &[u8]| greys.iter().map(|&grey| i32::from(grey)).sum::<i32>();
        let pixels = (COLUMNS * ROWS) as i32;
        let (own, others) = (sum(&self.greys), sum(&other.greys));
        let pairs = self.greys.iter().zip(&other.greys);
        // Distances from the mean, times the number of pixels.
        let differences = pairs.map(|(&a, &b)| ((i32::from(a) - i32::from(b)) * pixels - own + others).abs());
        (differences.sum::<i32>() <= LEVELS * pixels * pixels).then_some(distance)
    }
}

/// Finds the nearest of many images: the one whose hash differs least, in at most [`Nearest::WITHIN`] bits.
///
/// The 64 bits are cut into one band more than may differ, so two near ones agree in at least one whole band: none is missed.
pub struct Nearest {
    /// Each with the number of its image.
    known: Vec<(PerceptualHash, usize)>,
    /// For each band, the places of those with these bits in it.
    bands: [HashMap<u64, Vec<u32>>; Self::BANDS],
}

impl Nearest {
    /// The hashes of images that look alike differ in at most so many of their 64 bits.
    pub const WITHIN: u32 = 4;
    const BANDS: usize = Self::WITHIN as usize + 1;

    /// Takes perceptual hashes, each with the number of its image.
    pub fn new(images: impl IntoIterator<Item = (PerceptualHash, usize)>) -> Self {
        let known: Vec<(PerceptualHash, usize)> = images.into_iter().collect();
        let mut bands: [HashMap<u64, Vec<u32>>; Self::BANDS] = Default::default();
        for (place, (hash, _)) in (0..).zip(&known) {
            for (number, band) in bands.iter_mut().enumerate() {
                band.entry(Self::band(hash.bits, number)).or_default().push(place);
            }
        }
        Nearest { known, bands }
    }

    /// The bits of a band.
    fn band(bits: u64, number: usize) -> u64 {
        let edge = |number: usize| number * 64 / Self::BANDS;
        let width = edge(number + 1) - edge(number);
        bits >> edge(number) & ((1 << width) - 1)
    }

    /// The nearest image that looks like this one; of several the first one.
    pub fn find(&self, hash: &PerceptualHash) -> Option<usize> {
        let bands = self.bands.iter().enumerate();
        let places = bands.filter_map(|(number, places)| places.get(&Self::band(hash.bits, number))).flatten();
        let found = places.filter_map(|&place| {
            let (known, number) = &self.known[place as usize];
            Some((known.distance(hash)?, *number))
        });
        found.min().map(|(_, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use enmasse_image::RandomStream;

    use super::*;

    fn image(width: usize, height: usize, shade: impl Fn(usize, usize) -> u8) -> Image {
        let pixels = (0..width * height).flat_map(|place| [shade(place % width, place / width); 3]).collect();
        Image::new(width, height, pixels).unwrap()
    }

    fn hash(image: &Image) -> Option<PerceptualHash> {
        PerceptualHash::of(image, &mut Resizer::default())
    }

    #[test]
    fn bits_are_steps_along_rows() {
        let check = |image: Image, expected: Option<u64>| {
            assert_eq!(hash(&image).map(|hash| hash.bits), expected, "{image:?}");
        };
        check(image(9, 8, |x, _| x as u8 * 20), Some(u64::MAX));
        check(image(9, 8, |x, _| 200 - x as u8 * 20), Some(0));
        check(image(9, 8, |x, y| if y == 7 { x as u8 * 20 } else { 200 - x as u8 * 20 }), Some(0xFF));
        check(image(90, 80, |x, _| x as u8), Some(u64::MAX));
        // Plain ones, of which the second has a step of 15 levels.
        check(image(5, 5, |_, _| 77), None);
        check(image(9, 8, |x, _| if x < 4 { 100 } else { 115 }), None);
        check(image(9, 8, |x, _| if x < 4 { 100 } else { 116 }), Some(0x1010_1010_1010_1010));
        check(Image::default(), None);
    }

    #[test]
    fn greys_decide_where_hashes_agree() {
        let ramp = |scale: usize, lift: u8| hash(&image(9, 8, |x, y| lift + (x * scale + y) as u8)).unwrap();
        let check = |scale: usize, lift: u8, expected: Option<u32>| {
            assert_eq!(ramp(8, 0).distance(&ramp(scale, lift)), expected, "{scale} {lift}");
        };
        check(8, 0, Some(0));
        // Brighter, of more contrast, of much more contrast.
        check(8, 90, Some(0));
        check(10, 20, Some(0));
        check(13, 0, None);
    }

    #[test]
    fn the_search_misses_none() {
        let mut random = RandomStream::new(5, "likeness", 0, 0);
        let of_bits = |bits: u64| PerceptualHash { bits, greys: [9; COLUMNS * ROWS] };
        let known: Vec<PerceptualHash> = (0..300).map(|_| of_bits(random.next_u64())).collect();
        let nearest = Nearest::new(known.iter().copied().zip(0..));
        let mut found = 0;
        for (number, hash) in known.iter().enumerate() {
            // Up to six bits are changed, at distances from each other that vary.
            for flips in 0..=6 {
                let flip = |bits: u64, flip: usize| bits ^ 1 << ((number * 7 + flip * (number % 9 + 1)) % 64);
                let changed = of_bits((0..flips).fold(hash.bits, flip));
                let plain =
                    known.iter().zip(0..).filter_map(|(other, number)| Some((other.distance(&changed)?, number)));
                let expected = plain.min().map(|(_, number)| number);
                assert_eq!(nearest.find(&changed), expected);
                found += usize::from(expected.is_some());
            }
        }
        assert_eq!(found, 300 * 5);
    }

    #[test]
    fn of_equal_ones_the_first_counts() {
        let of_bits = |bits: u64| PerceptualHash { bits, greys: [9; COLUMNS * ROWS] };
        let nearest = Nearest::new([(6, 3), (6, 4), (7, 5), (5, 6)].map(|(bits, number)| (of_bits(bits), number)));
        let check = |bits: u64, expected: Option<usize>| assert_eq!(nearest.find(&of_bits(bits)), expected);
        check(6, Some(3));
        check(4, Some(3));
        check(7, Some(5));
        check(0xF6, Some(3));
        check(0x1F6, None);
    }
}
