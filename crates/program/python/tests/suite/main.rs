//! One program of tests: the Python package by Python itself.

mod package;
mod settings;
