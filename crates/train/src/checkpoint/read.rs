//! Reading safetensors files, from us and from strangers, within stated limits.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{COUNTER_SUFFIX, CheckpointError, NamedTensor, OPTIMIZER_PREFIX};
use crate::file::FileError;

/// A header names tensors and holds texts; beyond this it is not one.
const HEADER_LIMIT: u64 = 16 << 20;
/// No model here comes near; a larger file is something else, or an attack on memory.
const FILE_LIMIT: u64 = 16 << 30;

/// Element types that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DType {
    F16,
    BF16,
    F32,
    F64,
    I64,
}

impl DType {
    pub const fn name(self) -> &'static str {
        match self {
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::F32 => "F32",
            DType::F64 => "F64",
            DType::I64 => "I64",
        }
    }

    const fn size(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }
}

/// A tensor in a file.
pub(super) struct Entry {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    len: usize,
}

/// A file whose header is read and makes sense. Tensors follow one another without gaps up to the end of the file.
pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
    pub metadata: BTreeMap<String, String>,
    entries: Vec<Entry>,
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let refuse = |reason: String| CheckpointError::content(path, reason);
        let read_error = || FileError::of("read", path);
        // Looked at before it is opened: opening a pipe would wait for its other end.
        let about = std::fs::metadata(path).map_err(read_error())?;
        if !about.is_file() {
            return Err(refuse("is not a file".to_owned()));
        }
        let mut file = File::open(path).map_err(read_error())?;
        // Of the file that was opened: a running trainer may have put another one in its place since.
        let file_len = file.metadata().map_err(read_error())?.len();
        if file_len > FILE_LIMIT {
            return Err(refuse(format!("has {file_len} bytes; more than {FILE_LIMIT} are not read")));
        }
        let no_header = || refuse("is not a safetensors file, or only the beginning of one".to_owned());
        let mut header_len = [0; 8];
        file.read_exact(&mut header_len).map_err(|_| no_header())?;
        let header_len = u64::from_le_bytes(header_len);
        if header_len > HEADER_LIMIT || header_len > file_len.saturating_sub(8) {
            return Err(no_header());
        }
        let mut header = vec![0; header_len as usize];
        file.read_exact(&mut header).map_err(|_| no_header())?;
        // Checks that sizes fit shapes, that nothing overflows, and that there are no gaps.
        let header: Metadata = serde_json::from_slice(&header).map_err(|_| no_header())?;
        let (stated, found) = (header.data_len() as u64, file_len - 8 - header_len);
        if stated != found {
            return Err(refuse(format!("is damaged: its tensors take {stated} bytes, and {found} are there")));
        }
        let entries = header.offset_keys().into_iter().filter_map(|name| {
            let info = header.info(&name)?;
            let dtype = match info.dtype {
                Dtype::F16 => Ok(DType::F16),
                Dtype::BF16 => Ok(DType::BF16),
                Dtype::F32 => Ok(DType::F32),
                Dtype::F64 => Ok(DType::F64),
                Dtype::I64 => Ok(DType::I64),
                other => Err(refuse(format!("tensor {name} holds {other:?}; weights are F32, F64, F16 or BF16"))),
            };
            let (start, end) = info.data_offsets;
            Some(dtype.map(|dtype| Entry { name, dtype, shape: info.shape.clone(), len: end - start }))
        });
        let entries = entries.collect::<Result<_, _>>()?;
        let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(TensorFile { path: path.to_owned(), file, metadata, entries })
    }

    /// The tensors in file order, in which they must be read.
    pub fn entries(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }

    /// The values of the next tensor as f32, shown to `seen` as the bytes they are; none of integers.
    pub fn read(&mut self, entry: &Entry, mut seen: impl FnMut(&[u8])) -> Result<Vec<f32>, CheckpointError> {
        let mut values = Vec::new();
        let wanted = if entry.dtype == DType::I64 { 0 } else { entry.len / entry.dtype.size() };
        values.try_reserve_exact(wanted).map_err(|_| {
            CheckpointError::content(
                &self.path,
                format!("no memory for the {} bytes of tensor {}", entry.len, entry.name),
            )
        })?;
        let mut buffer = [0; 1 << 14];
        let mut left = entry.len;
        while left > 0 {
            let piece = &mut buffer[..left.min(1 << 14)];
            self.file.read_exact(piece).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => CheckpointError::content(&self.path, "was cut short while it was read"),
                _ => FileError::of("read", &self.path)(error).into(),
            })?;
            seen(piece);
            decode(entry.dtype, piece, &mut values);
            left -= piece.len();
        }
        Ok(values)
    }
}

/// Whether a safetensors file is a checkpoint of a run, by its metadata; bare weights say nothing of a run.
pub fn is_checkpoint(path: &Path) -> Result<bool, CheckpointError> {
    Ok(TensorFile::open(path)?.metadata.contains_key("format_version"))
}

/// Reads the weights of a bare safetensors file, such as PyTorch or torchvision's users write, or of a checkpoint; f16, bf16
/// and f64 become f32. Batch norm's counters and optimiser state are left out.
pub fn load_weights(path: &Path) -> Result<Vec<NamedTensor>, CheckpointError> {
    let mut file = TensorFile::open(path)?;
    let mut tensors = Vec::new();
    for entry in file.entries() {
        let values = file.read(&entry, |_| ())?;
        if entry.name.ends_with(COUNTER_SUFFIX) || entry.name.starts_with(OPTIMIZER_PREFIX) {
            continue;
        }
        if entry.dtype == DType::I64 {
            let reason = format!("tensor {} holds integers; weights are F32, F64, F16 or BF16", entry.name);
            return Err(CheckpointError::content(path, reason));
        }
        tensors.push(NamedTensor { name: entry.name, shape: entry.shape, values });
    }
    if tensors.is_empty() {
        return Err(CheckpointError::content(path, "holds no weights"));
    }
    Ok(tensors)
}

/// Appends little-endian values as f32. Pieces are whole numbers of elements, as every size divides the buffer's.
fn decode(dtype: DType, bytes: &[u8], values: &mut Vec<f32>) {
    fn each<const N: usize>(bytes: &[u8], values: &mut Vec<f32>, value: impl Fn([u8; N]) -> f32) {
        values.extend(bytes.as_chunks::<N>().0.iter().map(|&bytes| value(bytes)));
    }
    match dtype {
        DType::F16 => each(bytes, values, |bytes| f16_to_f32(u16::from_le_bytes(bytes))),
        DType::BF16 => each(bytes, values, |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)),
        DType::F32 => each(bytes, values, f32::from_le_bytes),
        DType::F64 => each(bytes, values, |bytes| f64::from_le_bytes(bytes) as f32),
        DType::I64 => {}
    }
}

/// IEEE half precision: one sign bit, five of exponent (bias 15), ten of fraction. Every value is exact in f32.
fn f16_to_f32(half: u16) -> f32 {
    let sign = if half >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(half >> 10 & 31), f32::from(half & 1023));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_known_answers() {
        let check = |half, expected: f32| assert_eq!(f16_to_f32(half).to_bits(), expected.to_bits(), "{half:04x}");
        check(0x0000, 0.0);
        check(0x8000, -0.0);
        check(0x3C00, 1.0);
        check(0xC000, -2.0);
        check(0x7BFF, 65504.0);
        check(0x0400, 6.103_515_6e-5);
        check(0x0001, 5.960_464_5e-8);
        check(0x3555, 0.333_251_95);
        check(0xFC00, f32::NEG_INFINITY);
        assert!(f16_to_f32(0x7E00).is_nan());
    }
}
