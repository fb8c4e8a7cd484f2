//! Operations that move pixels: affine maps, rotation, perspective. What comes from outside the image is black.
//!
//! The bytes are those of torchvision's functions of the same names on PIL images. That is Pillow's `Image.transform`, whose order of
//! operations is kept, since it decides which of two pixels is the nearest.

use std::fmt;

use super::Canvas;
use crate::Image;

/// The colour of a place between pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interpolation {
    /// That of the pixel around it.
    Nearest,
    /// The mean of the four nearest pixels, weighted by their distances.
    Bilinear,
}

impl fmt::Display for Interpolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Interpolation::Nearest => "nearest",
            Interpolation::Bilinear => "bilinear",
        })
    }
}

/// An affine map of an image, by the parameters of torchvision's `affine`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Degrees by which the image turns clockwise.
    pub angle: f64,
    /// Pixels by which it moves to the right and down.
    pub translate: (f64, f64),
    /// Its size in proportion to what it was.
    pub scale: f64,
    /// Degrees of the shear along the x axis and along the y axis.
    pub shear: (f64, f64),
    /// The point that turning, scaling and shearing keep in place; `None` for the middle.
    pub center: Option<(f64, f64)>,
}

impl Default for Affine {
    fn default() -> Self {
        Affine { angle: 0.0, translate: (0.0, 0.0), scale: 1.0, shear: (0.0, 0.0), center: None }
    }
}

impl Affine {
    /// The map from the new image to the previous one, of `width` × `height` pixels (torchvision's
    /// `_get_inverse_affine_matrix`).
    fn inverse(&self, width: usize, height: usize) -> [f64; 6] {
        let Affine { angle, translate, scale, shear, center } = *self;
        let turn = angle.to_radians();
        let x = shear.0.to_radians();
        let y = shear.1.to_radians();
        let (cx, cy) = center.unwrap_or((width as f64 * 0.5, height as f64 * 0.5));
        let a = (turn - y).cos() / y.cos();
        let b = -(turn - y).cos() * x.tan() / y.cos() - turn.sin();
        let c = (turn - y).sin() / y.cos();
        let d = -(turn - y).sin() * x.tan() / y.cos() + turn.cos();
        let mut map = [d, -b, 0.0, -c, a, 0.0].map(|entry| entry / scale);
        let (left, top) = (-cx - translate.0, -cy - translate.1);
        map[2] += map[0] * left + map[1] * top;
        map[5] += map[3] * left + map[4] * top;
        map[2] += cx;
        map[5] += cy;
        map
    }
}

impl Canvas {
    /// Maps the image by `affine`. Its dimensions stay.
    pub fn affine(&mut self, affine: &Affine, interpolation: Interpolation) {
        let map = affine.inverse(self.image().width(), self.image().height());
        self.transform(map, interpolation);
    }

    /// Turns the image about its middle by `angle` degrees, counterclockwise. Its dimensions stay.
    pub fn rotate(&mut self, angle: f64, interpolation: Interpolation) {
        let cx = self.image().width() as f64 / 2.0;
        let cy = self.image().height() as f64 / 2.0;
        let angle = -angle.rem_euclid(360.0).to_radians();
        // Right angles are exact.
        let rounded = |number: f64| (number * 1e15).round_ties_even() / 1e15;
        let cos = rounded(angle.cos());
        let sin = rounded(angle.sin());
        let minus_sin = rounded(-angle.sin());
        let (x, y) = (cos * -cx + sin * -cy, minus_sin * -cx + cos * -cy);
        self.transform([cos, sin, x + cx, minus_sin, cos, y + cy], interpolation);
    }

    /// Moves the corners of the image (top left, top right, bottom right, bottom left) to `corners`, each as x and y, and its
    /// other pixels in perspective. The image stays as it is if there is no such map, because corners coincide.
    pub fn perspective(&mut self, corners: [[f64; 2]; 4], interpolation: Interpolation) {
        let (width, height) = (self.image().width(), self.image().height());
        let Some([a, b, c, d, e, f, g, h]) = perspective_map(corners, width, height) else { return };
        self.replace(width, height, |before, _, after| {
            paint(before, after, interpolation, |x, y| {
                let depth = g * x + h * y + 1.0;
                ((a * x + b * y + c) / depth, (d * x + e * y + f) / depth)
            });
        });
    }

    /// Takes each pixel from where `map` leads.
    fn transform(&mut self, map: [f64; 6], interpolation: Interpolation) {
        let (width, height) = (self.image().width(), self.image().height());
        let [a, b, c, d, e, f] = map;
        self.replace(width, height, |before, _, after| match interpolation {
            Interpolation::Nearest => paint_nearest(before, after, map),
            Interpolation::Bilinear => {
                paint(before, after, interpolation, |x, y| (a * x + b * y + c, d * x + e * y + f));
            }
        });
    }
}

/// Pillow's affine transform of the nearest pixel: in 16.16 fixed point if the map needs both coordinates and its numbers fit.
fn paint_nearest(before: &Image, after: &mut [u8], [a, b, c, d, e, f]: [f64; 6]) {
    let (width, height) = (before.width() as f64, before.height() as f64);
    let fits = |x: f64, y: f64| (x * a + y * b + c).abs() < 32768.0 && (x * d + y * e + f).abs() < 32768.0;
    let is_fixed = fits(0.0, 0.0) && fits(width, height) && fits(0.0, height) && fits(width, 0.0);
    if (b != 0.0 || d != 0.0) && is_fixed {
        let fixed = |number: f64| (number * 65536.0 + 0.5).floor() as i64;
        let start = (fixed(c + a * 0.5 + b * 0.5), fixed(f + d * 0.5 + e * 0.5));
        let (column, row) = ((fixed(a), fixed(d)), (fixed(b), fixed(e)));
        let add = |at: (i64, i64), step: (i64, i64)| (at.0 + step.0, at.1 + step.1);
        step_through(before, after, start, |at| add(at, column), |at| add(at, row), |(x, y)| (x >> 16, y >> 16));
    } else {
        let start = (c + b * 0.5 + a * 0.5, f + e * 0.5 + d * 0.5);
        let add = |at: (f64, f64), step: (f64, f64)| (at.0 + step.0, at.1 + step.1);
        let whole = |(x, y): (f64, f64)| (x.floor() as i64, y.floor() as i64);
        step_through(before, after, start, |at| add(at, (a, d)), |at| add(at, (b, e)), whole);
    }
}

/// Copies pixels: `start` leads to that of the first one, `column` and `row` go on from one to the next.
fn step_through<P: Copy>(
    before: &Image,
    after: &mut [u8],
    mut start: P,
    column: impl Fn(P) -> P,
    row: impl Fn(P) -> P,
    pixel_at: impl Fn(P) -> (i64, i64),
) {
    let (width, height) = (before.width(), before.height());
    let (pixels, _) = before.pixels().as_chunks::<3>();
    for line in after.chunks_exact_mut(width * 3) {
        let mut at = start;
        for pixel in line.as_chunks_mut::<3>().0 {
            // A negative number is larger than any length as well.
            let (x, y) = pixel_at(at);
            if (x as u64) < width as u64 && (y as u64) < height as u64 {
                *pixel = pixels[y as usize * width + x as usize];
            }
            at = column(at);
        }
        start = row(start);
    }
}

/// Paints each pixel with the colour at `source` of its middle.
fn paint(before: &Image, after: &mut [u8], interpolation: Interpolation, source: impl Fn(f64, f64) -> (f64, f64)) {
    let (width, height) = (before.width(), before.height());
    let (pixels, _) = before.pixels().as_chunks::<3>();
    for (number, line) in after.chunks_exact_mut(width * 3).enumerate() {
        for (place, pixel) in line.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let (x, y) = source(place as f64 + 0.5, number as f64 + 0.5);
            if !(x >= 0.0 && x < width as f64 && y >= 0.0 && y < height as f64) {
                continue;
            }
            *pixel = match interpolation {
                Interpolation::Nearest => pixels[y as usize * width + x as usize],
                Interpolation::Bilinear => {
                    let (left, right, x) = neighbours(x, width);
                    let (top, bottom, y) = neighbours(y, height);
                    let corners = [(top, left), (top, right), (bottom, left), (bottom, right)];
                    let [a, b, c, d] = corners.map(|(row, column)| pixels[row * width + column]);
                    let between = |from: f64, to: f64, part: f64| from + (to - from) * part;
                    std::array::from_fn(|channel| {
                        let [a, b, c, d] = [a, b, c, d].map(|pixel| f64::from(pixel[channel]));
                        between(between(a, b, x), between(c, d, x), y) as u8
                    })
                }
            };
        }
    }
}

/// The pixels to both sides of a place along a side of `length` pixels, and how far it is from the first to the second.
fn neighbours(place: f64, length: usize) -> (usize, usize, f64) {
    let place = place - 0.5;
    let first = place.floor();
    (first.max(0.0) as usize, ((first + 1.0) as usize).min(length - 1), place - first)
}

/// The coefficients by which places of the new image lead to the previous one, of `width` × `height`: the solution of eight
/// equations, by elimination. `None` without one.
fn perspective_map(corners: [[f64; 2]; 4], width: usize, height: usize) -> Option<[f64; 8]> {
    let (right, bottom) = (width as f64 - 1.0, height as f64 - 1.0);
    let starts = [[0.0, 0.0], [right, 0.0], [right, bottom], [0.0, bottom]];
    let mut equations: [[f64; 9]; 8] = std::array::from_fn(|number| {
        let [x, y] = corners[number / 2];
        let start = starts[number / 2][number % 2];
        match number % 2 {
            0 => [x, y, 1.0, 0.0, 0.0, 0.0, -start * x, -start * y, start],
            _ => [0.0, 0.0, 0.0, x, y, 1.0, -start * x, -start * y, start],
        }
    });
    for column in 0..8 {
        let size = |row: &usize| equations[*row][column].abs();
        let pivot = (column..8).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        equations.swap(column, pivot);
        let lead = equations[column];
        if lead[column].abs() < 1e-9 {
            return None;
        }
        for (number, equation) in equations.iter_mut().enumerate() {
            if number != column {
                let factor = equation[column] / lead[column];
                equation.iter_mut().zip(lead).for_each(|(entry, pivot)| *entry -= factor * pivot);
            }
        }
    }
    // torchvision keeps the solution in f32.
    Some(std::array::from_fn(|number| f64::from((equations[number][8] / equations[number][number]) as f32)))
}
