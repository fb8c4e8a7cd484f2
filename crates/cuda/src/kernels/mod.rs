//! The kernels of `kernels/`, each as a function from operands to [`Kernel`](crate::work::Kernel).
