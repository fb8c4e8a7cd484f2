//! Reasons why a chart cannot be drawn.

/// Reasons why a chart cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChartError {
    /// There are no images.
    #[error("a sheet needs at least one image")]
    NoImages,
    /// An image's number of bytes does not match its dimensions.
    #[error("image {index} ({label:?}) has {bytes} bytes, which does not match {width}x{height} RGB pixels")]
    Pixels {
        /// Its index in the list, from 0.
        index: usize,
        /// Its label.
        label: String,
        /// Pixels per row.
        width: usize,
        /// Number of rows.
        height: usize,
        /// Number of bytes given.
        bytes: usize,
    },
    /// A heatmap's number of values does not match its image.
    #[error("a heatmap has {values} values, which does not match {width}x{height} pixels")]
    Values {
        /// Pixels per row.
        width: usize,
        /// Number of rows.
        height: usize,
        /// Number of values given.
        values: usize,
    },
    /// A confusion matrix's number of counts does not match its classes.
    #[error("a confusion matrix has {counts} counts, which does not match {classes}x{classes} classes")]
    Counts {
        /// Number of classes.
        classes: usize,
        /// Number of counts given.
        counts: usize,
    },
    /// An image cannot be encoded.
    #[error("image {index} ({label:?}) cannot be written as PNG: {source}")]
    Png {
        /// Its index in the list, from 0.
        index: usize,
        /// Its label.
        label: String,
        /// The encoder's error.
        source: png::EncodingError,
    },
}
