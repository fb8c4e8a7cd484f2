//! The kernels in the form that the program carries: PTX, which a driver compiles for its GPU.

use std::io::Read;

use flate2::read::GzDecoder;

/// All kernels, made from the sources by `kernels/make_ptx.py`, with gzip's checksum.
const COMPRESSED: &[u8] = include_bytes!("../../kernels/kernels.ptx.gz");

/// The text of all kernels.
pub(crate) fn ptx() -> String {
    let mut text = String::new();
    GzDecoder::new(COMPRESSED).read_to_string(&mut text).expect("these bytes are the program's own");
    text
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
        // FNV-1a, as make_ptx.py computes it.
        let bytes = texts.iter().flat_map(|(name, text)| [name.as_encoded_bytes(), &[0], text, &[0]].concat());
        let hash =
            bytes.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
        let first = format!("// Sources {hash:016x}; ");
        assert!(ptx().starts_with(&first), "the kernels have changed: run crates/backends/cuda/kernels/make_ptx.py");
    }

    #[test]
    fn the_oldest_gpu_is_that_of_the_ptx() {
        let [major, minor] = crate::gpu::OLDEST_CAPABILITY;
        assert!(ptx().lines().any(|line| line == format!(".target sm_{major}{minor}")));
    }

    #[test]
    fn the_ptx_is_what_nvrtc_makes() {
        let Some(folder) = test_support::cuda() else { return };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(folder.clone()).chain(std::env::split_paths(&path))).unwrap();
        let script = Path::new(SOURCES).join("make_ptx.py");
        let mut check = Command::new("python3");
        let output =
            check.arg(script).arg("--check").env("LD_LIBRARY_PATH", folder).env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
