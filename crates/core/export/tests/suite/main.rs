//! One program of tests: ONNX Runtime computes what the CPU device computes.

mod common;
mod operations;
mod zoo;
