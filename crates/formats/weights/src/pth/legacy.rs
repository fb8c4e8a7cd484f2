//! The legacy form: pickles of a magic number, a version, properties of the machine, the object, and the keys of
//! storages. Then the storages follow, each after the number of its elements.

use std::collections::HashMap;

use enmasse_pickle::Object;

use super::Parts;
use super::objects::storage_key;
use super::pickles::Pickles;
use super::storage::Storages;
use crate::WeightsError;
use crate::element::{ByteOrder, ElementType};
use crate::source::Source;

/// 0x1950a86a20f9469cfc6c.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const VERSION: i64 = 1001;

pub(super) fn open(source: &Source) -> Result<Parts, WeightsError> {
    let mut pickles = Pickles::new(source, 0, source.len());
    if !matches!(pickles.next()?, Object::BigInt(magic) if *magic == MAGIC) {
        return Err(source.refuse("is a pickle, but not one written by torch.save"));
    }
    let version = pickles.next()?.as_int();
    if version != Some(VERSION) {
        return Err(source.refuse(format!("is of an unknown version of torch.save's legacy form (not {VERSION})")));
    }
    let order = byte_order(&pickles.next()?);
    let object = pickles.next()?;
    let mut elements = HashMap::new();
    find_storages(&object, &mut elements).map_err(|problem| source.refuse(format!("a tensor {problem}")))?;
    let keys = pickles.next()?;
    let mut places = HashMap::new();
    let mut offset = pickles.position;
    for key in keys.as_slice().ok_or_else(|| source.damaged("its list of storages is not a list"))? {
        let Some((key, element)) = key.as_str().and_then(|key| elements.get_key_value(key)) else {
            return Err(source.damaged("it lists a storage that no tensor uses"));
        };
        let (place, next) = counted_storage(source, offset, *element, order)?;
        places.insert(key.clone(), place);
        offset = next;
    }
    Ok(Parts { object, storages: Storages { order, places } })
}

/// From the properties of the machine.
fn byte_order(system: &Object) -> ByteOrder {
    match system.get("little_endian").and_then(Object::as_bool) {
        Some(false) => ByteOrder::Big,
        _ => ByteOrder::Little,
    }
}

/// A storage after the number of its elements: its place, and the offset of whatever follows.
fn counted_storage(
    source: &Source,
    offset: u64,
    element: Option<ElementType>,
    order: ByteOrder,
) -> Result<((u64, u64), u64), WeightsError> {
    let count = source.array(offset)?;
    let count = if order == ByteOrder::Little { u64::from_le_bytes(count) } else { u64::from_be_bytes(count) };
    let start = offset + 8;
    let len = count.checked_mul(element.map_or(1, ElementType::size) as u64);
    let end = len.and_then(|len| start.checked_add(len)).filter(|&end| end <= source.len());
    let (len, end) =
        len.zip(end).ok_or_else(|| source.damaged("a storage lies beyond its end; it may be cut short"))?;
    Ok(((start, len), end))
}

/// The element types of all storages in a value, including those that are not weights: each takes its space in the
/// file. The recursion is as deep as the pickle, which its limits bound.
fn find_storages(value: &Object, found: &mut HashMap<String, Option<ElementType>>) -> Result<(), String> {
    let mut each = |values: &[Object]| values.iter().try_for_each(|value| find_storages(value, found));
    match value {
        Object::Persistent(key) => {
            if let Some(storage) = storage_key(key)? {
                found.insert(storage.key, storage.element);
            }
            Ok(())
        }
        Object::List(values) | Object::Tuple(values) | Object::Set(values) => each(values),
        Object::Dict(entries) => entries.iter().try_for_each(|(_, value)| find_storages(value, found)),
        Object::Call(call) => {
            each(std::slice::from_ref(&call.arguments))?;
            each(call.state.as_slice())?;
            each(&call.elements)?;
            call.entries.iter().try_for_each(|(_, value)| find_storages(value, found))
        }
        Object::None
        | Object::Bool(_)
        | Object::Int(_)
        | Object::BigInt(_)
        | Object::Float(_)
        | Object::Str(_)
        | Object::Bytes(_)
        | Object::Global(_) => Ok(()),
    }
}
