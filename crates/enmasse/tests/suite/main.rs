//! One program of tests: it is linked once, and its tests run side by side.

mod bad_inputs;
mod common;
mod devices;
mod doctor;
mod elastic;
mod hanging;
mod launch;
mod library;
mod little_memory;
mod memory;
mod options;
mod predict;
mod ranks;
mod requeue;
mod resume;
mod round_trip;
mod screen;
mod settings;
mod slurm;
mod slurm_script;
mod stopping;
mod terminal;
mod torchrun;
mod tutorials;
mod unreadable;
mod weights;
