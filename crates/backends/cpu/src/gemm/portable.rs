//! Any machine: tiles of up to 4 rows x 8 columns, small enough for the 16 short vector registers that
//! every 64-bit machine has.

super::tile::tiles!(crate::isa::Portable, [1, 2, 3, 4], [1, 2, 3]);
