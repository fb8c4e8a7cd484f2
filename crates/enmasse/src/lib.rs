//! Data-parallel training of image classifiers: the program, and the library's prelude.
