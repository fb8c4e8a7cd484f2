//! PyTorch's `.pth` files: a pickle that describes the tensors, and storages with their elements. Two of its
//! three forms are read, and the zip form is written; that from before PyTorch 0.2 is refused.

mod legacy;
mod objects;
mod pickles;
mod storage;
mod write;
mod zip;

pub use write::write;

use crate::named::Collector;
use crate::source::Source;
use crate::{Format, WeightsError};

/// The contents of a file in either form: the pickled object, and the places of storages.
struct Parts {
    object: enmasse_pickle::Object,
    storages: storage::Storages,
}

/// Reads the tensors, and returns the key of the averages if it is these.
pub(crate) fn collect(
    source: &Source,
    format: Format,
    collector: &mut Collector,
) -> Result<Option<&'static str>, WeightsError> {
    let Parts { object, storages } = match format {
        Format::Legacy => legacy::open(source)?,
        Format::Zip | Format::Safetensors => zip::open(source)?,
    };
    let (state_dict, averages) = objects::state_dict(&object).map_err(|reason| source.refuse(reason))?;
    for (name, value) in state_dict {
        let Some(name) = name.as_str().filter(|name| !crate::named::is_counter(name)) else { continue };
        let view = objects::tensor(value);
        let view = view.map_err(|problem| source.refuse(format!("tensor {name:?} {problem}")))?;
        if let Some(view) = view {
            let values = storages.values(source, name, &view, collector)?;
            collector.push(name.to_owned(), view.shape, values);
        }
    }
    Ok(averages)
}
