//! The error for a folder in which no data set was recognised.

use std::path::Path;

use enmasse_data::DataError;

use super::known::LAYOUTS;
use super::manifest;
use super::source::{Named, Source};
use crate::DataKind;
use crate::scan::{is_image, unread_image};

/// The error that lists what was looked for, and where to get it.
pub(super) fn nothing_found(source: &Source) -> DataError {
    let problem = match &source.named {
        Named::Folder => return nothing_in(source.root),
        Named::Objects(_) => "there are no archives (.tar) and no Parquet files directly in this folder".to_owned(),
        _ if source.storage.is_remote() => {
            "of servers only packed files, archives of WebDataset (.tar) and Parquet files are read; download it"
                .to_owned()
        }
        Named::File | Named::Pattern(_) => format!(
            "this is a file; the data must be a folder (an archive must be extracted first), a manifest ({}), a Parquet file, or a tar archive that is not compressed",
            manifest::EXTENSIONS.join(", ")
        ),
    };
    DataError::layout(source.root, problem)
}

fn nothing_in(root: &Path) -> DataError {
    if let Some(archive) = find(root, ends_with(&[".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".zip"])) {
        return DataError::layout(
            root,
            format!("it has no data set, only the archive {archive}: extract it there first"),
        );
    }
    if let Some(table) = find_manifest(root) {
        let problem = format!("it has no class folders of images; if {table} lists images and their classes, name it");
        return DataError::layout(root, problem);
    }
    if let Some((image, kind)) = unread_image(root) {
        return DataError::layout(root, format!("it has no images but such as {} ({kind})", image.display()));
    }
    if let Some(image) = find(root, is_image) {
        let problem = format!(
            "it has images, such as {image}, but no class folders; put those of each class into a folder of its own, or give \
             `label_pattern` if their names have the class, such as '{{class}}.{{number}}.jpg'"
        );
        return DataError::layout(root, problem);
    }
    let known = [DataKind::Cifar10, DataKind::Cifar100, DataKind::Mnist, DataKind::FashionMnist].map(|kind| {
        let layouts = || LAYOUTS.iter().filter(move |layout| layout.kind == kind);
        let files: Vec<&str> = layouts().map(|layout| layout.files[0]).collect();
        let places: Vec<&str> =
            layouts().flat_map(|layout| layout.below).copied().filter(|at| !at.is_empty()).collect();
        let page = layouts().next().map_or("", |layout| layout.page);
        format!("{} ({} …, here or in {}; {page})", kind.name(), files.join(" or "), places.join(" or "))
    });
    let problem = format!("it has no class folders of images, and no {}", known.join(", no "));
    DataError::layout(root, problem)
}

/// A file in `root` that may be a manifest.
pub(super) fn find_manifest(root: &Path) -> Option<String> {
    find(root, ends_with(&[".csv", ".tsv", ".jsonl", ".ndjson"]))
}

fn ends_with(endings: &[&str]) -> impl Fn(&str) -> bool {
    |name| endings.iter().any(|ending| name.ends_with(ending))
}

/// The first file that is wanted, by its name.
fn find(root: &Path, wanted: impl Fn(&str) -> bool) -> Option<String> {
    let names =
        root.read_dir().into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| wanted(name)).min()
}
