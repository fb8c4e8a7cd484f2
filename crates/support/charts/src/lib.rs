//! Charts of a run as SVG, each one self-contained file: the number of samples per class, the model's input images,
//! its loss and accuracy over the epochs, the classes that it confuses, how it ranks the images of each class, whether its
//! probabilities are what they say, the loss over the learning rate, and the speed of several devices. They follow the viewer's
//! preference for light or dark pages. A contact sheet of augmented samples is a PNG, and so is an image under a heatmap.
//!
//! Numbers and pixels in, files' content out: nothing is read or written, and no clock, locale or font is used, so equal inputs give equal
//! bytes.
//!
//! Use it for pages and reports that need no network and no fonts.
//!
//! ```
//! use enmasse_charts::{LabelledImage, class_distribution, confusion_matrix, image_sheet};
//!
//! let chart = class_distribution("classes", &[("daisy".into(), 507, 126), ("roses".into(), 513, 128)]);
//! assert!(chart.starts_with("<svg ") && chart.contains(">507 + 126<"));
//!
//! let counts = [120, 6, 9, 119];
//! let matrix = confusion_matrix("validation", &["daisy".into(), "roses".into()], &counts)?;
//! assert!(matrix.contains("accuracy 94.1 %: 239 of 254 samples"));
//!
//! let red = LabelledImage { width: 2, height: 1, pixels: &[255, 0, 0, 200, 0, 0], label: "red" };
//! assert!(image_sheet("augmented", &[red])?.contains("data:image/png;base64,"));
//! # Ok::<(), enmasse_charts::ChartError>(())
//! ```

mod axis;
mod base64;
mod class_curves;
mod confusion;
mod contact;
mod curves;
mod distribution;
mod error;
mod heatmap;
mod page;
mod rates;
mod reliability;
mod scaling;
mod sheet;
mod sizes;
mod style;
mod text;
mod unit;

pub use base64::data_address;
pub use class_curves::{ClassCurves, MAX_CURVES, class_curves};
pub use confusion::confusion_matrix;
pub use contact::contact_sheet;
pub use curves::{EpochPoint, training_curves};
pub use distribution::class_distribution;
pub use error::ChartError;
pub use heatmap::heatmap;
pub use rates::{RatePoint, learning_rates};
pub use reliability::{ReliabilityBin, reliability};
pub use scaling::{ScalingRow, scaling};
pub use sheet::{LabelledImage, image_sheet, png};
pub use sizes::{SizeLine, SizePanel, times_by_size};
