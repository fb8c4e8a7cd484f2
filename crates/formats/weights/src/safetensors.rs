//! Safetensors files: a length, a JSON header with tensors and texts, then the tensors' bytes without gaps.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use safetensors::tensor::Metadata;
use serde_json::{Map, json};

use crate::element::{ByteOrder, ElementType};
use crate::named::{Collector, is_counter};
use crate::source::Source;
use crate::{Tensors, WeightsError, check_tensors, counter_names};

/// Size limit of a header, in bytes.
const HEADER_LIMIT: u64 = 16 << 20;
/// What a byte of a header takes at most once it is parsed, in bytes.
const PARSED: u64 = 64;

/// A tensor in a file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub element: ElementType,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    offset: u64,
    count: usize,
}

/// A file whose header has been read and checked.
pub struct TensorFile {
    source: Source,
    /// The texts in the header.
    pub metadata: BTreeMap<String, String>,
    /// The tensors, in the order of their bytes, which extend to the end of the file.
    pub entries: Vec<Entry>,
}

impl TensorFile {
    /// Opens a file and reads its header, of at most 16 MiB.
    ///
    /// # Errors
    /// The file cannot be read, or its header is malformed or too long, or says what is not supported.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let source = Source::open(path)?;
        let (metadata, entries) = header(&source)?;
        Ok(TensorFile { source, metadata, entries })
    }

    /// The values of a tensor as f32.
    ///
    /// # Errors
    /// The file cannot be read, or there is no memory for them.
    pub fn read(&self, entry: &Entry) -> Result<Vec<f32>, WeightsError> {
        let mut values = Vec::new();
        self.source.decode(entry.offset, entry.element, ByteOrder::Little, entry.count, &mut values)?;
        Ok(values)
    }

    /// Passes the bytes of a tensor to `seen`, a piece at a time.
    ///
    /// # Errors
    /// The file cannot be read. `seen` may have got some of the bytes then.
    pub fn scan(&self, entry: &Entry, mut seen: impl FnMut(&[u8])) -> Result<(), WeightsError> {
        self.source.scan(entry.offset, entry.count as u64 * entry.element.size() as u64, |bytes| seen(bytes))
    }
}

fn header(source: &Source) -> Result<(BTreeMap<String, String>, Vec<Entry>), WeightsError> {
    let no_header = || source.refuse("is not a safetensors file, or it is truncated");
    let header_len = u64::from_le_bytes(source.array(0).map_err(|_| no_header())?);
    let Some(found) = source.len().checked_sub(8).and_then(|rest| rest.checked_sub(header_len)) else {
        return Err(no_header());
    };
    if header_len > HEADER_LIMIT {
        return Err(no_header());
    }
    let header = source.bytes(8, header_len as usize)?;
    source.require(header_len * PARSED)?;
    // Checks that sizes match shapes, that nothing overflows, and that there are no gaps.
    let header: Metadata = serde_json::from_slice(&header).map_err(|_| no_header())?;
    let stated = header.data_len() as u64;
    if stated != found {
        return Err(source.refuse(format!("is damaged: its tensors take {stated} bytes, and {found} are there")));
    }
    let mut entries = Vec::new();
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        let dtype = format!("{:?}", info.dtype);
        let Some(element) = ElementType::of_safetensors(&dtype) else {
            let reason = format!("tensor {name} holds {dtype}; weights are floats of 16 to 64 bits, or integers");
            return Err(source.refuse(reason));
        };
        let (start, end) = info.data_offsets;
        let offset = 8 + header_len + start as u64;
        let count = (end - start) / element.size();
        entries.push(Entry { name, element, shape: info.shape.clone(), offset, count });
    }
    let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    Ok((metadata, entries))
}

pub(crate) fn collect(source: &Source, collector: &mut Collector) -> Result<(), WeightsError> {
    let (_, entries) = header(source)?;
    for Entry { name, element, shape, offset, count } in entries {
        if is_counter(&name) {
            continue;
        }
        collector.take(&name, count as u64)?;
        let mut values = Vec::new();
        source.decode(offset, element, ByteOrder::Little, count, &mut values)?;
        collector.push(name, shape, values);
    }
    Ok(())
}

/// Writes a file of tensors and texts. Each `X.running_mean` gets its `X.num_batches_tracked`, with the value
/// `counters`; these come first, then the tensors as given.
///
/// # Errors
/// The tensors cannot be written ([`check_tensors`]), or `out` cannot.
pub fn write<T: Tensors + ?Sized>(
    out: &mut (impl Write + Send),
    metadata: &BTreeMap<String, String>,
    tensors: &T,
    counters: i64,
) -> io::Result<()> {
    check_tensors(tensors).map_err(|reason| io::Error::new(io::ErrorKind::InvalidInput, reason))?;
    let counter_names = counter_names(tensors);
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), json!(metadata));
    }
    let mut offset = 0;
    let mut entry = |name: &str, element: ElementType, shape: &[usize], count: usize| {
        let offsets = [offset, offset + count * element.size()];
        offset = offsets[1];
        header.insert(name.to_owned(), json!({"dtype": element.name(), "shape": shape, "data_offsets": offsets}));
    };
    // Counters come first: eight-byte elements stay aligned only before four-byte ones.
    counter_names.iter().for_each(|name| entry(name, ElementType::I64, &[], 1));
    for index in 0..tensors.count() {
        entry(tensors.name(index), ElementType::F32, tensors.shape(index), tensors.elements(index));
    }
    let mut header = serde_json::Value::Object(header).to_string();
    // The format requires data aligned to eight bytes; blanks after the JSON are allowed.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));

    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    counter_names.iter().try_for_each(|_| out.write_all(&counters.to_le_bytes()))?;
    (0..tensors.count()).try_for_each(|index| tensors.for_bytes(index, &mut |bytes| out.write_all(bytes)))
}
