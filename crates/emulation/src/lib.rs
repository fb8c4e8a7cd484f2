//! For tests: NVIDIA's driver and libraries over host memory, and our kernels compiled for the host.
