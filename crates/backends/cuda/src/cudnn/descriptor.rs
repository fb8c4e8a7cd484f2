//! cuDNN's descriptors: created by kind, filled by attributes, finalized, destroyed when dropped.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::sys::{Attribute, Element, Functions, Kind, RawDescriptor};
use crate::error::CudaError;
use crate::libraries::Library;

/// Bytes of cuDNN's longest explanation of an error that is kept.
const EXPLANATION: usize = 1024;

impl Functions {
    /// cuDNN's name for a status, and its explanation of the last error.
    pub(super) fn words(&self, status: c_int) -> String {
        // SAFETY: cuDNN returns a text that lives for ever, for any number.
        let name = unsafe { CStr::from_ptr((self.cudnnGetErrorString)(status)) }.to_string_lossy().into_owned();
        let mut text = [0u8; EXPLANATION];
        // SAFETY: cuDNN writes at most as many bytes as there are.
        unsafe { (self.cudnnGetLastErrorString)(text.as_mut_ptr().cast::<c_char>(), text.len()) };
        let text = String::from_utf8_lossy(text.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        // The explanation may open with the status again.
        match text.strip_prefix(&name).unwrap_or(&text).trim_start_matches([';', ':', ' ']) {
            "" => name,
            explanation => format!("{name}; {explanation}"),
        }
    }
}

/// A descriptor of the backend API.
#[derive(Debug)]
pub(super) struct Descriptor {
    functions: Arc<Functions>,
    kind: Kind,
    raw: *mut c_void,
}

// SAFETY: cuDNN ties no descriptor to a thread.
unsafe impl Send for Descriptor {}

impl Descriptor {
    pub fn new(functions: &Arc<Functions>, kind: Kind) -> Result<Self, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a place for the address.
        unsafe { functions.cudnnBackendCreateDescriptor(kind as c_int, &mut raw) }
            .map_err(|error| error.about(format_args!("; {kind:?}")))?;
        Ok(Descriptor { functions: functions.clone(), kind, raw })
    }

    pub fn raw(&self) -> RawDescriptor {
        RawDescriptor(self.raw)
    }

    /// Sets all elements of an attribute.
    pub fn set<T: Element>(self, attribute: Attribute, values: &[T]) -> Result<Self, CudaError> {
        let count = values.len() as i64;
        let values = values.as_ptr().cast();
        // SAFETY: the values have the type that goes with the number, and cuDNN copies them.
        unsafe { self.functions.cudnnBackendSetAttribute(self.raw, attribute as c_int, T::TYPE, count, values) }
            .map_err(|error| error.about(format_args!("; {attribute:?}")))?;
        Ok(self)
    }

    /// Checks the attributes. No attribute can be set afterwards.
    pub fn finalize(self) -> Result<Self, CudaError> {
        // SAFETY: a descriptor of ours.
        unsafe { self.functions.cudnnBackendFinalize(self.raw) }
            .map_err(|error| error.about(format_args!("; {:?}", self.kind)))?;
        Ok(self)
    }

    /// The number of elements that an attribute has.
    pub fn count<T: Element>(&self, attribute: Attribute) -> Result<usize, CudaError> {
        // With room for no element, cuDNN writes the count alone.
        self.get::<T>(attribute, &mut [])
    }

    /// Writes as many elements of an attribute to `values` as there is room for. How many there are, of those or without room.
    fn get<T: Element>(&self, attribute: Attribute, values: &mut [T]) -> Result<usize, CudaError> {
        let mut count = 0;
        let room = values.len() as i64;
        let into = if room == 0 { ptr::null_mut() } else { values.as_mut_ptr().cast() };
        // SAFETY: there is room for that many elements of the type that goes with the number.
        unsafe {
            self.functions.cudnnBackendGetAttribute(self.raw, attribute as c_int, T::TYPE, room, &mut count, into)
        }
        .map_err(|error| error.about(format_args!("; {attribute:?}")))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The elements of an attribute, at most as many as `values` has room for, written over them.
    fn read<T: Element>(&self, attribute: Attribute, values: &mut Vec<T>) -> Result<(), CudaError> {
        let count = self.get(attribute, values)?;
        values.truncate(count);
        Ok(())
    }

    /// All elements of an attribute.
    pub fn all<T: Element + Default>(&self, attribute: Attribute) -> Result<Vec<T>, CudaError> {
        let mut values = vec![T::default(); self.count::<T>(attribute)?];
        if !values.is_empty() {
            self.read(attribute, &mut values)?;
        }
        Ok(values)
    }

    /// The one element of an attribute.
    pub fn one<T: Element + Default>(&self, attribute: Attribute) -> Result<T, CudaError> {
        let mut values = vec![T::default()];
        self.read(attribute, &mut values)?;
        values.pop().ok_or_else(|| CudaError::Call {
            library: Library::Cudnn,
            function: "cudnnBackendGetAttribute",
            why: format!("{attribute:?} has no element"),
        })
    }

    /// The descriptors in an attribute, at most `most`. cuDNN writes to descriptors which the caller creates.
    pub fn descriptors(&self, attribute: Attribute, kind: Kind, most: usize) -> Result<Vec<Descriptor>, CudaError> {
        let created: Result<Vec<_>, _> = (0..most).map(|_| Descriptor::new(&self.functions, kind)).collect();
        let mut created = created?;
        if most > 0 {
            let mut raw: Vec<RawDescriptor> = created.iter().map(Descriptor::raw).collect();
            self.read(attribute, &mut raw)?;
            created.truncate(raw.len());
        }
        Ok(created)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours, and nothing uses it any more.
        unsafe { (self.functions.cudnnBackendDestroyDescriptor)(self.raw) };
    }
}
