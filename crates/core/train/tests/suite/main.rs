//! One program of tests: it is linked once, and its tests run side by side.

mod augmentation;
mod averages;
mod callbacks;
mod common;
mod crops;
mod data_parallel;
mod data_wait;
mod diverged;
mod fit;
mod hosting;
mod initial_weights;
mod last_batch;
mod loggers;
mod metrics;
mod mixing;
mod objective;
mod own_optimizer;
mod prediction;
mod pretrained;
mod progress;
mod settings;
mod stopping;
mod test_part;
mod trace;
mod tuning;
mod unreadable;
