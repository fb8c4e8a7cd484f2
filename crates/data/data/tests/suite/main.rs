//! One program of tests: it is linked once, and its tests run side by side.

mod loader;
mod mixing;
mod order;
mod resampled;
mod unreadable;
