//! The kernels in the forms that the program carries: cubins, which are the machine code of some kinds of GPUs, and PTX, which
//! a driver compiles for any other. `kernels/make_binaries.py` makes them from the sources.

use std::io::Read;

use flate2::read::GzDecoder;

use crate::driver::Binary;

/// A file of `kernels/binaries`, with gzip's checksum.
macro_rules! compressed {
    ($name:literal) => {
        include_bytes!(concat!("../../kernels/binaries/", $name, ".gz"))
    };
}

/// The cubins, and the compute capability of each.
const CUBINS: [([u32; 2], &[u8]); 4] = [
    ([8, 0], compressed!("sm_80.cubin")),
    ([9, 0], compressed!("sm_90.cubin")),
    ([10, 0], compressed!("sm_100.cubin")),
    ([12, 0], compressed!("sm_120.cubin")),
];

const PTX: &[u8] = compressed!("kernels.ptx");

/// The cubin for a GPU of this compute capability. A cubin runs on GPUs of its major version with the same or a later minor one.
pub(crate) fn cubin([major, minor]: [u32; 2]) -> Option<Binary> {
    let runs = |of: [u32; 2]| of[0] == major && of[1] <= minor;
    let (of, compressed) = CUBINS.iter().find(|(of, _)| runs(*of))?;
    // `follow` in kernel.h.
    Some(Binary { bytes: decompressed(compressed), waits: *of >= [9, 0] })
}

/// The PTX of all kernels, a text.
pub(crate) fn ptx() -> Binary {
    Binary { bytes: decompressed(PTX), waits: false }
}

fn decompressed(binary: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(binary).read_to_end(&mut bytes).expect("these bytes are the program's own");
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");

    #[test]
    fn the_ptx_belongs_to_the_sources() {
        let mut texts = BTreeMap::new();
        for entry in fs::read_dir(SOURCES).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| ["cu", "h", "py"].iter().any(|&source| extension == source)) {
                texts.insert(path.file_name().unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
        // FNV-1a, as make_binaries.py computes it.
        let bytes = texts.iter().flat_map(|(name, text)| [name.as_encoded_bytes(), &[0], text, &[0]].concat());
        let hash =
            bytes.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
        let first = format!("// Sources {hash:016x}; ");
        assert!(
            ptx().bytes.starts_with(first.as_bytes()),
            "the kernels have changed: run crates/backends/cuda/kernels/make_binaries.py"
        );
    }

    #[test]
    fn the_oldest_gpu_is_that_of_the_ptx() {
        let [major, minor] = crate::gpu::OLDEST_CAPABILITY;
        let text = String::from_utf8(ptx().bytes).unwrap();
        assert!(text.lines().any(|line| line == format!(".target sm_{major}{minor}")));
    }

    #[test]
    fn each_gpu_has_the_cubin_of_its_major_version() {
        /// What `e_flags` of a cubin says, in the place that its version of the format has for it.
        fn architecture(cubin: &[u8]) -> u32 {
            let flags = u32::from_le_bytes(cubin[48..52].try_into().unwrap());
            (if cubin[7] == 0x33 { flags } else { flags >> 8 }) & 0xFF
        }
        let check = |capability: [u32; 2], expected: Option<u32>| {
            assert_eq!(cubin(capability).map(|cubin| architecture(&cubin.bytes)), expected, "{capability:?}");
        };
        check([7, 5], None);
        check([8, 0], Some(80));
        check([8, 6], Some(80));
        check([8, 9], Some(80));
        check([9, 0], Some(90));
        check([10, 0], Some(100));
        check([10, 3], Some(100));
        check([11, 0], None);
        check([12, 1], Some(120));
        check([13, 0], None);
    }

    #[test]
    fn every_kernel_waits_for_the_one_before_it() {
        let global = |path: &Path| fs::read_to_string(path).unwrap().matches("__global__").count();
        let sources = fs::read_dir(SOURCES).unwrap().map(|entry| entry.unwrap().path());
        let sources =
            sources.filter(|path| path.extension().is_some_and(|extension| extension != "py" && path.is_file()));
        let declaring: Vec<_> = sources.filter(|path| global(path) > 0).collect();
        assert_eq!(declaring, [Path::new(SOURCES).join("kernel.h")], "KERNEL declares all, and lets them wait");
    }

    #[test]
    fn cubins_have_the_kernels_of_the_ptx() {
        let text = String::from_utf8(ptx().bytes).unwrap();
        let kernels = text.lines().filter_map(|line| line.strip_prefix(".visible .entry ")?.strip_suffix('('));
        let sections: Vec<String> = kernels.map(|kernel| format!("\0.text.{kernel}\0")).collect();
        assert!(!sections.is_empty());
        for (capability, compressed) in CUBINS {
            let cubin = decompressed(compressed);
            for section in &sections {
                let is_there = cubin.windows(section.len()).any(|bytes| bytes == section.as_bytes());
                assert!(is_there, "{capability:?} lacks {section:?}");
            }
        }
    }

    #[test]
    fn the_binaries_are_what_nvrtc_makes() {
        let Some(folder) = test_support::cuda() else { return };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(folder.clone()).chain(std::env::split_paths(&path))).unwrap();
        let script = Path::new(SOURCES).join("make_binaries.py");
        let mut check = Command::new("python3");
        let output =
            check.arg(script).arg("--check").env("LD_LIBRARY_PATH", folder).env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
