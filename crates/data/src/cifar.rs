//! CIFAR-10 and CIFAR-100, as their authors publish them: <https://www.cs.toronto.edu/~kriz/cifar.html>.

use std::path::{Path, PathBuf};

use crate::DataError;
use crate::packed::{Packed, Records, append_file};

const EDGE: usize = 32;
const PICTURE: usize = 3 * EDGE * EDGE;

/// A part in the binary layout: records of `labels` bytes, the last of which is the class, and the picture.
pub(crate) fn binary(files: &[PathBuf], labels: usize, classes: &[String]) -> Result<Packed, DataError> {
    let stride = labels + PICTURE;
    let (mut bytes, mut parts) = (Vec::new(), Vec::new());
    for file in files {
        let length = append_file(file, &mut bytes)?;
        if length == 0 || length % stride != 0 {
            let problem = format!(
                "{length} bytes are no whole number of pictures of {stride} bytes: the file is damaged or no CIFAR file"
            );
            return Err(DataError::layout(file, problem));
        }
        parts.push((file.clone(), bytes.len() / stride));
    }
    let classes_of = bytes.chunks_exact(stride).map(|record| record[labels - 1]).collect();
    let records = Records { edge: EDGE, planes: 3, first: labels, stride };
    Packed::new(bytes, records, classes_of, classes.to_vec(), parts)
}

/// The names of the classes, one on each line of a text file; `count` of them.
pub(crate) fn class_names(path: &Path, count: usize) -> Result<Vec<String>, DataError> {
    let mut bytes = Vec::new();
    append_file(path, &mut bytes)?;
    let text = String::from_utf8(bytes).map_err(|_| DataError::layout(path, "its names are not valid UTF-8"))?;
    let names: Vec<String> = text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if names.len() != count {
        let problem = format!("it names {} classes instead of {count}", names.len());
        return Err(DataError::layout(path, problem));
    }
    Ok(names)
}
