//! The data of a command: where those of a saved run are, copies of them, and stand-ins for none.

pub mod of_run;
pub mod staging;
pub mod stand_in;
