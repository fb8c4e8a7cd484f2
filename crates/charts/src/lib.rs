//! Charts of a run's data as SVG, each one self-contained file: the number of samples per class, and the model's input
//! pictures.
//!
//! Text in, text out: nothing is read or written, and no clock, locale or font is used, so equal inputs give equal
//! bytes.
//!
//! ```
//! use enmasse_charts::{LabelledPicture, class_distribution, picture_sheet};
//!
//! let chart = class_distribution("classes", &[("daisy".into(), 507, 126), ("roses".into(), 513, 128)]);
//! assert!(chart.starts_with("<svg ") && chart.contains(">507 + 126<"));
//!
//! let red = LabelledPicture { width: 2, height: 1, pixels: &[255, 0, 0, 200, 0, 0], label: "red" };
//! assert!(picture_sheet("augmented", &[red])?.contains("data:image/png;base64,"));
//! # Ok::<(), enmasse_charts::ChartError>(())
//! ```

mod base64;
mod distribution;
mod page;
mod sheet;
mod text;

pub use distribution::class_distribution;
pub use sheet::{ChartError, LabelledPicture, picture_sheet};
