//! NVIDIA's libraries by name: the files that hold each, and the package that brings it.

use std::fmt;

/// A library of NVIDIA's, in the versions that this build can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Library {
    /// The driver: CUDA's driver API.
    Driver,
    /// The part of the driver that knows about other programs on a GPU (NVML).
    Management,
    /// cuDNN 9.
    Cudnn,
    /// cuBLASLt of CUDA 12 or 13, but of no later CUDA than this major version, the driver's.
    CublasLt {
        /// Major version of CUDA.
        newest: u32,
    },
    /// The compiler at run time of exactly this major version of CUDA. cuDNN loads it.
    Nvrtc {
        /// Major version of CUDA.
        major: u32,
    },
    /// NCCL 2.
    Nccl,
}

impl Library {
    /// The names of its file, the best first.
    pub(super) fn files(self) -> Vec<String> {
        match self {
            Library::Driver => vec!["libcuda.so.1".to_owned()],
            Library::Management => vec!["libnvidia-ml.so.1".to_owned()],
            Library::Cudnn => vec!["libcudnn.so.9".to_owned()],
            Library::CublasLt { newest } => [13, 12]
                .iter()
                .filter(|major| **major <= newest)
                .map(|major| format!("libcublasLt.so.{major}"))
                .collect(),
            Library::Nvrtc { major } => vec![format!("libnvrtc.so.{major}")],
            Library::Nccl => vec!["libnccl.so.2".to_owned()],
        }
    }

    /// Which package brings the library, as a request that ends before its object.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Library::Driver | Library::Management => "NVIDIA's driver brings it: install",
            Library::Cudnn => "PyPI's nvidia-cudnn-cu12 (or -cu13) or NVIDIA's package cudnn9 brings it: install",
            Library::CublasLt { .. } => {
                "PyPI's nvidia-cublas-cu12 (nvidia-cublas for CUDA 13) or the CUDA toolkit brings it: install"
            }
            Library::Nvrtc { .. } => {
                "PyPI's nvidia-cuda-nvrtc-cu12 (nvidia-cuda-nvrtc for CUDA 13) or the CUDA toolkit brings it: install"
            }
            Library::Nccl => "PyPI's nvidia-nccl-cu12 (or -cu13) or NVIDIA's package libnccl2 brings it: install",
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Driver => "NVIDIA's driver",
            Library::Management => "NVML",
            Library::Cudnn => "cuDNN",
            Library::CublasLt { .. } => "cuBLASLt",
            Library::Nvrtc { .. } => "NVRTC",
            Library::Nccl => "NCCL",
        })
    }
}
