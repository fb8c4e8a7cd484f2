//! Images of every coding that the encoder has, with contents drawn from a number.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

/// Samplings of the differences of colour. Those with a 4 are written scan by scan.
pub const SAMPLINGS: [SamplingFactor; 8] = [
    SamplingFactor::F_1_1,
    SamplingFactor::F_2_1,
    SamplingFactor::F_1_2,
    SamplingFactor::F_2_2,
    SamplingFactor::F_4_1,
    SamplingFactor::F_4_2,
    SamplingFactor::F_1_4,
    SamplingFactor::F_2_4,
];

/// Images that are compared with Pillow.
pub const NUMBER: usize = 120;

/// Damaged images that are compared with Pillow.
pub const NUMBER_DAMAGED: usize = 360;

/// A damaged image: changed bits, bytes that are missing, repeated or overwritten, and markers that are lost or other ones. The
/// end marker stays where it is, since what Pillow makes of images without it depends on how many bits it has loaded.
pub fn damaged(number: usize) -> Vec<u8> {
    let mut bytes = Coding::of(number % NUMBER).encode();
    let mut state = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut draw = |from: usize, to: usize| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        from + (state >> 33) as usize % (to - from).max(1)
    };
    let is_marker = |pair: &[u8]| pair[0] == 0xFF && !matches!(pair[1], 0x00 | 0xFF);
    let scan = bytes.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap() + 2;
    let end = bytes.len() - 2;
    let markers: Vec<usize> = (4..end).filter(|&at| is_marker(&bytes[at..at + 2])).collect();
    let at = draw(scan, end);
    let until = (at + draw(1, 40)).min(end);
    match number / 2 % 9 {
        0 => bytes[at] ^= 1 << draw(0, 8),
        1 => (0..20).for_each(|_| bytes[draw(scan, end)] ^= 1 << draw(0, 8)),
        2 => bytes[at..until].fill(0),
        3 => drop(bytes.drain(at..until)),
        4 => drop(bytes.splice(at..at, bytes[at..until].to_vec())),
        5 => drop(bytes.splice(at..at, [0xFF, [0x00, 0xD0, 0xD3, 0xD9, 0xE1, 0xFF][draw(0, 6)]])),
        6 => bytes[markers[draw(0, markers.len())]] ^= 1 << draw(0, 8),
        7 => bytes[markers[draw(0, markers.len())] + 1] ^= 1 << draw(0, 8),
        _ => bytes.truncate(draw(scan / 2, at - 40)),
    }
    bytes
}

/// How an image is written.
#[derive(Clone, Copy, Debug)]
pub struct Coding {
    pub width: u16,
    pub height: u16,
    pub color: ColorType,
    pub sampling: SamplingFactor,
    pub progressive: bool,
    /// With tables of its own, and a scan for each component.
    pub optimized: bool,
    /// MCUs between restart markers; 0 for none.
    pub restarts: u16,
    pub quality: u8,
}

impl Coding {
    /// The coding that `number` stands for.
    pub fn of(number: usize) -> Self {
        let mixed = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let pick = |place: u32, base: usize| (mixed >> (8 + 6 * place)) % base;
        let restarts = [0, 0, 1, 3, 16][pick(6, 5)];
        Coding {
            width: 1 + pick(0, 120) as u16,
            height: 1 + pick(1, 90) as u16,
            color: match number {
                _ if number % 9 == 8 => ColorType::Luma,
                _ if number % 13 == 12 => ColorType::Cmyk,
                _ if number % 17 == 16 => ColorType::CmykAsYcck,
                _ => ColorType::Rgb,
            },
            sampling: SAMPLINGS[number % SAMPLINGS.len()],
            progressive: pick(4, 3) == 0,
            // The encoder's own tables do not count what restarts add.
            optimized: pick(5, 3) == 0 && restarts == 0,
            restarts,
            quality: [20, 75, 90, 98][pick(7, 4)],
        }
    }

    /// The file. Its contents are smooth colours, edges and some noise.
    pub fn encode(&self) -> Vec<u8> {
        let (width, height) = (usize::from(self.width), usize::from(self.height));
        let channels = match self.color {
            ColorType::Luma => 1,
            ColorType::Rgb => 3,
            _ => 4,
        };
        let mut pixels = Vec::with_capacity(width * height * channels);
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let noise = (x * 31 + y * 17 + x * y * 7) % 23;
            let inside =
                (2 * x).abs_diff(width).pow(2) + (2 * y).abs_diff(height).pow(2) < width.min(height).pow(2) / 2;
            let third = if inside { 230 } else { 20 + y % 64 };
            let colors = [128 + (x * 5 + y * 2) % 100, x * 200 / width + noise, third, 255 - (x * 3 + y * 4) % 90];
            pixels.extend(colors[..channels].iter().map(|&color| color as u8));
        }
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, self.quality);
        encoder.set_sampling_factor(self.sampling);
        encoder.set_progressive(self.progressive);
        encoder.set_optimized_huffman_tables(self.optimized);
        if self.restarts > 0 {
            encoder.set_restart_interval(self.restarts);
        }
        encoder.encode(&pixels, self.width, self.height, self.color).unwrap();
        bytes
    }
}
