//! One program of tests: it is linked once, and its tests run side by side.

mod fixtures;
mod folder;
mod loader;
mod open;
mod order;
mod resize;
mod shapes;
mod unreadable;
