//! A look at every image: whether it can be read, its size, its content, and what it looks like.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::{DataError, Dataset};
use enmasse_dataset_tools::PerceptualHash;
use enmasse_image::{ImageFormat, ImageRegion, ReadOptions, RegionRequest, Resizer, decode};

use crate::commands::data::opened::Opened;
use crate::commands::data::scan::Scan;
use crate::failure::Failure;

/// What is known of an image.
#[derive(Default)]
pub struct ImageReport {
    /// Why it cannot be read; nothing else but its name is known then.
    pub fault: Option<String>,
    /// Width and height.
    pub size: Option<(usize, usize)>,
    /// The hash of its file, or of its pixels if it has none.
    pub content: Option<u128>,
    pub hash: Option<PerceptualHash>,
    /// The format of its content, if its extension is that of another one.
    pub misnamed: Option<ImageFormat>,
    /// Pillow's name of its mode, if it is not RGB and is converted.
    pub converted: Option<&'static str>,
}

/// A part of a data set, and a look at each of its images.
pub struct CheckedPart {
    pub name: &'static str,
    pub dataset: Arc<dyn Dataset>,
    pub looks: Vec<ImageReport>,
    root: PathBuf,
}

impl CheckedPart {
    /// The name of an image: its path below the data set's folder if it has one.
    pub fn name(&self, index: usize) -> String {
        match self.dataset.locality().and_then(|locality| locality.file_path(index)) {
            Some(path) => path.strip_prefix(&self.root).unwrap_or(&path).display().to_string(),
            None => self.dataset.name(index),
        }
    }
}

/// Reads every image of every part.
pub fn look(opened: &Opened) -> Result<Vec<CheckedPart>, Failure> {
    let Opened { config, root, data, .. } = opened;
    let mut scan = Scan::new("checking", data.parts().map(|(_, dataset)| dataset.len()).sum());
    let pool = opened.pool()?;
    let reading = config.train.reading();
    let mut looked = Vec::new();
    for (name, dataset) in data.parts().map(|(name, dataset)| (name, dataset.clone())) {
        let mut looks: Vec<ImageReport> = (0..dataset.len()).map(|_| ImageReport::default()).collect();
        let read = dataset.clone();
        let look = move |index: usize, view: &mut ImageRegion| look_at(read.as_ref(), index, reading, view);
        pool.scan(&dataset, look, |index, look| {
            scan.step();
            looks[index] = match look {
                Err(error) if error.is_unreadable() => {
                    ImageReport { fault: Some(error.problem()), ..ImageReport::default() }
                }
                other => other?,
            };
            Ok::<(), DataError>(())
        })
        .map_err(Failure::error)?;
        looked.push(CheckedPart { name, dataset, looks, root: root.clone() });
    }
    Ok(looked)
}

fn look_at(
    dataset: &dyn Dataset,
    index: usize,
    reading: ReadOptions,
    view: &mut ImageRegion,
) -> Result<ImageReport, DataError> {
    let mut bytes = Vec::new();
    let locality = dataset.locality();
    let has_file = locality.map_or(Ok(false), |locality| locality.read_file(index, &mut bytes))?;
    match has_file {
        true => decode::read_part_of(&bytes, || dataset.name(index), reading, &RegionRequest::whole, view)?,
        false => dataset.read_part(index, &RegionRequest::whole, view)?,
    }
    let image = view.image();
    let hash = blake3::hash(if has_file { &bytes } else { image.pixels() });
    let (content, _) = hash.as_bytes().split_first_chunk().unwrap_or((&[0; 16], &[]));
    Ok(ImageReport {
        fault: None,
        size: Some((image.width(), image.height())),
        content: Some(u128::from_le_bytes(*content)),
        hash: PerceptualHash::of(image, &mut Resizer::default()),
        misnamed: misnamed(locality.and_then(|locality| locality.file_path(index)).as_deref(), &bytes),
        converted: view.converted_from(),
    })
}

/// The format of a file, if its extension is that of another one.
fn misnamed(path: Option<&Path>, bytes: &[u8]) -> Option<ImageFormat> {
    let promised = ImageFormat::of_extension(path?.extension()?.to_str()?)?;
    ImageFormat::of(bytes).filter(|format| *format != promised)
}
