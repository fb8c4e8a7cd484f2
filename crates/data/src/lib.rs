//! Pictures: data sets, decoding, transforms, sampling and the loader.
