//! Images in class folders, or labelled by their own names; in parts, if there are folders for these.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use enmasse_data::DataError;

use super::imagenet;
use super::parts::{PartFolders, part_folders};
use crate::file_list::FileList;
use crate::folder::{check_folder, require_images};
use crate::pattern::LabelPattern;
use crate::scan::{folders, images_below};
use crate::split::Scanned;
use crate::{DataLayout, Folder, LeftOut};

/// Lists the class folders in `root`, or those in its folders for parts.
pub(crate) fn scan(root: &Path) -> Result<Scanned<Folder>, DataError> {
    check_folder(root)?;
    let has_folders = |part: &Path| folders(part, &mut LeftOut::default()).is_ok_and(|found| !found.is_empty());
    let layout = DataLayout::ClassFolders;
    let mut scanned = match part_folders(root, has_folders)? {
        None => Scanned::whole(layout, Folder::scan(root)?),
        Some(parts) => scan_parts(root, layout, parts, |part| Folder::scan_below(root, part))?,
    };
    imagenet::describe(&mut scanned, root)?;
    Ok(scanned)
}

/// Lists the images in `root`, or in its folders for parts, each labelled by its name.
pub(crate) fn scan_names(root: &Path, pattern: &str) -> Result<Scanned<Folder>, DataError> {
    let pattern = LabelPattern::parse(pattern)?;
    let layout = DataLayout::NamedImages;
    // Without folders, there is no telling which parts have labels: a name that has none is an error below.
    Ok(match part_folders(root, |_| true)? {
        None => Scanned::whole(layout, by_name(root, "", &pattern)?),
        Some(parts) => scan_parts(root, layout, parts, |part| by_name(root, part, &pattern))?,
    })
}

/// Lists each part by `list`, and checks that they have the same classes.
fn scan_parts(
    root: &Path,
    layout: DataLayout,
    parts: PartFolders,
    list: impl Fn(&str) -> Result<Folder, DataError>,
) -> Result<Scanned<Folder>, DataError> {
    let train = list(&parts.train)?;
    let beside = |name: &Option<String>| name.as_deref().map(&list).transpose();
    let (held_out, test) = (beside(&parts.held_out)?, beside(&parts.test)?);
    let others = [(&parts.held_out, &held_out), (&parts.test, &test)];
    let others: Vec<(&str, &Folder)> =
        others.into_iter().filter_map(|(name, part)| Some((name.as_deref()?, part.as_ref()?))).collect();
    require_images(root, &[&[(parts.train.as_str(), &train)], others.as_slice()].concat())?;
    for (name, part) in others {
        same_classes(&train, part, root, [&parts.train, name])?;
    }
    let (warnings, folders) = (parts.warning.iter().cloned().collect(), parts.names());
    // A training part without another one is the whole of what the user named.
    let folders = if held_out.is_some() { folders } else { Vec::new() };
    Ok(Scanned { held_out, test, folders, warnings, ..Scanned::whole(layout, train) })
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

/// Fails if classes are in one part only. `names` are the folders of both.
pub(crate) fn same_classes(
    train: &Folder,
    val: &Folder,
    root: &Path,
    [train_name, val_name]: [&str; 2],
) -> Result<(), DataError> {
    let lacking = |(these, name): (&Folder, &str), (those, other): (&Folder, &str)| {
        let known: HashSet<&String> = those.classes().iter().collect();
        let lacking: Vec<&String> = these.classes().iter().filter(|class| !known.contains(class)).collect();
        let names = lacking.iter().map(|class| format!("{class:?}")).collect::<Vec<_>>().join(", ");
        match lacking.len() {
            0 => None,
            1 => Some(format!("the class {names} is in {name}/ but not in {other}/")),
            _ => Some(format!("the classes {names} are in {name}/ but not in {other}/")),
        }
    };
    let (train, val) = ((train, train_name), (val, val_name));
    let problems: Vec<String> = [lacking(train, val), lacking(val, train)].into_iter().flatten().collect();
    match problems.is_empty() {
        true => Ok(()),
        false => {
            let problem = format!("{}; both need the same classes", problems.join(", and "));
            Err(DataError::layout(root, problem))
        }
    }
}
