//! One program of tests: it is linked once, and its tests run side by side.

mod folder;
mod hostile;
mod image_region;
mod imagenet;
mod kaggle;
mod ledger;
mod manifest;
mod open;
mod packed_file;
mod parquet;
mod remote;
mod shapes;
mod shards;
