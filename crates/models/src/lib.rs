//! Image classifiers by their torchvision names, and weights files.
