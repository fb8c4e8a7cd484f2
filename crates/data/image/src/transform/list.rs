//! The list of transforms applied to training images.

use std::fmt;
use std::sync::Arc;

use enmasse_tensor::RandomStream;

use super::check_size;
use crate::{
    Canvas, CropResize, EvalTransform, ImageError, ImageRegion, Mixing, PaddingMode, RandomCrop, RandomHorizontalFlip,
    RandomResizedCrop, RegionRequest, Resampling, Transform,
};

/// For training: transforms applied in order; the last one leaves a square, which may be mixed with that of another sample. Its
/// text names all of them.
///
/// ```
/// use enmasse_image::{PaddingMode, RandomCrop, RandomHorizontalFlip, Resampling, TrainTransform};
/// let list = TrainTransform::empty(32)
///     .then(RandomCrop { size: 32, padding: 4, padding_mode: PaddingMode::Constant, resampling: Resampling::Bilinear })
///     .then(RandomHorizontalFlip { probability: 0.5 });
/// assert_eq!(list.to_string(), "random_crop size=32 padding=4; random_horizontal_flip probability=0.5");
/// ```
#[derive(Clone)]
pub struct TrainTransform {
    size: usize,
    steps: Vec<Step>,
    mixing: Option<Mixing>,
}

#[derive(Clone)]
struct Step {
    key: String,
    /// The purpose of its random numbers.
    purpose: String,
    transform: Arc<dyn Transform>,
}

impl TrainTransform {
    /// RandomResizedCrop to `size` × `size` and flips, with torchvision's defaults.
    pub fn new(size: usize) -> Self {
        Self::empty(size).then(RandomResizedCrop::new(size)).then(RandomHorizontalFlip { probability: 0.5 })
    }

    /// Squares of `size` by `crop`, resized by a filter, then flips with probability `flip` unless that is 0.
    pub fn crop_and_flip(size: usize, crop: &Crop, resampling: Resampling, flip: f64) -> Self {
        let squares = crop.add_to(Self::empty(size), resampling);
        if flip == 0.0 { squares } else { squares.then(RandomHorizontalFlip { probability: flip }) }
    }

    /// An empty list, for transforms that turn images into squares of `size` pixels.
    pub fn empty(size: usize) -> Self {
        TrainTransform { size, steps: Vec::new(), mixing: None }
    }

    /// Appends `transform`, whose random numbers are drawn under its name.
    pub fn then(self, transform: impl Transform + 'static) -> Self {
        let key = transform.name().to_owned();
        self.then_keyed(&key, transform)
    }

    /// Appends `transform`, whose random numbers are drawn under `key`: for a transform that occurs twice.
    pub fn then_keyed(mut self, key: &str, transform: impl Transform + 'static) -> Self {
        let (key, purpose) = (key.to_owned(), format!("augment {key}"));
        self.steps.push(Step { key, purpose, transform: Arc::new(transform) });
        self
    }

    /// Mixes the results in pairs, after all transforms. A loader does that; [`apply`](Self::apply) has only one image.
    pub fn mixed(self, mixing: Mixing) -> Self {
        TrainTransform { mixing: Some(mixing), ..self }
    }

    /// How results are mixed, if they are.
    pub fn mixing(&self) -> Option<Mixing> {
        self.mixing
    }

    /// Edge of the square result, in pixels.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Checks the parameters, and that no two transforms draw the same random numbers.
    ///
    /// # Errors
    /// A parameter is invalid, or two transforms would draw the same random numbers.
    pub fn check(&self) -> Result<(), ImageError> {
        check_size(self.size)?;
        self.mixing.map_or(Ok(()), |mixing| mixing.check())?;
        for (number, step) in self.steps.iter().enumerate() {
            step.transform.check()?;
            if self.steps[..number].iter().any(|earlier| earlier.key == step.key) {
                return Err(ImageError::Setting(format!(
                    "two transforms draw under the key {}: give one of them another (then_keyed)",
                    step.key
                )));
            }
        }
        Ok(())
    }

    /// Transforms sample `index` in `epoch`: a function of these and `seed`.
    pub fn apply(&self, canvas: &mut Canvas, seed: u64, epoch: u64, index: u64) {
        apply(&self.steps, canvas, seed, epoch, index);
    }

    /// Mixes the results of two samples in `epoch`, of which `index` is the first: a function of these and `seed`. Returns the
    /// share of its own that each keeps, from 0 to 1.
    pub fn mix(&self, images: [&mut [u8]; 2], seed: u64, epoch: u64, index: u64) -> f64 {
        let Some(mixing) = self.mixing else { return 1.0 };
        let mixture = mixing.draw(&mut RandomStream::new(seed, "mixed pictures", epoch, index), self.size);
        mixture.apply(images, self.size);
        mixture.share(self.size)
    }

    /// What the transforms need of an image of `width` × `height`, for one sample: a function of (seed, epoch, index).
    pub fn wanted(&self, sample: (u64, u64, u64), width: usize, height: usize) -> RegionRequest {
        let crop_resize = self.crop_resize(sample, width, height);
        crop_resize.map_or_else(|| RegionRequest::whole(width, height), |crop_resize| crop_resize.wanted())
    }

    /// The same as [`apply`](Self::apply) for the image of `view`, which holds at least what is [`wanted`](Self::wanted).
    /// Writes the square to `out`.
    ///
    /// # Errors
    /// The transforms leave other dimensions. `out` is as before then.
    pub fn apply_to_region(
        &self,
        view: &mut ImageRegion,
        canvas: &mut Canvas,
        sample: (u64, u64, u64),
        out: &mut [u8],
    ) -> Result<(), ImageError> {
        let (width, height) = (view.width, view.height);
        let is_square =
            |(CropResize { part, .. }, _): &(CropResize, bool)| (part.width, part.height) == (self.size, self.size);
        if let Some((crop_resize, flipped)) = self.direct(sample, width, height).filter(is_square) {
            canvas.crop_resize_to(view, (&crop_resize, flipped), out);
            return Ok(());
        }
        let rest = match self.crop_resize(sample, width, height) {
            Some(crop_resize) => {
                canvas.crop_resize(view, &crop_resize);
                &self.steps[1..]
            }
            None => {
                canvas.take(view);
                &self.steps[..]
            }
        };
        let (seed, epoch, index) = sample;
        apply(rest, canvas, seed, epoch, index);
        let result = canvas.copy_square(self.size, out);
        canvas.give_back(view);
        result
    }

    /// The first step for an image of `width` × `height`, if it does nothing but cut out a part and resize it.
    fn crop_resize(&self, sample: (u64, u64, u64), width: usize, height: usize) -> Option<CropResize> {
        let Step { purpose, transform, .. } = self.steps.first()?;
        let (seed, epoch, index) = sample;
        transform.crop_resize(&mut RandomStream::new(seed, purpose, epoch, index), width, height)
    }

    /// What all steps do to an image of `width` × `height`, and whether they flip the result, if they do nothing but cut
    /// out a part, resize it, and flip it: then one pass makes the result, without a canvas.
    fn direct(&self, sample: (u64, u64, u64), width: usize, height: usize) -> Option<(CropResize, bool)> {
        let (seed, epoch, index) = sample;
        let crop_resize = self.crop_resize(sample, width, height)?;
        let mut flipped = false;
        for Step { purpose, transform, .. } in &self.steps[1..] {
            flipped ^= transform.flips(&mut RandomStream::new(seed, purpose, epoch, index))?;
        }
        Some((crop_resize, flipped))
    }
}

fn apply(steps: &[Step], canvas: &mut Canvas, seed: u64, epoch: u64, index: u64) {
    for Step { purpose, transform, .. } in steps {
        transform.apply(canvas, &mut RandomStream::new(seed, purpose, epoch, index));
    }
}

/// How training images become squares.
#[derive(Clone, Debug, PartialEq)]
pub enum Crop {
    /// [`RandomResizedCrop`].
    Resized {
        /// Least and largest fraction of the image's area that a crop covers.
        scale: (f64, f64),
        /// Least and largest width / height of a crop.
        ratio: (f64, f64),
    },
    /// [`RandomCrop`].
    Padded {
        /// Width of the margins, in pixels; less than the size.
        padding: usize,
        /// What lies in the margins.
        mode: PaddingMode,
    },
    /// Nothing random: like [`EvalTransform`] with this `resize`.
    None {
        /// Length to which the image's shorter side is resized.
        resize: usize,
    },
}

impl Crop {
    /// `list`, followed by this crop.
    fn add_to(&self, list: TrainTransform, resampling: Resampling) -> TrainTransform {
        let size = list.size();
        match *self {
            Crop::Resized { scale, ratio } => list.then(RandomResizedCrop { size, scale, ratio, resampling }),
            Crop::Padded { padding, mode } => list.then(RandomCrop { size, padding, padding_mode: mode, resampling }),
            Crop::None { resize } => list.then(EvalTransform { resize, resampling, ..EvalTransform::new(size) }),
        }
    }
}

impl fmt::Display for TrainTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Step { key, transform, .. }) in self.steps.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            let own = if key == transform.name() { String::new() } else { format!("{key}: ") };
            let parameters = transform.parameters();
            let gap = if parameters.is_empty() { "" } else { " " };
            write!(f, "{separator}{own}{}{gap}{parameters}", transform.name())?;
        }
        if let Some(Mixing { mixup_alpha, cutmix_alpha }) = self.mixing {
            let separator = if self.steps.is_empty() { "" } else { "; " };
            write!(f, "{separator}mixed mixup_alpha={mixup_alpha} cutmix_alpha={cutmix_alpha}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for TrainTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pixels by {self}", self.size)
    }
}
