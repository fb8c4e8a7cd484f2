//! The `enmasse` program.
fn main() {}
