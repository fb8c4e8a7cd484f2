//! One program of tests: it is linked once, and its tests run side by side.

mod checkpointing;
mod common;
mod frozen;
mod losses;
mod plans;
mod torch;
mod torchvision;
