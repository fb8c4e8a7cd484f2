//! torchvision's RandomRotation, RandomAffine and RandomPerspective. What comes from outside the image is black.

use enmasse_tensor::RandomStream;

use super::{check_probability, check_range};
use crate::{Affine, Canvas, ImageError, Interpolation, Transform};

/// RandomRotation: turns the image about its middle.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomRotation {
    /// Least and largest angle, counterclockwise; sampled uniformly.
    pub degrees: (f64, f64),
    /// torchvision's default is [`Interpolation::Nearest`].
    pub interpolation: Interpolation,
}

impl RandomRotation {
    /// By up to `degrees` in both directions.
    pub fn new(degrees: f64) -> Self {
        RandomRotation { degrees: (-degrees, degrees), interpolation: Interpolation::Nearest }
    }
}

impl Transform for RandomRotation {
    fn name(&self) -> &str {
        "random_rotation"
    }

    fn parameters(&self) -> String {
        format!("degrees={}..{} interpolation={}", self.degrees.0, self.degrees.1, self.interpolation)
    }

    fn check(&self) -> Result<(), ImageError> {
        check_range("the degrees of random_rotation", self.degrees, -360.0, 360.0)
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        canvas.rotate(random.uniform(self.degrees.0, self.degrees.1), self.interpolation);
    }
}

/// RandomAffine: turns, moves, scales and shears the image.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomAffine {
    /// Least and largest angle, clockwise.
    pub degrees: (f64, f64),
    /// Largest movements to the sides, and up and down, as fractions of width and height.
    pub translate: (f64, f64),
    /// Least and largest factor of the image's size.
    pub scale: (f64, f64),
    /// Least and largest angle of the shear along the x axis, and along the y axis.
    pub shear: ((f64, f64), (f64, f64)),
    /// torchvision's default is [`Interpolation::Nearest`].
    pub interpolation: Interpolation,
}

impl RandomAffine {
    /// Turns by up to `degrees` in both directions, and changes nothing else.
    pub fn new(degrees: f64) -> Self {
        RandomAffine {
            degrees: (-degrees, degrees),
            translate: (0.0, 0.0),
            scale: (1.0, 1.0),
            shear: ((0.0, 0.0), (0.0, 0.0)),
            interpolation: Interpolation::Nearest,
        }
    }

    /// The map of an image of `width` × `height`. It moves by whole pixels.
    pub fn draw(&self, random: &mut RandomStream, width: usize, height: usize) -> Affine {
        let RandomAffine { degrees, translate, scale, shear, .. } = *self;
        let mut up_to = |fraction: f64, length: usize| {
            let most = fraction * length as f64;
            random.uniform(-most, most).round_ties_even()
        };
        let translate = (up_to(translate.0, width), up_to(translate.1, height));
        let mut between = |(low, high): (f64, f64)| random.uniform(low, high);
        Affine {
            angle: between(degrees),
            translate,
            scale: between(scale),
            shear: (between(shear.0), between(shear.1)),
            center: None,
        }
    }
}

impl Transform for RandomAffine {
    fn name(&self) -> &str {
        "random_affine"
    }

    fn parameters(&self) -> String {
        let RandomAffine { degrees, translate, scale, shear: (x, y), interpolation } = self;
        format!(
            "degrees={}..{} translate={},{} scale={}..{} shear={}..{},{}..{} interpolation={interpolation}",
            degrees.0, degrees.1, translate.0, translate.1, scale.0, scale.1, x.0, x.1, y.0, y.1
        )
    }

    fn check(&self) -> Result<(), ImageError> {
        check_range("the degrees of random_affine", self.degrees, -360.0, 360.0)?;
        for fraction in [self.translate.0, self.translate.1] {
            check_range("the translate of random_affine", (fraction, fraction), 0.0, 1.0)?;
        }
        check_range("the scale of random_affine", self.scale, 0.001, 1000.0)?;
        for shear in [self.shear.0, self.shear.1] {
            check_range("the shear of random_affine", shear, -89.0, 89.0)?;
        }
        Ok(())
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        let map = self.draw(random, canvas.image().width(), canvas.image().height());
        canvas.affine(&map, self.interpolation);
    }
}

/// RandomPerspective: moves the corners of some images towards the middle.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomPerspective {
    /// The probability of changing an image.
    pub probability: f64,
    /// Largest movement of a corner in each direction, as a fraction of half the image.
    pub distortion_scale: f64,
    /// torchvision's default is [`Interpolation::Bilinear`].
    pub interpolation: Interpolation,
}

impl RandomPerspective {
    /// With torchvision's defaults.
    pub fn new(probability: f64) -> Self {
        RandomPerspective { probability, distortion_scale: 0.5, interpolation: Interpolation::Bilinear }
    }

    /// The new places of the corners of an image of `width` × `height`, in the order of [`Canvas::perspective`].
    pub fn draw(&self, random: &mut RandomStream, width: usize, height: usize) -> [[f64; 2]; 4] {
        let mut movement = |length: usize| {
            let most = (self.distortion_scale * (length / 2) as f64) as u64;
            random.below(most + 1) as f64
        };
        let mut corner = |is_right: bool, is_bottom: bool| {
            let (x, y) = (movement(width), movement(height));
            let (right, bottom) = (width as f64 - 1.0, height as f64 - 1.0);
            [if is_right { right - x } else { x }, if is_bottom { bottom - y } else { y }]
        };
        [corner(false, false), corner(true, false), corner(true, true), corner(false, true)]
    }
}

impl Transform for RandomPerspective {
    fn name(&self) -> &str {
        "random_perspective"
    }

    fn parameters(&self) -> String {
        let RandomPerspective { probability, distortion_scale, interpolation } = self;
        format!("probability={probability} distortion_scale={distortion_scale} interpolation={interpolation}")
    }

    fn check(&self) -> Result<(), ImageError> {
        check_probability("a perspective", self.probability)?;
        let scale = self.distortion_scale;
        check_range("the distortion_scale of random_perspective", (scale, scale), 0.0, 1.0)
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        if random.unit() < self.probability {
            let corners = self.draw(random, canvas.image().width(), canvas.image().height());
            canvas.perspective(corners, self.interpolation);
        }
    }
}
