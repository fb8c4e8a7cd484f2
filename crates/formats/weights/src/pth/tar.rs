//! The tar form, from PyTorch before 0.2: members `sys_info`, `storages`, `tensors` and `pickle`, each made of pickles
//! with numbers between them.

use std::collections::HashMap;

use super::Parts;
use super::legacy::{byte_order, counted_storage};
use super::objects::{Persistents, StorageKey, element_of_class, number};
use super::pickles::Pickles;
use super::storage::{Storages, TensorView};
use crate::WeightsError;
use crate::element::ByteOrder;
use crate::source::Source;

/// Limit of the storages, and of the tensors, read from one file.
const COUNT_LIMIT: i64 = 1 << 17;
const DIMENSIONS: u32 = 64;
const BLOCK: u64 = 512;

pub(super) fn open(source: &Source) -> Result<Parts, WeightsError> {
    let member = |name: &str| {
        find_member(source, name)?
            .ok_or_else(|| source.refuse(format!("is a tar file, but not one of PyTorch's: it has no {name}")))
    };
    let (start, end) = member("pickle")?;
    let object = Pickles::new(source, start, end).next()?;
    let order = match find_member(source, "sys_info")? {
        Some((start, end)) => byte_order(&Pickles::new(source, start, end).next()?),
        None => ByteOrder::Little,
    };
    let mut places = HashMap::new();
    let storages = read_storages(source, member("storages")?, order, &mut places)?;
    let tensors = read_tensors(source, member("tensors")?, order, &storages)?;
    let persistents = Persistents::Numbered { storages, tensors };
    Ok(Parts { object, persistents, storages: Storages { order, places } })
}

/// The number of pickles that follow.
fn count(pickles: &mut Pickles, source: &Source) -> Result<i64, WeightsError> {
    let count = pickles.next()?.as_int().filter(|count| (0..=COUNT_LIMIT).contains(count));
    count.ok_or_else(|| source.damaged("it counts more storages or tensors than a model has"))
}

/// Their number, then each as `(key, device, class)` and its elements; then parts of them as `(key, whole, offset,
/// elements)`.
fn read_storages(
    source: &Source,
    (start, end): (u64, u64),
    order: ByteOrder,
    places: &mut HashMap<String, (u64, u64)>,
) -> Result<HashMap<i64, StorageKey>, WeightsError> {
    let damaged = || source.damaged("its list of storages is malformed");
    let mut pickles = Pickles::new(source, start, end);
    let mut storages = HashMap::new();
    for _ in 0..count(&mut pickles, source)? {
        let about = pickles.next()?;
        let Some([key, _device, class]) = about.as_slice() else { return Err(damaged()) };
        let key = number(key).ok_or_else(damaged)?;
        let element = element_of_class(class).map_err(|problem| source.refuse(format!("a tensor {problem}")))?;
        let (place, next) = counted_storage(source, pickles.position, element, order)?;
        pickles.position = next;
        places.insert(key.to_string(), place);
        storages.insert(key, StorageKey { key: key.to_string(), element, offset: 0 });
    }
    let parts = pickles.next()?;
    for part in parts.as_slice().ok_or_else(damaged)? {
        let Some([key, whole, offset, _elements]) = part.as_slice() else { return Err(damaged()) };
        let (key, whole) = number(key).zip(number(whole)).ok_or_else(damaged)?;
        let whole = storages.get(&whole).ok_or_else(damaged)?;
        let offset = offset.as_int().and_then(|offset| u64::try_from(offset).ok()).ok_or_else(damaged)?;
        let offset = whole.offset.checked_add(offset).ok_or_else(damaged)?;
        let part = StorageKey { offset, ..whole.clone() };
        storages.insert(key, part);
    }
    Ok(storages)
}

/// Their number, then each as `(key, storage, class)` and its dimensions, sizes, strides and offset.
fn read_tensors(
    source: &Source,
    (start, end): (u64, u64),
    order: ByteOrder,
    storages: &HashMap<i64, StorageKey>,
) -> Result<HashMap<i64, TensorView>, WeightsError> {
    let damaged = || source.damaged("its list of tensors is malformed");
    let mut pickles = Pickles::new(source, start, end);
    let mut tensors = HashMap::new();
    for _ in 0..count(&mut pickles, source)? {
        let about = pickles.next()?;
        let Some([key, storage, _class]) = about.as_slice() else { return Err(damaged()) };
        let storage = number(storage).and_then(|storage| storages.get(&storage)).ok_or_else(damaged)?;
        let (key, element) = number(key).zip(storage.element).ok_or_else(damaged)?;
        let mut next = |wide: bool| -> Result<u64, WeightsError> {
            let bytes: [u8; 8] = source.array(pickles.position)?;
            pickles.position += 8;
            // The number of dimensions takes four bytes; the four bytes after it are unused.
            let narrow = [bytes[0], bytes[1], bytes[2], bytes[3]];
            Ok(match (wide, order) {
                (true, ByteOrder::Little) => u64::from_le_bytes(bytes),
                (true, ByteOrder::Big) => u64::from_be_bytes(bytes),
                (false, ByteOrder::Little) => u32::from_le_bytes(narrow).into(),
                (false, ByteOrder::Big) => u32::from_be_bytes(narrow).into(),
            })
        };
        let dimensions = next(false)?;
        if dimensions > DIMENSIONS.into() {
            return Err(damaged());
        }
        let shape = (0..dimensions).map(|_| Ok(next(true)? as usize)).collect::<Result<_, WeightsError>>()?;
        let stride = (0..dimensions).map(|_| next(true)).collect::<Result<_, _>>()?;
        let offset = next(true)?.checked_add(storage.offset).ok_or_else(damaged)?;
        tensors.insert(key, TensorView { storage: storage.key.clone(), element, offset, shape, stride });
    }
    Ok(tensors)
}

/// Start and end of a member's content. Headers and contents are padded to blocks of 512 bytes.
fn find_member(source: &Source, name: &str) -> Result<Option<(u64, u64)>, WeightsError> {
    let mut offset = 0;
    while offset + BLOCK <= source.len() {
        let header: [u8; BLOCK as usize] = source.array(offset)?;
        if header[0] == 0 {
            break;
        }
        let len =
            octal(&header[124..136]).ok_or_else(|| source.damaged("a length in its tar headers is not a number"))?;
        let start = offset + BLOCK;
        let own_name = header[..100].split(|&byte| byte == 0).next().unwrap_or_default();
        let own_name = own_name.strip_prefix(b"./").unwrap_or(own_name);
        if own_name == name.as_bytes() && matches!(header[156], b'0' | 0) {
            let end = start.checked_add(len).filter(|&end| end <= source.len());
            let end = end.ok_or_else(|| source.damaged("a part of it lies beyond its end; it may be cut short"))?;
            return Ok(Some((start, end)));
        }
        offset = match len.checked_next_multiple_of(BLOCK).and_then(|len| start.checked_add(len)) {
            Some(next) => next,
            None => break,
        };
    }
    Ok(None)
}

/// Octal digits between blanks and zero bytes or, for large files, a binary number after a byte of 0x80.
fn octal(field: &[u8]) -> Option<u64> {
    if let [0x80, digits @ ..] = field {
        return digits.iter().try_fold(0u64, |value, &byte| value.checked_mul(256)?.checked_add(byte.into()));
    }
    let digits = field.split(|byte| matches!(byte, 0 | b' ')).find(|digits| !digits.is_empty())?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}
