//! Images labelled by their own names, in parts if there are folders for these.

use std::collections::BTreeSet;
use std::path::Path;

use enmasse_data::DataError;

use super::Format;
use super::class_folders::scan_parts;
use super::parts::part_folders;
use crate::file_list::FileList;
use crate::pattern::LabelPattern;
use crate::scan::images_below;
use crate::split::Scanned;
use crate::{DataLayout, Folder, LeftOut};

pub(super) const FORMAT: Format = Format {
    extensions: &[],
    recognise: |source| Ok(source.root_if(source.is_folder() && source.options.label_pattern.is_some())),
    open: |source, _| Ok(Box::new(scan(source.root, source.options.label_pattern.as_deref().unwrap_or_default())?)),
    images: None,
};

/// Lists the images in `root`, or in its folders for parts, each labelled by its name.
fn scan(root: &Path, pattern: &str) -> Result<Scanned<Folder>, DataError> {
    let pattern = LabelPattern::parse(pattern)?;
    let layout = DataLayout::NamedImages;
    // Without folders, there is no telling which parts have labels: a name that has none is an error below.
    Ok(match part_folders(root, |_| true)? {
        None => Scanned::whole(layout, root, by_name(root, "", &pattern)?),
        Some(parts) => scan_parts(root, layout, parts, |part| by_name(root, part, &pattern))?,
    })
}

fn by_name(root: &Path, part: &str, pattern: &LabelPattern) -> Result<Folder, DataError> {
    let mut left_out = LeftOut::default();
    let images = images_below(&root.join(part), &mut left_out)?;
    let class = |image: &str| {
        pattern.class(image).map(str::to_owned).ok_or_else(|| {
            let problem = "its name does not match the label pattern; name a folder in which all images have labels";
            DataError::layout(root.join(part).join(image), problem)
        })
    };
    let names = images.iter().map(|image| class(image)).collect::<Result<BTreeSet<String>, DataError>>()?;
    if names.is_empty() {
        return Err(DataError::layout(root.join(part), "there are no images in it"));
    }
    let classes: Vec<String> = names.into_iter().collect();
    let mut files = FileList::default();
    for image in &images {
        let label = classes.binary_search(&class(image)?).unwrap_or_default();
        let path = if part.is_empty() { image.clone() } else { format!("{part}/{image}") };
        files.push(&path, label as u32);
    }
    Ok(Folder::of_files(root, classes, files).with_left_out(left_out))
}
