//! One program of tests: it is linked once, and its tests run side by side.

mod check;
mod golden;
mod shell;
