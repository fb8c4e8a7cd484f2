//! One program of tests: it is linked once, and its tests run side by side.

mod aliasing;
mod common;
mod gradients;
mod loss_scale;
mod random_models;
mod shards;
mod steps;
mod targets;
