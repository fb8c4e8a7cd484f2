//! The zip form: `NAME/data.pkl`, storages as `NAME/data/KEY`, and `NAME/byteorder`, all stored without compression.
//!
//! It is read here rather than by a library. Only stored entries are needed, and their places in the file. Checksums
//! may be wrong on purpose (PyTorch can be told to leave them out), and the memory for a directory must be limited
//! first.

use std::collections::HashMap;

use super::Parts;
use super::pickles::Pickles;
use super::storage::Storages;
use crate::WeightsError;
use crate::element::ByteOrder;
use crate::source::Source;

/// A large model has some thousand storages.
const ENTRY_LIMIT: u64 = 1 << 17;
const DIRECTORY_LIMIT: u64 = 32 << 20;
/// What a byte of the directory takes at most once it is parsed, in bytes.
const PARSED: u64 = 64;
/// The size of the end record, after which a comment may follow.
const END: u64 = 22;
const COMMENT: u64 = 0xFFFF;

pub(super) fn open(source: &Source) -> Result<Parts, WeightsError> {
    let entries = directory(source)?;
    let object = entries.keys().filter_map(|name| name.strip_suffix("/data.pkl")).min_by_key(|prefix| prefix.len());
    let Some(prefix) = object.map(str::to_owned) else {
        return Err(source.refuse("is a zip file, but not one of PyTorch's: it has no data.pkl"));
    };
    if entries.contains_key(&format!("{prefix}/constants.pkl")) {
        let reason = "holds a TorchScript program; in PyTorch, save its state instead: \
                      torch.save(torch.jit.load(FILE).state_dict(), OTHER)";
        return Err(source.refuse(reason));
    }
    let place =
        |name: &str| entries.get(&format!("{prefix}/{name}")).map(|entry| entry.place(source, name)).transpose();
    let order = match place("byteorder")? {
        None => ByteOrder::Little,
        Some((offset, len)) => match &source.bytes(offset, len.min(8) as usize)?[..] {
            b"little" => ByteOrder::Little,
            b"big" => ByteOrder::Big,
            _ => return Err(source.damaged("its byte order is neither little nor big")),
        },
    };
    let (offset, len) = place("data.pkl")?.unwrap_or_default();
    let object = Pickles::new(source, offset, offset + len).next()?;
    let storage_prefix = format!("{prefix}/data/");
    let mut places = HashMap::new();
    for (name, entry) in &entries {
        if let Some(key) = name.strip_prefix(&storage_prefix) {
            places.insert(key.to_owned(), entry.place(source, name)?);
        }
    }
    Ok(Parts { object, storages: Storages { order, places } })
}

struct Entry {
    flags: u16,
    method: u16,
    packed: u64,
    len: u64,
    header: u64,
}

impl Entry {
    /// The place of its bytes: after its own header, which alone has the header's length.
    fn place(&self, source: &Source, name: &str) -> Result<(u64, u64), WeightsError> {
        if self.method != 0 || self.flags & 1 != 0 || self.packed != self.len {
            let reason = format!(
                "its part {name:?} is compressed or encrypted, as torch.save never does; unpack it, and save it again"
            );
            return Err(source.refuse(reason));
        }
        let header: [u8; 30] = source.array(self.header)?;
        if !header.starts_with(b"PK\x03\x04") {
            return Err(source.damaged("its directory points to nothing"));
        }
        let offset = self.header + 30 + number::<2>(&header, 26) + number::<2>(&header, 28);
        if offset.checked_add(self.len).is_none_or(|end| end > source.len()) {
            return Err(source.damaged("a part of it lies beyond its end"));
        }
        Ok((offset, self.len))
    }
}

/// `N` little-endian bytes of a record that is long enough.
fn number<const N: usize>(record: &[u8], at: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&record[at..at + N]);
    u64::from_le_bytes(wide)
}

fn directory(source: &Source) -> Result<HashMap<String, Entry>, WeightsError> {
    let (count, len, offset) = find_directory(source)?;
    if count > ENTRY_LIMIT || len > DIRECTORY_LIMIT {
        return Err(
            source.refuse(format!("its zip directory lists {count} parts in {len} bytes; it is not a weights file"))
        );
    }
    let damaged = || source.damaged("its zip directory is malformed");
    let bytes = source.bytes(offset, len as usize)?;
    source.require(len * PARSED)?;
    let mut rest = &bytes[..];
    let mut entries = HashMap::new();
    for _ in 0..count {
        let (header, after) = rest.split_at_checked(46).ok_or_else(damaged)?;
        if !header.starts_with(b"PK\x01\x02") {
            return Err(damaged());
        }
        let (name, after) = after.split_at_checked(number::<2>(header, 28) as usize).ok_or_else(damaged)?;
        let (extra, after) = after.split_at_checked(number::<2>(header, 30) as usize).ok_or_else(damaged)?;
        let (_comment, after) = after.split_at_checked(number::<2>(header, 32) as usize).ok_or_else(damaged)?;
        rest = after;
        let [len, packed, header_offset] = wide_sizes(header, extra).ok_or_else(damaged)?;
        let flags = number::<2>(header, 8) as u16;
        let method = number::<2>(header, 10) as u16;
        let name = String::from_utf8(name.to_vec()).map_err(|_| damaged())?;
        if entries.insert(name, Entry { flags, method, packed, len, header: header_offset }).is_some() {
            return Err(source.damaged("it has two parts with the same name"));
        }
    }
    Ok(entries)
}

/// Length, packed length and offset of an entry. Those that do not fit 32 bits are in an extra field, in this order.
fn wide_sizes(header: &[u8], extra: &[u8]) -> Option<[u64; 3]> {
    const NARROW: u64 = 0xFFFF_FFFF;
    let mut sizes = [number::<4>(header, 24), number::<4>(header, 20), number::<4>(header, 42)];
    if sizes.contains(&NARROW) {
        let mut rest = extra;
        let mut wide = loop {
            let (head, after) = rest.split_at_checked(4)?;
            let (field, after) = after.split_at_checked(number::<2>(head, 2) as usize)?;
            if number::<2>(head, 0) == 1 {
                break field;
            }
            rest = after;
        };
        for size in sizes.iter_mut().filter(|size| **size == NARROW) {
            let (field, after) = wide.split_at_checked(8)?;
            *size = number::<8>(field, 0);
            wide = after;
        }
    }
    Some(sizes)
}

/// Number of entries, length and offset of the directory.
fn find_directory(source: &Source) -> Result<(u64, u64, u64), WeightsError> {
    let tail_len = source.len().min(END + COMMENT);
    let tail_offset = source.len() - tail_len;
    let tail = source.bytes(tail_offset, tail_len as usize)?;
    let is_end = |at: &usize| {
        let record = &tail[*at..];
        record.starts_with(b"PK\x05\x06") && number::<2>(record, 20) as usize == record.len() - END as usize
    };
    let cut = || source.refuse("is a truncated zip file: its directory is missing; fetch or save it again");
    let last = tail.len().checked_sub(END as usize).ok_or_else(cut)?;
    let at = (0..=last).rev().find(is_end).ok_or_else(cut)?;
    let end = &tail[at..];
    // A locator before the end record points to a wide one.
    if let Some(locator) = (tail_offset + at as u64).checked_sub(20)
        && let locator = source.array::<20>(locator)?
        && locator.starts_with(b"PK\x06\x07")
    {
        let wide: [u8; 56] = source.array(number::<8>(&locator, 8))?;
        if !wide.starts_with(b"PK\x06\x06") {
            return Err(source.damaged("its zip directory is malformed"));
        }
        return Ok((number::<8>(&wide, 32), number::<8>(&wide, 40), number::<8>(&wide, 48)));
    }
    Ok((number::<2>(end, 10), number::<4>(end, 12), number::<4>(end, 16)))
}
