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

/// How an image is written.
#[derive(Clone, Copy, Debug)]
pub struct Coding {
    pub width: u16,
    pub height: u16,
    pub gray: bool,
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
            gray: number % 9 == 8,
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
        let channels = if self.gray { 1 } else { 3 };
        let mut pixels = Vec::with_capacity(width * height * channels);
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let noise = (x * 31 + y * 17 + x * y * 7) % 23;
            let inside =
                (2 * x).abs_diff(width).pow(2) + (2 * y).abs_diff(height).pow(2) < width.min(height).pow(2) / 2;
            let colors = [128 + (x * 5 + y * 2) % 100, x * 200 / width + noise, if inside { 230 } else { 20 + y % 64 }];
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
        let color = if self.gray { ColorType::Luma } else { ColorType::Rgb };
        encoder.encode(&pixels, self.width, self.height, color).unwrap();
        bytes
    }
}
