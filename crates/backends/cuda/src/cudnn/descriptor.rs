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
    /// Turns a status into a result, with cuDNN's own explanation. `what` says what the call was about.
    pub(super) fn check(
        &self,
        function: &'static str,
        status: c_int,
        what: impl FnOnce() -> String,
    ) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: cuDNN returns a text that lives for ever, for any number.
        let name = unsafe { CStr::from_ptr((self.cudnnGetErrorString)(status)) }.to_string_lossy().into_owned();
        let mut text = [0u8; EXPLANATION];
        // SAFETY: cuDNN writes at most as many bytes as there are.
        unsafe { (self.cudnnGetLastErrorString)(text.as_mut_ptr().cast::<c_char>(), text.len()) };
        let text = String::from_utf8_lossy(text.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut why = name.clone();
        for part in [words.join(" "), what()] {
            // The explanation may open with the status again.
            let part = part.strip_prefix(&name).unwrap_or(&part).trim_start_matches([';', ':', ' ']).to_owned();
            if !part.is_empty() {
                why = format!("{why}; {part}");
            }
        }
        Err(CudaError::Call { library: Library::Cudnn, function, why })
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
        let status = unsafe { (functions.cudnnBackendCreateDescriptor)(kind as c_int, &mut raw) };
        functions.check("cudnnBackendCreateDescriptor", status, || format!("{kind:?}"))?;
        Ok(Descriptor { functions: functions.clone(), kind, raw })
    }

    pub fn raw(&self) -> RawDescriptor {
        RawDescriptor(self.raw)
    }

    /// Sets all elements of an attribute.
    pub fn set<T: Element>(self, attribute: Attribute, values: &[T]) -> Result<Self, CudaError> {
        // SAFETY: the values have the type that goes with the number, and cuDNN copies them.
        let status = unsafe {
            let (count, values) = (values.len() as i64, values.as_ptr().cast());
            (self.functions.cudnnBackendSetAttribute)(self.raw, attribute as c_int, T::TYPE, count, values)
        };
        self.functions.check("cudnnBackendSetAttribute", status, || format!("{attribute:?}"))?;
        Ok(self)
    }

    /// Checks the attributes. No attribute can be set afterwards.
    pub fn finalize(self) -> Result<Self, CudaError> {
        // SAFETY: a descriptor of ours.
        let status = unsafe { (self.functions.cudnnBackendFinalize)(self.raw) };
        self.functions.check("cudnnBackendFinalize", status, || format!("{:?}", self.kind))?;
        Ok(self)
    }

    /// The number of elements that an attribute has.
    pub fn count<T: Element>(&self, attribute: Attribute) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: with room for no element, cuDNN writes the count alone.
        let status = unsafe {
            let (attribute, none) = (attribute as c_int, ptr::null_mut());
            (self.functions.cudnnBackendGetAttribute)(self.raw, attribute, T::TYPE, 0, &mut count, none)
        };
        self.functions.check("cudnnBackendGetAttribute", status, || format!("{attribute:?}"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The elements of an attribute, at most as many as `values` has room for, written over them.
    fn read<T: Element>(&self, attribute: Attribute, values: &mut Vec<T>) -> Result<(), CudaError> {
        let mut count = 0;
        // SAFETY: there is room for that many elements of the type that goes with the number.
        let status = unsafe {
            let (room, into) = (values.len() as i64, values.as_mut_ptr().cast());
            (self.functions.cudnnBackendGetAttribute)(self.raw, attribute as c_int, T::TYPE, room, &mut count, into)
        };
        self.functions.check("cudnnBackendGetAttribute", status, || format!("{attribute:?}"))?;
        values.truncate(usize::try_from(count).unwrap_or(0));
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
