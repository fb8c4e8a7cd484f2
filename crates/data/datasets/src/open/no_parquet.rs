//! Parquet files in a build without the feature `parquet`: they are recognised, and refused.

use enmasse_data::DataError;

use super::source::Source;
use super::{Format, PARQUET};

pub(super) const FORMAT: Format = Format {
    extensions: &[PARQUET],
    recognise: |source| source.files(PARQUET),
    open: |source, _| Err(refused(source)),
    images: Some(|source, _| Err(refused(source))),
};

fn refused(source: &Source) -> DataError {
    let problem = "it has Parquet files, which this program cannot read: it was built without the feature `parquet`";
    DataError::layout(source.folder(), problem.to_owned())
}
