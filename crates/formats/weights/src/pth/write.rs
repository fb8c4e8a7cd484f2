//! Writes the zip form as `torch.save(model.state_dict(), FILE)` would: stored entries, storages aligned to 64 bytes so
//! that PyTorch can map them, and a pickle that `torch.load(weights_only=True)` accepts.

use std::io::{self, Error, ErrorKind, Write};

use enmasse_pickle::{Call, Object};

use crate::named::counter_name;
use crate::{Bytes, Tensors, check_tensors};

/// The folder in front of each name in the file.
const FOLDER: &str = "enmasse";
const ALIGNMENT: u64 = 64;

/// Writes tensors as a `state_dict` of f32. Each `X.running_mean` gets its `X.num_batches_tracked`, with the value
/// `counters`, in PyTorch's place: after the statistics.
///
/// # Errors
/// The tensors cannot be written ([`check_tensors`]), or `out` cannot. Or they have more than 4 GiB, or are more than
/// 65,535: the form would need another kind of directory.
pub fn write<T: Tensors + ?Sized>(out: &mut (impl Write + Send), tensors: &T, counters: i64) -> io::Result<()> {
    check_tensors(tensors).map_err(|reason| Error::new(ErrorKind::InvalidInput, reason))?;
    let storages = storages(tensors, counters);
    let mut zip = Zip { out, offset: 0, directory: Vec::new(), count: 0 };
    zip.add("data.pkl", &Content::<T>::Bytes(&pickle(tensors, &storages)))?;
    zip.add("byteorder", &Content::<T>::Bytes(b"little"))?;
    for (index, storage) in storages.iter().enumerate() {
        let content = match storage {
            Storage::Tensor(tensor) => Content::Values(tensors, *tensor),
            Storage::Counter { bytes, .. } => Content::Bytes(bytes),
        };
        zip.add(&format!("data/{index}"), &content)?;
    }
    zip.add("version", &Content::<T>::Bytes(b"3\n"))?;
    zip.finish()
}

/// Each tensor has its own storage.
enum Storage {
    /// The tensor with this index.
    Tensor(usize),
    Counter {
        name: String,
        bytes: [u8; 8],
    },
}

impl Storage {
    fn describe<'a, T: Tensors + ?Sized>(&'a self, tensors: &'a T) -> (&'a str, &'a [usize], &'static str, usize) {
        match self {
            &Storage::Tensor(index) => {
                (tensors.name(index), tensors.shape(index), "FloatStorage", tensors.elements(index))
            }
            Storage::Counter { name, .. } => (name, &[], "LongStorage", 1),
        }
    }
}

fn storages<T: Tensors + ?Sized>(tensors: &T, counters: i64) -> Vec<Storage> {
    let mut storages = Vec::new();
    let mut counter = None;
    for index in 0..tensors.count() {
        storages.push(Storage::Tensor(index));
        let name = tensors.name(index);
        counter = counter_name(name).or(counter);
        let mean_before_variance = name.ends_with("running_mean")
            && index + 1 < tensors.count()
            && tensors.name(index + 1).ends_with("running_var");
        if !mean_before_variance && let Some(name) = counter.take() {
            storages.push(Storage::Counter { name, bytes: counters.to_le_bytes() });
        }
    }
    storages
}

fn pickle<T: Tensors + ?Sized>(tensors: &T, storages: &[Storage]) -> Vec<u8> {
    let numbers = |numbers: &[usize]| numbers.iter().map(|&number| Object::Int(number as i64)).collect::<Object>();
    let ordered_dict = || Object::global("collections", "OrderedDict");
    let entry = |(index, storage): (usize, &Storage)| {
        let (name, shape, class, count) = storage.describe(tensors);
        let key = index.to_string();
        let storage = ["storage".into(), Object::global("torch", class), key.as_str().into(), "cpu".into()];
        let storage = storage.into_iter().chain([Object::Int(count as i64)]).collect::<Object>();
        let stride: Vec<usize> = (1..=shape.len()).map(|dimension| shape[dimension..].iter().product()).collect();
        let hooks = Object::call(ordered_dict(), []);
        let arguments = [
            Object::Persistent(storage.into()),
            Object::Int(0),
            numbers(shape),
            numbers(&stride),
            Object::Bool(false),
            hooks,
        ];
        (Object::from(name), Object::call(Object::global("torch._utils", "_rebuild_tensor_v2"), arguments))
    };
    let entries = storages.iter().enumerate().map(entry).collect();
    let function = ordered_dict();
    let arguments = Object::Tuple([].into());
    let state_dict = Call { function, arguments, state: None, elements: Vec::new(), entries };
    enmasse_pickle::write(&Object::Call(state_dict.into()))
}

enum Content<'a, T: ?Sized> {
    Bytes(&'a [u8]),
    /// The values of the tensor with this index.
    Values(&'a T, usize),
}

impl<T: Tensors + ?Sized> Content<'_, T> {
    fn len(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Values(tensors, index) => tensors.elements(*index) as u64 * 4,
        }
    }

    fn for_bytes(&self, to: &mut Bytes) -> io::Result<()> {
        match self {
            Content::Bytes(bytes) => to(bytes),
            Content::Values(tensors, index) => tensors.for_bytes(*index, to),
        }
    }
}

/// A zip file being written. Times are zero, so that equal tensors make equal files.
struct Zip<'a, W> {
    out: &'a mut W,
    offset: u64,
    directory: Vec<u8>,
    count: u16,
}

impl<W: Write + Send> Zip<'_, W> {
    /// Reads the content twice: its checksum precedes it.
    fn add<T: Tensors + ?Sized>(&mut self, name: &str, content: &Content<T>) -> io::Result<()> {
        let name = format!("{FOLDER}/{name}");
        let mut checksum = crc32fast::Hasher::new();
        content.for_bytes(&mut |bytes| {
            checksum.update(bytes);
            Ok(())
        })?;
        let header_offset = narrow(self.offset)?.to_le_bytes();
        let len = narrow(content.len())?.to_le_bytes();
        // An extra field of any length, which readers skip, moves the content to its place.
        let before_padding = self.offset + 30 + name.len() as u64 + 4;
        let padding = before_padding.next_multiple_of(ALIGNMENT) - before_padding;
        let mut about = Vec::new();
        // Version 2.0, no flags, stored, no time.
        about.extend([20, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        about.extend(checksum.finalize().to_le_bytes());
        about.extend(len);
        about.extend(len);
        about.extend((name.len() as u16).to_le_bytes());

        let mut header = b"PK\x03\x04".to_vec();
        header.extend(&about);
        header.extend((4 + padding as u16).to_le_bytes());
        header.extend(name.as_bytes());
        header.extend(b"FB");
        header.extend((padding as u16).to_le_bytes());
        header.extend(std::iter::repeat_n(b'Z', padding as usize));
        self.out.write_all(&header)?;
        content.for_bytes(&mut |bytes| self.out.write_all(bytes))?;
        self.offset += header.len() as u64 + content.len();

        self.directory.extend(b"PK\x01\x02\x14\0");
        self.directory.extend(&about);
        // No extra field, comment, disk or attributes.
        self.directory.extend([0; 12]);
        self.directory.extend(header_offset);
        self.directory.extend(name.as_bytes());
        self.count = self.count.checked_add(1).ok_or_else(too_large)?;
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
        end.extend(self.count.to_le_bytes());
        end.extend(self.count.to_le_bytes());
        end.extend(narrow(self.directory.len() as u64)?.to_le_bytes());
        end.extend(narrow(self.offset)?.to_le_bytes());
        end.extend([0; 2]);
        self.out.write_all(&self.directory)?;
        self.out.write_all(&end)
    }
}

/// All ones would mean that the number is stored elsewhere.
fn narrow(value: u64) -> io::Result<u32> {
    u32::try_from(value).ok().filter(|&value| value != u32::MAX).ok_or_else(too_large)
}

fn too_large() -> Error {
    Error::new(ErrorKind::InvalidInput, "these weights are too large for a .pth file; use safetensors")
}
