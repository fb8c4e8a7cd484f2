//! Images in class folders, in parts if there are folders for these.

use std::collections::HashSet;
use std::path::Path;

use enmasse_data::DataError;

use super::parts::{PartFolders, part_folders};
use super::{Format, imagenet};
use crate::folder::{check_folder, require_images};
use crate::scan::{folders, holds_images};
use crate::split::Scanned;
use crate::{DataLayout, Folder, LeftOut};

pub(super) const FORMAT: Format = Format {
    extensions: &[],
    recognise: |source| Ok(source.root_if(source.is_folder() && holds_images(source.root)?)),
    open: |source, _| Ok(Box::new(scan(source.root)?)),
    images: None,
};

/// Lists the class folders in `root`, or those in its folders for parts.
pub(super) fn scan(root: &Path) -> Result<Scanned<Folder>, DataError> {
    check_folder(root)?;
    let has_folders = |part: &Path| folders(part, &mut LeftOut::default()).is_ok_and(|found| !found.is_empty());
    let layout = DataLayout::ClassFolders;
    let mut scanned = match part_folders(root, has_folders)? {
        None => Scanned::whole(layout, root, Folder::scan(root)?),
        Some(parts) => scan_parts(root, layout, parts, |part| Folder::scan_below(root, part))?,
    };
    imagenet::describe(&mut scanned, root)?;
    Ok(scanned)
}

/// Lists each part by `list`, and checks that they have the same classes.
pub(super) fn scan_parts(
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
    let warnings = parts.warning.iter().cloned().collect();
    let folders = parts.names();
    // A training part without another one is the whole of what the user named.
    let folders = if held_out.is_some() { folders } else { Vec::new() };
    Ok(Scanned { held_out, test, folders, warnings, ..Scanned::whole(layout, root, train) })
}

/// Fails if classes are in one part only. `names` are the folders of both.
fn same_classes(train: &Folder, val: &Folder, root: &Path, [train_name, val_name]: [&str; 2]) -> Result<(), DataError> {
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
