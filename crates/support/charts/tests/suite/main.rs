//! One program of tests: it is linked once, and its tests run side by side.

mod charts;
mod common;
mod confusion;
mod curves;
mod evaluation;
