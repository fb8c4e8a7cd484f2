//! CIFAR-10 and CIFAR-100, as published by their authors: <https://www.cs.toronto.edu/~kriz/cifar.html>.

use std::path::{Path, PathBuf};

use enmasse_data::DataError;
use enmasse_pickle::{Limits, Object, numpy, parse};
use enmasse_system::files::{read_regular, require, reserve};

use crate::packed::{Packed, Records, append_file};

/// Limit of a file of names, in bytes.
const MAX_NAMES: u64 = 1 << 20;
const EDGE: usize = 32;
const IMAGE: usize = 3 * EDGE * EDGE;

/// A part in the binary layout: records of `labels` bytes, of which the last one is the class, and the image.
pub(crate) fn binary(files: &[PathBuf], labels: usize, classes: &[String]) -> Result<Packed, DataError> {
    let stride = labels + IMAGE;
    let (mut bytes, mut parts) = (Vec::new(), Vec::new());
    for file in files {
        let length = append_file(file, &mut bytes)?;
        if length == 0 || length % stride != 0 {
            let problem = format!(
                "{length} bytes are not a multiple of {stride}, an image's size: the file is damaged or not a CIFAR file"
            );
            return Err(DataError::layout(file, problem));
        }
        parts.push((file.clone(), bytes.len() / stride));
    }
    let classes_of = bytes.chunks_exact(stride).map(|record| record[labels - 1]).collect();
    let records = Records { edge: EDGE, planes: 3, first: labels, stride };
    Packed::new(bytes, records, classes_of, classes.to_vec(), parts)
}

/// A part in the Python layout: pickles of a dictionary with the images in an array `data`, and their classes in
/// `labels`.
pub(crate) fn python(files: &[PathBuf], labels: &str, classes: &[String]) -> Result<Packed, DataError> {
    let mut bytes = Vec::new();
    let mut classes_of = Vec::new();
    let mut parts = Vec::new();
    for file in files {
        let batch = unpickle(file)?;
        let fail = |problem: String| DataError::layout(file, problem);
        let data = batch.get("data").ok_or_else(|| fail("not a CIFAR batch: it has no \"data\"".into()))?;
        let data = numpy::byte_array(data).map_err(|error| fail(format!("its \"data\" is {error}")))?;
        let [count, IMAGE] = data.shape[..] else {
            return Err(fail(format!("its \"data\" has the shape {:?}, not [n, {IMAGE}]", data.shape)));
        };
        let own = batch.get(labels).and_then(Object::as_slice).unwrap_or(&[]);
        let own: Option<Vec<u8>> = own.iter().map(|label| u8::try_from(label.as_int()?).ok()).collect();
        let Some(own) = own.filter(|own| own.len() == count) else {
            return Err(fail(format!("its {labels:?} is not a list of {count} small numbers, one for each image")));
        };
        reserve(&mut bytes, data.bytes.len()).map_err(|source| DataError::read(file, source))?;
        bytes.extend_from_slice(&data.bytes);
        classes_of.extend(own);
        parts.push((file.clone(), classes_of.len()));
    }
    let records = Records { edge: EDGE, planes: 3, first: 0, stride: IMAGE };
    Packed::new(bytes, records, classes_of, classes.to_vec(), parts)
}

/// The names of the `count` classes, one per line of a text file.
pub(crate) fn class_names(path: &Path, count: usize) -> Result<Vec<String>, DataError> {
    let bytes = read_regular(path, MAX_NAMES).map_err(|source| DataError::read(path, source))?;
    let text = String::from_utf8(bytes).map_err(|_| DataError::layout(path, "its names are not valid UTF-8"))?;
    let names = text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    counted(path, names, count)
}

/// The names of the `count` classes in a pickle of a dictionary, under `key`.
pub(crate) fn pickled_class_names(path: &Path, key: &str, count: usize) -> Result<Vec<String>, DataError> {
    let meta = unpickle(path)?;
    let names = meta.get(key).and_then(Object::as_slice).unwrap_or(&[]);
    counted(path, names.iter().filter_map(Object::as_str).map(str::to_owned).collect(), count)
}

fn counted(path: &Path, names: Vec<String>, count: usize) -> Result<Vec<String>, DataError> {
    if names.len() != count {
        let problem = format!("it names {} classes instead of {count}", names.len());
        return Err(DataError::layout(path, problem));
    }
    Ok(names)
}

fn unpickle(path: &Path) -> Result<Object, DataError> {
    let mut bytes = Vec::new();
    append_file(path, &mut bytes)?;
    // The value has all bytes once more, and again where they are decoded or put into another order.
    require(3 * bytes.len()).map_err(|source| DataError::read(path, source))?;
    let (value, _) = parse(&bytes, &Limits::default()).map_err(|error| DataError::layout(path, error.to_string()))?;
    Ok(value)
}
