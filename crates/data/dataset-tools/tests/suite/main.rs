//! One program of tests: it is linked once, and its tests run side by side.

mod imagenet;
#[path = "../../../datasets/tests/suite/kaggle.rs"]
mod kaggle;
mod stage;
