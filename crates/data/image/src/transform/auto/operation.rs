//! The operations among which automatic augmentation chooses, and how strong they are.

use crate::{Affine, Canvas, Interpolation};

/// An operation with one magnitude, by the name that the papers and torchvision give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoOperation {
    /// Changes nothing.
    Identity,
    /// Shears along the x axis by the arc tangent of the magnitude.
    ShearX,
    /// Shears along the y axis by the arc tangent of the magnitude.
    ShearY,
    /// Moves by whole pixels to the right.
    TranslateX,
    /// Moves by whole pixels down.
    TranslateY,
    /// Turns by degrees, counterclockwise.
    Rotate,
    /// [`Canvas::adjust_brightness`] by 1 + magnitude.
    Brightness,
    /// [`Canvas::adjust_saturation`] by 1 + magnitude.
    Color,
    /// [`Canvas::adjust_contrast`] by 1 + magnitude.
    Contrast,
    /// [`Canvas::adjust_sharpness`] by 1 + magnitude.
    Sharpness,
    /// [`Canvas::posterize`] to so many bits.
    Posterize,
    /// [`Canvas::solarize`] from this threshold up.
    Solarize,
    /// [`Canvas::autocontrast`].
    AutoContrast,
    /// [`Canvas::equalize`].
    Equalize,
    /// [`Canvas::invert`].
    Invert,
}

use AutoOperation::*;

/// The operations of RandAugment and TrivialAugment: all but the last.
pub(super) const DEFAULT: &[AutoOperation] = AutoOperation::ALL.split_at(AutoOperation::ALL.len() - 1).0;

impl AutoOperation {
    /// Every operation.
    pub const ALL: [AutoOperation; 15] = [
        Identity,
        ShearX,
        ShearY,
        TranslateX,
        TranslateY,
        Rotate,
        Brightness,
        Color,
        Contrast,
        Sharpness,
        Posterize,
        Solarize,
        AutoContrast,
        Equalize,
        Invert,
    ];

    /// Whether a magnitude may be negated.
    pub(super) fn is_signed(self) -> bool {
        match self {
            ShearX | ShearY | TranslateX | TranslateY | Rotate | Brightness | Color | Contrast | Sharpness => true,
            Identity | Posterize | Solarize | AutoContrast | Equalize | Invert => false,
        }
    }

    /// Changes the image as torchvision's `_apply_op` does.
    pub fn apply(self, canvas: &mut Canvas, magnitude: f64, interpolation: Interpolation) {
        let degrees = magnitude.atan().to_degrees();
        let corner = Some((0.0, 0.0));
        let affine = |affine: Affine, canvas: &mut Canvas| canvas.affine(&affine, interpolation);
        match self {
            Identity => {}
            ShearX => affine(Affine { shear: (degrees, 0.0), center: corner, ..Affine::default() }, canvas),
            ShearY => affine(Affine { shear: (0.0, degrees), center: corner, ..Affine::default() }, canvas),
            TranslateX => affine(Affine { translate: (magnitude.trunc(), 0.0), ..Affine::default() }, canvas),
            TranslateY => affine(Affine { translate: (0.0, magnitude.trunc()), ..Affine::default() }, canvas),
            Rotate => canvas.rotate(magnitude, interpolation),
            Brightness => canvas.adjust_brightness(1.0 + magnitude),
            Color => canvas.adjust_saturation(1.0 + magnitude),
            Contrast => canvas.adjust_contrast(1.0 + magnitude),
            Sharpness => canvas.adjust_sharpness(1.0 + magnitude),
            Posterize => canvas.posterize(magnitude as u32),
            Solarize => canvas.solarize(magnitude),
            AutoContrast => canvas.autocontrast(),
            Equalize => canvas.equalize(),
            Invert => canvas.invert(),
        }
    }
}

/// The magnitudes of a method (torchvision's `_augmentation_space`): each grows from nothing to this in equal steps.
#[derive(Debug)]
pub(super) struct Space {
    /// Of a shear.
    pub shear: f32,
    /// Of a movement along a side of so many pixels.
    pub translate: fn(usize) -> f64,
    /// Degrees of a turn.
    pub rotate: f32,
    /// Of brightness, colour, contrast and sharpness.
    pub enhance: f32,
    /// The most and the fewest bits that are left.
    pub posterize: (f32, f32),
}

impl Space {
    /// Number `bin` of the `bins` magnitudes of an operation on an image of `width` × `height`, without its sign. The arithmetic is
    /// torchvision's, in f32: it decides at which whole pixel a movement ends.
    pub fn magnitude(&self, operation: AutoOperation, bin: usize, bins: usize, width: usize, height: usize) -> f64 {
        let linear = |start: f32, end: f32| f64::from(linspace(start, end, bin, bins));
        match operation {
            ShearX | ShearY => linear(0.0, self.shear),
            TranslateX => linear(0.0, (self.translate)(width) as f32),
            TranslateY => linear(0.0, (self.translate)(height) as f32),
            Rotate => linear(0.0, self.rotate),
            Brightness | Color | Contrast | Sharpness => linear(0.0, self.enhance),
            Posterize => {
                let (most, fewest) = self.posterize;
                let bins_per_bit = (bins.max(2) - 1) as f32 / (most - fewest);
                f64::from(most - (bin as f32 / bins_per_bit).round_ties_even())
            }
            Solarize => linear(255.0, 0.0),
            Identity | AutoContrast | Equalize | Invert => 0.0,
        }
    }
}

/// `torch.linspace(start, end, bins)[bin]`: the second half is counted from the end.
fn linspace(start: f32, end: f32, bin: usize, bins: usize) -> f32 {
    let step = (end - start) / (bins.max(2) - 1) as f32;
    if bin < bins / 2 { start + step * bin as f32 } else { end - step * (bins - 1 - bin) as f32 }
}
