//! The reference device: any plan in f64 with plain loops, collectives included. The oracle of every test.
