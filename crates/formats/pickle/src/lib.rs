//! Python pickles as data: the format of CIFAR's batches and PyTorch's weights.
//!
//! A pickle is a program for a small stack machine, and Python's own reader calls any function that the program names.
//! This reader calls nothing: a function stays a name ([`Object::Global`]), a call stays a function with its arguments
//! ([`Call`]), and data outside the file stays its key ([`Object::Persistent`]). Opcodes that data files do not need
//! are errors.
//!
//! Use it to read what Python's pickle wrote, from anybody.
//!
//! ```
//! use enmasse_pickle::{Limits, parse};
//! let pickle = b"\x80\x02}q\x00(X\x05\x00\x00\x00epochK\x03X\x02\x00\x00\x00lrG\x3f\xb9\x99\x99\x99\x99\x99\x9au.";
//! let (value, consumed) = parse(pickle, &Limits::default())?;
//! assert_eq!(value.get("epoch").and_then(|epoch| epoch.as_int()), Some(3));
//! assert_eq!(consumed, pickle.len());
//! # Ok::<(), enmasse_pickle::PickleError>(())
//! ```

mod freeze;
mod machine;
mod node;
pub mod numpy;
mod object;
mod scan;
mod write;

use thiserror::Error;

pub use machine::parse;
pub use object::{Call, Global, Object};
pub use write::write;

/// Limits on a pickle's demands. Memory is at most 256 bytes per value, plus the texts in it, plus those of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Opcodes and the elements that calls of `set` and `OrderedDict` copy, and also values in the result, counting each
    /// shared value at every occurrence. The second count stops a file that repeats a list of repeated lists.
    pub values: usize,
    /// Nesting depth of values; at most [`Limits::DEEPEST`], whatever is set here.
    pub depth: usize,
}

impl Limits {
    /// Values are dropped, compared and printed by recursion, for which any thread's stack suffices down to this depth.
    pub const DEEPEST: usize = 512;
}

impl Default for Limits {
    /// Several times the needs of the largest data file here, CIFAR-100's 50,000 names and labels.
    fn default() -> Self {
        Limits { values: 4_000_000, depth: 128 }
    }
}

/// Reasons why bytes are not the pickle of a data file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PickleError {
    /// The bytes end before the pickle does. More of the file may help.
    #[error("the pickle is cut short")]
    CutShort,
    /// The opcode is invalid, or no data file needs it.
    #[error("opcode {opcode:#04x} at byte {offset} of the pickle is not one that data files use")]
    Opcode {
        /// The opcode.
        opcode: u8,
        /// Its position.
        offset: usize,
    },
    /// The opcode is invalid at its position.
    #[error("the pickle is damaged at byte {offset}: {problem}")]
    Damaged {
        /// The opcode's position.
        offset: usize,
        /// The fault.
        problem: &'static str,
    },
    /// The pickle exceeds [`Limits::values`].
    #[error("the pickle holds more than {0} values")]
    TooMany(usize),
    /// The pickle exceeds [`Limits::depth`].
    #[error("the pickle holds values more than {0} levels deep")]
    TooDeep(usize),
    /// A value contains itself.
    #[error("the pickle holds a value that contains itself")]
    Cycle,
    /// A value has an unexpected type.
    #[error("{0}")]
    Unexpected(String),
}
