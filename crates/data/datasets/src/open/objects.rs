//! Data on servers. An address itself says what it names, so no server is asked.

use std::path::{Path, PathBuf};

use enmasse_data::DataError;

use super::pieces::{expand, is_pattern};
use super::{manifest, parquet, shards};
use crate::scan::has_extension;
use crate::storage::Storage;

/// Extensions of compressed files and images, which are not packed files.
const NEVER: [&str; 12] = ["zip", "gz", "tgz", "bz2", "xz", "zst", "jpg", "jpeg", "png", "webp", "bmp", "gif"];

/// Whether an address is that of a packed file. These have any names, so it is one if nothing says otherwise.
pub(crate) fn is_packed(address: &Path) -> bool {
    let text = address.to_string_lossy();
    let is_other = [&[shards::EXTENSION, parquet::EXTENSION][..], &manifest::EXTENSIONS, &NEVER]
        .iter()
        .any(|others| has_extension(&text, others));
    !is_other && !is_pattern(address) && !text.ends_with('/')
}

/// The archives or Parquet files that an address names: one, those of a pattern, or those in a folder, which ends with a slash.
pub(super) fn files(storage: &Storage, address: &Path) -> Result<Vec<PathBuf>, DataError> {
    let text = address.to_string_lossy();
    if is_pattern(address) {
        return expand(storage, address);
    }
    if has_extension(&text, &[shards::EXTENSION, parquet::EXTENSION]) {
        return Ok(vec![address.to_owned()]);
    }
    if !text.ends_with('/') {
        let problem =
            "of servers only packed files, archives of WebDataset (.tar) and Parquet files are read; download it";
        return Err(DataError::layout(address, problem));
    }
    let names = storage.names(&text)?;
    for extension in [shards::EXTENSION, parquet::EXTENSION] {
        let own = names.iter().filter(|name| has_extension(name, &[extension]));
        let files: Vec<PathBuf> = own.map(|name| address.join(name)).collect();
        if !files.is_empty() {
            return Ok(files);
        }
    }
    Err(DataError::layout(address, "there are no archives (.tar) and no Parquet files directly in this folder"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_files_have_any_names() {
        let check = |address: &str, expected: bool| assert_eq!(is_packed(Path::new(address)), expected, "{address}");
        check("s3://data/train.packed", true);
        check("https://host/flowers", true);
        check("s3://data/flowers.v2", true);
        check("s3://data/train.tar", false);
        check("s3://data/train.PARQUET", false);
        check("s3://data/train.csv", false);
        check("s3://data/train.tar.gz", false);
        check("s3://data/train-{0..9}", false);
        check("s3://data/train/", false);
    }
}
