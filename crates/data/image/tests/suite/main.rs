//! One program of tests: it is linked once, and its tests run side by side.

mod augment;
mod fixtures;
mod mixing;
mod region;
mod resize;
