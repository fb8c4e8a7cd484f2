//! Slurm's lists of nodes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_launch::fuzzing::node_list(bytes));
