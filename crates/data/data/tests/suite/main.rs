//! One program of tests: it is linked once, and its tests run side by side.

mod folder;
mod hostile;
mod image_region;
mod imagenet;
mod ledger;
mod loader;
mod manifest;
mod mixing;
mod open;
mod order;
mod packed_file;
mod parquet;
mod remote;
mod resampled;
mod shapes;
mod shards;
mod stage;
mod unreadable;
