//! Why a JPEG cannot be decoded.

/// Why a JPEG cannot be decoded. The text is the end of a sentence about the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file may be good, but this decoder lacks the process that it uses.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// The file contradicts the standard.
    #[error("{0}")]
    Damaged(&'static str),
    /// The data end before the image does.
    #[error("the data end before the image")]
    Truncated,
    /// There is no memory for this many bytes of the decoder's own.
    #[error("there is no memory for {0} bytes of it")]
    Memory(usize),
}
