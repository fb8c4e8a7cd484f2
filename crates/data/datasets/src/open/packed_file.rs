//! Packed files, on this machine by their first bytes, on servers by their addresses.

use std::path::Path;

use enmasse_remote::is_remote;

use super::pieces::is_pattern;
use super::{FORMATS, Format};
use crate::scan::has_extension;
use crate::{Unlabelled, packed_file};

pub(super) const FORMAT: Format = Format {
    extensions: &[],
    recognise: |source| Ok(source.root_if(is_packed(source.root))),
    open: |source, _| Ok(Box::new(packed_file::open(source.storage.open(source.root)?, source.options.reading)?)),
    images: Some(|source, _| {
        let data = packed_file::open(source.storage.open(source.root)?, source.options.reading)?;
        let parts = [data.train, data.validation].into_iter().chain(data.test).collect();
        Ok(Unlabelled { kind: data.kind, layout: data.layout, parts, warnings: Vec::new() })
    }),
};

/// Extensions of compressed files and images, which are not packed files.
const NEVER: [&str; 12] = ["zip", "gz", "tgz", "bz2", "xz", "zst", "jpg", "jpeg", "png", "webp", "bmp", "gif"];

/// Whether `path` leads to a packed file, of any version. An address does unless it says otherwise, since packed files have any
/// names; no server is asked.
pub fn is_packed(path: &Path) -> bool {
    if !is_remote(path) {
        return packed_file::has_magic(path);
    }
    let address = path.to_string_lossy();
    let mut others = FORMATS.iter().map(|format| format.extensions).chain([&NEVER[..]]);
    !others.any(|others| has_extension(&address, others)) && !is_pattern(path) && !address.ends_with('/')
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
