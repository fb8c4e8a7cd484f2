//! Pickles inside files, whose length is not recorded: more and more of the file is read until the pickle ends.

use enmasse_pickle::{Limits, Object, PickleError, parse};

use crate::WeightsError;
use crate::source::Source;

/// The pickle of a weights file holds names and shapes, a few hundred bytes per tensor.
const PICKLE_LIMIT: u64 = 64 << 20;
const LIMITS: Limits = Limits { values: 1 << 20, depth: 128 };
/// What a value takes at most, in bytes.
const VALUE: u64 = 256;
/// Number of bytes in the first attempt.
const FIRST: u64 = 1 << 12;

/// The place in a file where a pickle starts, and the end it must not exceed.
pub(super) struct Pickles<'a> {
    source: &'a Source,
    pub position: u64,
    pub end: u64,
}

impl<'a> Pickles<'a> {
    pub fn new(source: &'a Source, position: u64, end: u64) -> Self {
        Pickles { source, position, end: end.min(source.len()) }
    }

    /// The next pickle; the position moves after it.
    pub fn next(&mut self) -> Result<Object, WeightsError> {
        let available = self.end.saturating_sub(self.position);
        let mut window = FIRST;
        loop {
            let len = window.min(available).min(PICKLE_LIMIT);
            let bytes = self.source.bytes(self.position, len as usize)?;
            self.source.require(len + len.min(LIMITS.values as u64) * VALUE)?;
            match parse(&bytes, &LIMITS) {
                Ok((value, consumed)) => {
                    self.position += consumed as u64;
                    return Ok(value);
                }
                Err(PickleError::CutShort) if len < available && len < PICKLE_LIMIT => {
                    window = window.saturating_mul(16)
                }
                Err(PickleError::CutShort) if len == PICKLE_LIMIT => {
                    return Err(self.source.refuse(format!("its pickle has more than {PICKLE_LIMIT} bytes")));
                }
                Err(PickleError::CutShort) => return Err(self.source.damaged("its pickle is cut short")),
                Err(error) => return Err(self.source.refuse(error.to_string())),
            }
        }
    }
}
