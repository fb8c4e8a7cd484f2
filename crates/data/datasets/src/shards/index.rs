//! The samples of a tar archive, from the headers of its members.
//!
//! As in WebDataset, a member's key is its path up to the first dot of its name, and neighbours with one key are a sample.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use enmasse_data::DataError;
use enmasse_image::ImageFormat;
use enmasse_remote::RemoteError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tar::{Archive, Entry};

use crate::Container;
use crate::storage::Storage;

/// Limit of a label's bytes; a `.json` may hold more than the label.
const MAX_LABEL_BYTES: u64 = 1 << 20;

/// Limit of what is read at a time: a label, and the headers of the next member. The crate reads long names and attributes whole,
/// and their lengths are the archive's own.
const MAX_HEADER_BYTES: u64 = 2 << 20;

/// The samples of an archive.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Indexed {
    pub samples: Vec<Sample>,
    /// Whether the archive ends as tar archives do.
    pub is_complete: bool,
}

/// An image in an archive.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// The name of the member.
    pub name: String,
    pub offset: u64,
    pub length: u32,
    /// The label as it is written.
    pub label: String,
}

/// The members of a sample so far.
#[derive(Default)]
struct Group {
    key: String,
    /// The image, and the place of its extension among ours.
    image: Option<(usize, Sample)>,
    label: Option<String>,
}

/// Whether labels count, and their names in a `.json` member.
#[derive(Clone, Copy)]
pub(crate) enum Labels<'a> {
    /// They do not count.
    Ignored,
    /// A sample may lack one: its label is empty.
    Optional(&'a [&'a str]),
    /// A sample without one is an error.
    Needed(&'a [&'a str]),
}

impl<'a> Labels<'a> {
    fn fields(self) -> Option<&'a [&'a str]> {
        match self {
            Labels::Ignored => None,
            Labels::Optional(fields) | Labels::Needed(fields) => Some(fields),
        }
    }

    fn are_needed(self) -> bool {
        matches!(self, Labels::Needed(_))
    }
}

/// Lists the samples of the archive at `path`.
pub(crate) fn index(storage: &Storage, path: &Path, labels: Labels) -> Result<Indexed, DataError> {
    let container = storage.open(path)?;
    let mut key = labels.fields().map(|fields| fields.join("\n")).unwrap_or_default();
    if let Labels::Optional(_) = labels {
        key.push_str("\n?");
    }
    let hash = blake3::hash(key.as_bytes());
    container.known(&format!("samples-{}", &hash.to_hex()[..16]), || list(&container, labels))
}

/// The end of a sentence about an archive whose image `name` has no label.
pub(crate) fn no_label(name: &str) -> String {
    let key = split_name(name).map_or(name, |(key, _)| key);
    format!(
        "its image {name} has no label: a member {key}.cls, or {key}.json with a field \"label\". An archive of class \
         folders must be extracted"
    )
}

fn list(container: &Container, labels: Labels) -> Result<Indexed, DataError> {
    let (fields, needs_label) = (labels.fields(), labels.are_needed());
    let (path, length) = (container.path(), container.length());
    let refused = |problem: String| DataError::layout(path, problem);
    let damaged = |error: io::Error| match error.downcast::<RemoteError>() {
        Ok(error) => error.into(),
        Err(_) if is_gzip(container) => refused("it is compressed by gzip: decompress it first (gunzip)".to_owned()),
        Err(error) => refused(format!("it is no tar archive, or a damaged one: {error}")),
    };
    let left = Cell::new(MAX_HEADER_BYTES);
    let mut archive = Archive::new(Limited { reader: container.reader(), left: &left });
    let mut found = Indexed::default();
    let mut group = Group::default();
    let mut end = 0;
    for entry in archive.entries_with_seek().map_err(damaged)? {
        left.set(MAX_HEADER_BYTES);
        let mut entry = entry.map_err(damaged)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let size = entry.size();
        end = entry.raw_file_position().saturating_add(size);
        if end > length {
            return Err(refused(format!("it ends inside its member {name}: truncated, or still being written")));
        }
        let kind = entry.header().entry_type();
        if kind.is_dir() || kind.is_pax_global_extensions() {
            continue;
        }
        let Some((key, extension)) = split_name(&name) else { continue };
        if !kind.is_file() && !kind.is_contiguous() {
            return Err(refused(format!("its member {name} is a link, or otherwise no file of its own")));
        }
        if key != group.key {
            found.samples.extend(std::mem::take(&mut group).finish(needs_label).map_err(refused)?);
            group.key = key.to_owned();
        }
        let extension = extension.to_ascii_lowercase();
        if let Some(rank) = ImageFormat::EXTENSIONS.iter().position(|known| *known == extension) {
            if group.image.as_ref().is_none_or(|(other, _)| rank < *other) {
                let offset = entry.raw_file_position();
                let label = String::new();
                let length = u32::try_from(size).map_err(|_| refused(format!("its member {name} has {size} bytes")))?;
                group.image = Some((rank, Sample { name, offset, length, label }));
            }
        } else if let Some(fields) = fields
            && (extension == "cls" || (extension == "json" && group.label.is_none()))
        {
            let text = read_label(&mut entry).map_err(|problem| refused(format!("its member {name} {problem}")))?;
            let label = match extension.as_str() {
                "cls" => Ok(Some(text.trim().to_owned())),
                _ => json_label(&text, fields),
            };
            let label = label.map_err(|problem| refused(format!("its member {name} {problem}")))?;
            group.label = label.or(group.label);
        }
    }
    found.samples.extend(group.finish(needs_label).map_err(refused)?);
    // Two blocks of zeros end an archive.
    found.is_complete = length >= end.next_multiple_of(512).saturating_add(1024);
    Ok(found)
}

/// Whether it begins as a compressed file does, whatever its name.
fn is_gzip(container: &Container) -> bool {
    let mut begin = [0; 2];
    container.fill(0, &mut begin).is_ok() && begin == [0x1F, 0x8B]
}

/// Reads only so many bytes. What is skipped by seeking does not count.
struct Limited<'a, R> {
    reader: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(bytes)?;
        let left = self.left.get().checked_sub(read as u64);
        let limit = || io::Error::other(format!("headers of more than {MAX_HEADER_BYTES} bytes"));
        self.left.set(left.ok_or_else(limit)?);
        Ok(read)
    }
}

impl<R: Seek> Seek for Limited<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}

impl Group {
    fn finish(self, needs_label: bool) -> Result<Option<Sample>, String> {
        let Group { key, image, label } = self;
        match (image, label) {
            (image, None) if !needs_label => Ok(image.map(|(_, image)| image)),
            (Some((_, image)), Some(label)) if !label.is_empty() => Ok(Some(Sample { label, ..image })),
            (Some((_, image)), _) if !needs_label => Ok(Some(image)),
            (Some((_, image)), _) => Err(no_label(&image.name)),
            (None, Some(_)) => {
                Err(format!("its sample {key} has a label and no image ({})", ImageFormat::EXTENSIONS.join(", ")))
            }
            (None, None) => Ok(None),
        }
    }
}

/// The key and the extension of a member, without the first dot of its name; `None` for hidden ones and those without a dot.
fn split_name(name: &str) -> Option<(&str, &str)> {
    let start = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = start + name[start..].find('.')?;
    (dot > start).then(|| (&name[..dot], &name[dot + 1..]))
}

fn read_label(entry: &mut Entry<'_, impl Read>) -> Result<String, String> {
    let mut bytes = Vec::new();
    if entry.size() > MAX_LABEL_BYTES {
        return Err(format!("has more than {MAX_LABEL_BYTES} bytes"));
    }
    entry.read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|_| "is not valid UTF-8".to_owned())
}

/// The first of `fields` in a JSON object.
fn json_label(text: &str, fields: &[&str]) -> Result<Option<String>, String> {
    let object: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    match fields.iter().find_map(|field| object.get(*field)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(label)) => Ok(Some(label.trim().to_owned())),
        Some(Value::Number(label)) => Ok(Some(label.to_string())),
        Some(Value::Bool(label)) => Ok(Some(label.to_string())),
        Some(Value::Array(_) | Value::Object(_)) => {
            Err("has a list of labels: archives have one class of each image, and tables several labels".to_owned())
        }
    }
}
