//! One image: several copies of one figure, random in place, size, turn and colour, on a cluttered background.

use enmasse_tensor::RandomStream;

use super::figure::{Figure, Point};

type Color = [f32; 3];

/// Side lengths in pixels.
const SIDES: std::ops::Range<u64> = 80..161;

/// Least distance between the colours of figure and background; the greatest possible is 442.
const CONTRAST: f32 = 150.0;

/// RGB bytes, width and height of image `number` of `figure`.
pub(super) fn draw(figure: Figure, number: u64) -> (Vec<u8>, usize, usize) {
    let mut random = RandomStream::new(0, "shapes picture", number, figure as u64);
    let [width, height] = [(); 2].map(|()| (SIDES.start + random.below(SIDES.end - SIDES.start)) as usize);
    let background = Background::new(&mut random, width, height);
    let paint = Paint::new(&mut random, &background, width, height);
    let clutter: Vec<Blot> = (0..random.below(5)).map(|_| Blot::new(&mut random, width, height)).collect();
    let lattice = Lattice::new(&mut random, figure, width, height);
    let mut grain = Grain { state: random.next_u64(), amplitude: random.uniform(1.0, 10.0) as f32 };
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let p = [x as f32 + 0.5, y as f32 + 0.5];
            let mut color = background.at(p);
            for blot in &clutter {
                color = mix(color, blot.color, blot.coverage(p));
            }
            let coverage = lattice.coverage(p);
            if coverage > 0.0 {
                color = mix(color, paint.at(p), coverage);
            }
            pixels.extend(grain.add(color));
        }
    }
    (pixels, width, height)
}

fn uniform(random: &mut RandomStream, low: f32, high: f32) -> f32 {
    random.uniform(f64::from(low), f64::from(high)) as f32
}

fn color(random: &mut RandomStream) -> Color {
    [(); 3].map(|()| uniform(random, 0.0, 255.0))
}

/// A direction without sine and cosine, whose last bits differ between libraries: a point in the disc, scaled.
fn direction(random: &mut RandomStream) -> Point {
    loop {
        let (x, y) = (uniform(random, -1.0, 1.0), uniform(random, -1.0, 1.0));
        let length = (x * x + y * y).sqrt();
        if (0.1..=1.0).contains(&length) {
            return [x / length, y / length];
        }
    }
}

fn mix(from: Color, to: Color, part: f32) -> Color {
    [0, 1, 2].map(|c| from[c] + (to[c] - from[c]) * part)
}

/// The fraction of a pixel inside an outline at `distance` pixels.
fn cover(distance: f32) -> f32 {
    (0.5 - distance).clamp(0.0, 1.0)
}

/// Figures in the cells of a lattice; the image is a window onto it, with two cells along its shorter side.
///
/// Any crop in training shows a figure or a large part of one, and evaluation's crop shows a whole figure. The window's
/// origin varies by half a cell, so that no single pixel is predictable: a linear classifier relies on exactly that.
struct Lattice {
    figure: Figure,
    columns: usize,
    /// Edge of a cell, in pixels.
    cell: f32,
    /// The window's origin in the lattice, in pixels.
    start: Point,
    placed: Vec<Placed>,
}

/// One figure at its place in the lattice.
struct Placed {
    center: Point,
    radius: f32,
    turn: Point,
}

impl Lattice {
    fn new(random: &mut RandomStream, figure: Figure, width: usize, height: usize) -> Self {
        let cell = width.min(height) as f32 / 2.0;
        let start = [(); 2].map(|()| cell * uniform(random, 0.75, 1.25));
        let [columns, rows] = [width, height].map(|side| (side as f32 / cell) as usize + 3);
        let placed = (0..columns * rows).map(|i| {
            let radius = cell * uniform(random, 0.38, 0.48);
            let room = cell / 2.0 - radius;
            let mut place = |at: usize| (at as f32 + 0.5) * cell + uniform(random, -room, room);
            let center = [place(i % columns), place(i / columns)];
            // Up to about twenty degrees in either direction.
            let slope = uniform(random, -0.36, 0.36);
            let length = (1.0 + slope * slope).sqrt();
            Placed { center, radius, turn: [1.0 / length, slope / length] }
        });
        let placed = placed.collect();
        Lattice { figure, columns, cell, start, placed }
    }

    /// The fraction of the pixel at `p` that a figure covers. No figure extends beyond its cell.
    fn coverage(&self, p: Point) -> f32 {
        let p = [p[0] + self.start[0], p[1] + self.start[1]];
        let (column, row) = ((p[0] / self.cell) as usize, (p[1] / self.cell) as usize);
        let Placed { center, radius, turn: [cos, sin] } = self.placed[row * self.columns + column];
        let (x, y) = ((p[0] - center[0]) / radius, (p[1] - center[1]) / radius);
        cover(self.figure.distance([x * cos + y * sin, y * cos - x * sin]) * radius)
    }
}

/// A value that goes from 0 to 1 across the image, in some direction.
struct Ramp {
    start: Point,
    step: Point,
}

impl Ramp {
    fn new(random: &mut RandomStream, width: usize, height: usize) -> Self {
        let [x, y] = direction(random);
        let length = width.max(height) as f32 * uniform(random, 0.5, 1.0);
        Ramp { start: [width as f32 / 2.0, height as f32 / 2.0], step: [x / length, y / length] }
    }

    fn at(&self, p: Point) -> f32 {
        let along = (p[0] - self.start[0]) * self.step[0] + (p[1] - self.start[1]) * self.step[1];
        (along + 0.5).clamp(0.0, 1.0)
    }
}

/// The figure's colour: a gradient between two shades that both stand out from the background.
struct Paint {
    colors: [Color; 2],
    ramp: Ramp,
}

impl Paint {
    fn new(random: &mut RandomStream, background: &Background, width: usize, height: usize) -> Self {
        let stands_out = |color: &Color| {
            let squared = |other: &Color| (0..3).map(|c| (color[c] - other[c]) * (color[c] - other[c])).sum::<f32>();
            let light = color[0] + color[1] + color[2] >= 3.0 * 128.0;
            light && background.colors.iter().all(|other| squared(other) >= CONTRAST * CONTRAST)
        };
        let mut draw_until = |draw: &dyn Fn(Color) -> Color| loop {
            let drawn = draw(color(random));
            if stands_out(&drawn) {
                return drawn;
            }
        };
        let first = draw_until(&|drawn| drawn);
        let second = draw_until(&|drawn| mix(first, drawn, 0.35));
        Paint { colors: [first, second], ramp: Ramp::new(random, width, height) }
    }

    fn at(&self, p: Point) -> Color {
        mix(self.colors[0], self.colors[1], self.ramp.at(p))
    }
}

/// Two similar colours, and the pattern in which they alternate.
struct Background {
    colors: [Color; 2],
    pattern: Pattern,
}

enum Pattern {
    Ramp(Ramp),
    /// Stripes: the direction across them, in periods per pixel.
    Stripes(Point),
    /// Squares of this many pixels.
    Checks(f32),
    /// Smooth noise: values at corners of cells of this many pixels, `columns` of them per row.
    Clouds {
        values: Vec<f32>,
        columns: usize,
        cell: f32,
    },
}

impl Background {
    fn new(random: &mut RandomStream, width: usize, height: usize) -> Self {
        let dim = |color: Color| color.map(|value| value * 0.45);
        let first = dim(color(random));
        let second = mix(first, dim(color(random)), uniform(random, 0.05, 0.25));
        let pattern = match random.below(4) {
            0 => Pattern::Ramp(Ramp::new(random, width, height)),
            1 => {
                let [x, y] = direction(random);
                let period = uniform(random, 6.0, 30.0);
                Pattern::Stripes([x / period, y / period])
            }
            2 => Pattern::Checks(uniform(random, 4.0, 20.0)),
            _ => {
                let cell = uniform(random, 6.0, 30.0);
                let corners = |side: usize| (side as f32 / cell) as usize + 2;
                let (columns, rows) = (corners(width), corners(height));
                let values = (0..columns * rows).map(|_| uniform(random, 0.0, 1.0)).collect();
                Pattern::Clouds { values, columns, cell }
            }
        };
        Background { colors: [first, second], pattern }
    }

    fn at(&self, p: Point) -> Color {
        let part = match &self.pattern {
            Pattern::Ramp(ramp) => ramp.at(p),
            Pattern::Stripes(across) => {
                let phase = p[0] * across[0] + p[1] * across[1];
                (4.0 * (phase - phase.floor() - 0.5).abs() - 0.5).clamp(0.0, 1.0)
            }
            Pattern::Checks(side) => ((p[0] / side) as i32 + (p[1] / side) as i32).rem_euclid(2) as f32,
            Pattern::Clouds { values, columns, cell } => {
                let (x, y) = (p[0] / cell, p[1] / cell);
                let (column, row) = (x as usize, y as usize);
                let smooth = |t: f32| t * t * (3.0 - 2.0 * t);
                let (right, down) = (smooth(x - column as f32), smooth(y - row as f32));
                let along = |row: usize| {
                    let at = row * columns + column;
                    values[at] + (values[at + 1] - values[at]) * right
                };
                along(row) + (along(row + 1) - along(row)) * down
            }
        };
        mix(self.colors[0], self.colors[1], part)
    }
}

/// Clutter: a short line or a dot.
struct Blot {
    color: Color,
    start: Point,
    line: Point,
    radius: f32,
}

impl Blot {
    fn new(random: &mut RandomStream, width: usize, height: usize) -> Self {
        let start = [uniform(random, 0.0, width as f32), uniform(random, 0.0, height as f32)];
        let [x, y] = direction(random);
        let length = if random.below(2) == 0 { 0.0 } else { uniform(random, 5.0, 40.0) };
        let radius = if length > 0.0 { uniform(random, 0.5, 1.6) } else { uniform(random, 1.0, 5.0) };
        Blot { color: color(random), start, line: [x * length, y * length], radius }
    }

    fn coverage(&self, p: Point) -> f32 {
        let to = [p[0] - self.start[0], p[1] - self.start[1]];
        let reach = self.radius + 1.0;
        let beyond = |c: usize| to[c] < self.line[c].min(0.0) - reach || to[c] > self.line[c].max(0.0) + reach;
        if beyond(0) || beyond(1) {
            return 0.0;
        }
        let [x, y] = self.line;
        let along = ((to[0] * x + to[1] * y) / (x * x + y * y).max(1e-6)).clamp(0.0, 1.0);
        let (dx, dy) = (to[0] - x * along, to[1] - y * along);
        cover((dx * dx + dy * dy).sqrt() - self.radius)
    }
}

/// Sensor noise: a value for each byte.
struct Grain {
    state: u64,
    amplitude: f32,
}

impl Grain {
    fn add(&mut self, color: Color) -> [u8; 3] {
        // Knuth's linear congruential generator; three of its upper bytes are random enough for noise.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bytes = self.state.to_be_bytes();
        // The cast saturates.
        [0, 1, 2].map(|c| (color[c] + (f32::from(bytes[c]) - 127.5) / 127.5 * self.amplitude + 0.5) as u8)
    }
}
