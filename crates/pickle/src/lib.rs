//! Python pickles as data: what CIFAR's batches and PyTorch's weights are kept in.
//!
//! A pickle is a program for a small stack machine, and Python's own reader calls whatever functions the program names. This one
//! calls nothing: a function stays a name ([`Object::Global`]), a call stays a function with its arguments ([`Call`]), and what
//! lies outside the file stays the key it was given ([`Object::Persistent`]). Opcodes that data files have no use for are errors.
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

/// How much a pickle may ask for. Memory is at most 256 bytes per value, plus the texts in it, plus its result's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Opcodes, and values in the result with each shared one counted wherever it appears. The second count is what stops
    /// a file that repeats a list of repeated lists of repeated lists.
    pub values: usize,
    /// How deep values lie inside one another; at most [`Limits::DEEPEST`] whatever is said here.
    pub depth: usize,
}

impl Limits {
    /// Values are dropped, compared and printed by recursion, for which any thread's stack has room down to here.
    pub const DEEPEST: usize = 512;
}

impl Default for Limits {
    /// Room for the largest data file here, CIFAR-100's 50,000 names and labels, several times over.
    fn default() -> Self {
        Limits { values: 4_000_000, depth: 128 }
    }
}

/// Why bytes are not the pickle of a data file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PickleError {
    /// The bytes end before the pickle does. More of the file may help.
    #[error("the pickle is cut short")]
    CutShort,
    /// An opcode that no data file needs, or that is none.
    #[error("opcode {opcode:#04x} at byte {offset} of the pickle is none that data files use")]
    Opcode {
        /// The opcode.
        opcode: u8,
        /// Where it stands.
        offset: usize,
    },
    /// The opcode makes no sense where it stands.
    #[error("the pickle is damaged at byte {offset}: {problem}")]
    Damaged {
        /// Where the opcode stands.
        offset: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// More than [`Limits::values`].
    #[error("the pickle holds more than {0} values")]
    TooMany(usize),
    /// More than [`Limits::depth`].
    #[error("the pickle holds values more than {0} levels deep")]
    TooDeep(usize),
    /// A value that contains itself.
    #[error("the pickle holds a value that contains itself")]
    Cycle,
    /// A value is not the one that was looked for.
    #[error("{0}")]
    Unexpected(String),
}
