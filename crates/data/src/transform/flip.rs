//! torchvision's RandomHorizontalFlip.

use enmasse_tensor::RandomStream;

use crate::{Canvas, DataError, Transform};

/// RandomHorizontalFlip: mirrors some pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomHorizontalFlip {
    /// The probability of mirroring a picture.
    pub probability: f64,
}

impl RandomHorizontalFlip {
    /// Whether a picture is mirrored.
    pub fn draw(&self, random: &mut RandomStream) -> bool {
        random.unit() < self.probability
    }
}

impl Transform for RandomHorizontalFlip {
    fn name(&self) -> &str {
        "random_horizontal_flip"
    }

    fn parameters(&self) -> String {
        format!("probability={}", self.probability)
    }

    fn check(&self) -> Result<(), DataError> {
        if !(0.0..=1.0).contains(&self.probability) {
            return Err(DataError::Setting(format!(
                "a flip probability of {} is out of range: use one in [0, 1]",
                self.probability
            )));
        }
        Ok(())
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        if self.draw(random) {
            let row_bytes = canvas.picture().width() * 3;
            for row in canvas.pixels_mut().chunks_exact_mut(row_bytes) {
                let (row, _) = row.as_chunks_mut::<3>();
                row.reverse();
            }
        }
    }
}
