//! How a data set lies in files.

use crate::DataKind;

/// The layout of a data set's files, as [`crate::open()`] has recognised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataLayout {
    /// A folder for each class, perhaps in folders for parts.
    ClassFolders,
    /// Images whose names have their classes.
    NamedImages,
    /// A table that lists images.
    Manifest,
    /// ImageNet as Kaggle packs it.
    KaggleImageNet,
    /// Tar archives of WebDataset.
    Archives,
    /// Parquet files.
    Parquet,
    /// The files of a known data set.
    Known(DataKind),
    /// What [`crate::pack()`] has written.
    PackedFile,
}

impl DataLayout {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            DataLayout::ClassFolders => DataKind::Folder.name(),
            DataLayout::NamedImages => "images labelled by their names",
            DataLayout::Manifest => "manifest",
            DataLayout::KaggleImageNet => "ImageNet in Kaggle's layout",
            DataLayout::Archives => "WebDataset archives",
            DataLayout::Parquet => "Parquet files",
            DataLayout::Known(kind) => kind.name(),
            DataLayout::PackedFile => "packed file",
        }
    }
}
