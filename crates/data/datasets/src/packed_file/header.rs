//! Header and metadata of a packed file: bytes to values and back, without IO.

use enmasse_image::decode::MAX_FILE_BYTES;
use serde::{Deserialize, Serialize};

use crate::{DataKind, TaskKind};

/// The first bytes. The first one is no text, so that a file that was converted as text is recognised.
pub(super) const MAGIC: [u8; 8] = *b"\x89enmasse";
pub(super) const VERSION: u32 = 4;
/// That of files whose images have one class each, which earlier programs read too.
pub(super) const OF_CLASSES: u32 = 3;
/// The oldest one that is read.
const OLDEST: u32 = 1;
/// The one whose JPEG images have a coding of its own, which is not read any more.
const WITH_OWN_CODING: u32 = 2;
/// Bytes of the header. The last 32 are the hash of the others.
pub(super) const BYTES: usize = 512;
const HASHED: usize = BYTES - HASH;
const HASH: usize = 32;

/// The parts of a data set. Programs that know two of them read zeros in the place of the third, and ignore it.
pub(super) const PARTS: usize = 3;

/// Bytes of a sample's label.
pub(super) const LABEL: usize = 4;
/// Bytes of an offset in the index.
pub(super) const OFFSET: usize = 8;
/// The largest edge of squares of pixels, so that one takes no more bytes than an image file may have.
pub(super) const MAX_EDGE: usize = (MAX_FILE_BYTES as usize / 3).isqrt();

/// Limit of the metadata's bytes: a million classes with long names.
const MAX_METADATA: u64 = 64 << 20;

pub(super) type Hash = [u8; HASH];

/// Where everything is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub version: u32,
    /// Bytes of the file.
    pub length: u64,
    /// Offset and length of the metadata.
    pub metadata: (u64, u64),
    pub metadata_hash: Hash,
    /// Training, validation and test. That for tests has no samples, and all zeros, if the data have none.
    pub parts: [Part; PARTS],
}

/// A part of the data set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Number of samples.
    pub samples: u64,
    /// Offset of the labels, [`LABEL`] bytes each.
    pub labels: u64,
    /// Offset of the index: [`OFFSET`] bytes for each record, and as many for the end of the last one.
    pub index: u64,
    pub labels_hash: Hash,
    /// Of the hashes of all records, one after another.
    pub records_hash: Hash,
    /// Offset and bytes of the labels or numbers to predict; zeros if each image has one class.
    pub targets: (u64, u64),
    pub targets_hash: Hash,
}

impl Header {
    /// Reads the header of a file of `length` bytes. Every offset of the result lies in the file, and the lengths that follow
    /// from the numbers of samples do too. The error is the end of a sentence about the file.
    pub fn parse(bytes: &[u8; BYTES], length: u64) -> Result<Self, String> {
        let mut rest = Fields(bytes);
        if rest.take() != MAGIC {
            return Err("it is not a packed file".to_owned());
        }
        // Before anything that another version may change.
        let version = u32::from_le_bytes(rest.take());
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(format!(
                "it is a packed file of version {version}, and this program reads versions {OLDEST} to {VERSION}: \
                 pack the data again, or use the program that packed it"
            ));
        }
        let hash = blake3::hash(&bytes[..HASHED]);
        if hash.as_bytes()[..] != bytes[HASHED..] {
            return Err("its header is damaged: copy it again, or pack the data again".to_owned());
        }
        let _: [u8; 4] = rest.take();
        let mut header = Header {
            version,
            length: rest.number(),
            metadata: (rest.number(), rest.number()),
            metadata_hash: rest.take(),
            ..Header::default()
        };
        for part in &mut header.parts {
            *part = Part {
                samples: rest.number(),
                labels: rest.number(),
                index: rest.number(),
                labels_hash: rest.take(),
                records_hash: rest.take(),
                ..Part::default()
            };
        }
        // Earlier ones have zeros there, which nobody has to trust.
        for part in header.parts.iter_mut().filter(|_| version > OF_CLASSES) {
            part.targets = (rest.number(), rest.number());
            part.targets_hash = rest.take();
        }
        if header.length != length {
            return Err(format!(
                "it has {length} bytes instead of {}: truncated, or still being copied; copy it again",
                header.length
            ));
        }
        header.check()?;
        Ok(header)
    }

    /// Checks that everything lies in the file.
    fn check(&self) -> Result<(), String> {
        let fits = |offset: u64, count: u64, size: usize| {
            let end = count.checked_mul(size as u64).and_then(|bytes| bytes.checked_add(offset));
            end.is_some_and(|end| end <= self.length)
        };
        let (offset, bytes) = self.metadata;
        let mut whole = fits(offset, bytes, 1) && bytes <= MAX_METADATA;
        for part in &self.parts {
            whole &= fits(part.labels, part.samples, LABEL) && fits(part.index, part.samples.saturating_add(1), OFFSET);
            whole &= fits(part.targets.0, part.targets.1, 1);
        }
        if whole {
            Ok(())
        } else {
            Err("its header names places outside the file: it was not written whole".to_owned())
        }
    }

    /// The bytes of the header.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(MAGIC);
        bytes.extend(self.version.to_le_bytes());
        bytes.extend([0; 4]);
        for number in [self.length, self.metadata.0, self.metadata.1] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.metadata_hash);
        for part in &self.parts {
            for number in [part.samples, part.labels, part.index] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(part.labels_hash);
            bytes.extend(part.records_hash);
        }
        for part in &self.parts {
            bytes.extend(part.targets.0.to_le_bytes());
            bytes.extend(part.targets.1.to_le_bytes());
            bytes.extend(part.targets_hash);
        }
        let mut header = [0; BYTES];
        header[..bytes.len()].copy_from_slice(&bytes);
        let hash = blake3::hash(&header[..HASHED]);
        header[HASHED..].copy_from_slice(hash.as_bytes());
        header
    }
}

/// Takes fields from the front. The header has room for all that is taken.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (taken, rest) = self.0.split_at(N.min(self.0.len()));
        field[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        field
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// What is known of all samples. Other names in the JSON are left to later programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Metadata {
    /// The kind of data set that was packed: its constants and transforms apply.
    pub kind: DataKind,
    #[serde(alias = "pictures")]
    pub images: Images,
    /// What a model is to predict of an image.
    #[serde(default, skip_serializing_if = "TaskKind::is_classification")]
    pub task: TaskKind,
    /// Names of the classes by label, of all labels, or of an image's numbers.
    pub classes: Vec<String>,
    /// The program that wrote it.
    pub written_by: String,
}

/// What the records hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Images {
    /// Image files.
    Files,
    /// RGB pixels of squares with this edge.
    Raw(u16),
}

impl Metadata {
    /// Reads the metadata of a packed file of this version. The error is the end of a sentence about the file.
    pub fn parse(bytes: &[u8], version: u32) -> Result<Self, String> {
        let metadata: Metadata =
            serde_json::from_slice(bytes).map_err(|error| format!("its metadata cannot be read: {error}"))?;
        match metadata.images {
            Images::Raw(edge) if !(1..=MAX_EDGE).contains(&usize::from(edge)) => {
                Err(format!("its metadata cannot be read: images of {edge} pixels"))
            }
            Images::Files if version == WITH_OWN_CODING => Err(format!(
                "it is a packed file of version {version}, whose JPEG images are not read any more: \
                 pack the data again with `enmasse data pack`"
            )),
            Images::Raw(_) | Images::Files => Ok(metadata),
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        // Strings and numbers always have a form in JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let part = |samples: u64, labels: u64, index: u64| Part {
            samples,
            labels,
            index,
            labels_hash: [3; HASH],
            records_hash: [4; HASH],
            targets: (800, 100),
            targets_hash: [5; HASH],
        };
        Header {
            version: VERSION,
            length: 1000,
            metadata: (600, 100),
            metadata_hash: [2; HASH],
            parts: [part(5, 700, 720), part(2, 768, 776), Part::default()],
        }
    }

    fn parse(header: &Header) -> Result<Header, String> {
        Header::parse(&header.to_bytes(), 1000)
    }

    #[test]
    fn headers_are_read_as_they_were_written() {
        assert_eq!(parse(&header()), Ok(header()));
        let check = |change: &dyn Fn(&mut Header), is_whole: bool| {
            let mut changed = header();
            change(&mut changed);
            let outside = Err("its header names places outside the file: it was not written whole".to_owned());
            assert_eq!(parse(&changed), if is_whole { Ok(changed.clone()) } else { outside }, "{changed:?}");
        };
        check(&|header| header.metadata = (600, 400), true);
        check(&|header| header.metadata = (600, 401), false);
        check(&|header| header.metadata = (u64::MAX, 1), false);
        check(&|header| header.parts[0].samples = 34, true);
        check(&|header| header.parts[0].samples = 35, false);
        check(&|header| header.parts[0].samples = u64::MAX, false);
        check(&|header| header.parts[1].labels = 992, true);
        check(&|header| header.parts[1].labels = 993, false);
        check(&|header| header.parts[1].index = 976, true);
        check(&|header| header.parts[1].index = 977, false);
        check(&|header| header.parts[1].index = u64::MAX, false);
        check(&|header| header.parts[2] = Part { samples: 3, ..header.parts[1].clone() }, true);
        check(&|header| header.parts[2].labels = 1001, false);
        check(&|header| header.parts[0].targets = (900, 100), true);
        check(&|header| header.parts[0].targets = (900, 101), false);
        check(&|header| header.parts[1].targets = (u64::MAX, 1), false);
    }

    #[test]
    fn earlier_versions_are_read() {
        for version in OLDEST..VERSION {
            let mut earlier = Header { version, ..header() };
            earlier.parts.iter_mut().for_each(|part| (part.targets, part.targets_hash) = Default::default());
            assert_eq!(parse(&earlier), Ok(earlier));
        }
    }

    #[test]
    fn other_files_are_refused() {
        let check = |place: usize, byte: u8, expected: &str| {
            let mut bytes = header().to_bytes();
            bytes[place] = byte;
            assert_eq!(Header::parse(&bytes, 1000).unwrap_err(), expected, "{place}");
        };
        check(0, b'P', "it is not a packed file");
        check(7, b'E', "it is not a packed file");
        let other = |version: u32| {
            format!(
                "it is a packed file of version {version}, and this program reads versions 1 to 4: \
                 pack the data again, or use the program that packed it"
            )
        };
        check(8, 5, &other(5));
        check(8, 0, &other(0));
        check(11, 1, &other(0x0100_0004));
        let damaged = "its header is damaged: copy it again, or pack the data again";
        for place in [12, 16, 100, HASHED - 1, HASHED, BYTES - 1] {
            check(place, 0xAB, damaged);
        }
        let error = Header::parse(&header().to_bytes(), 999).unwrap_err();
        assert_eq!(error, "it has 999 bytes instead of 1000: truncated, or still being copied; copy it again");
    }

    #[test]
    fn metadata_that_later_programs_extend() {
        let classes = vec!["rose".to_owned(), "日本".to_owned()];
        let written_by = "enmasse 0.1.0".to_owned();
        let task = TaskKind::Classification;
        let files = Metadata { kind: DataKind::Folder, images: Images::Files, task, classes, written_by };
        let raw = Metadata { kind: DataKind::FashionMnist, images: Images::Raw(28), ..files.clone() };
        let labels = Metadata { task: TaskKind::MultiLabel, ..files.clone() };
        for metadata in [&files, &raw, &labels] {
            assert_eq!(Metadata::parse(&metadata.to_bytes(), VERSION).as_ref(), Ok(metadata));
        }
        let text = r#"{"kind":"fashion-mnist","images":{"raw":28},"classes":["rose","日本"],"written_by":"enmasse 0.1.0","later":[1]}"#;
        assert_eq!(Metadata::parse(text.as_bytes(), VERSION).as_ref(), Ok(&raw));
        // The key of earlier programs.
        let earlier = text.replace("images", "pictures");
        assert_eq!(Metadata::parse(earlier.as_bytes(), VERSION), Ok(raw));
        let check = |edge: &str, expected: Option<&str>| {
            let error = Metadata::parse(text.replace("28", edge).as_bytes(), VERSION).err();
            assert_eq!(error, expected.map(|problem| format!("its metadata cannot be read: {problem}")));
        };
        check("1", None);
        check("13377", None);
        check("0", Some("images of 0 pixels"));
        check("13378", Some("images of 13378 pixels"));
        assert!(Metadata::parse(b"{}", VERSION).unwrap_err().starts_with("its metadata cannot be read: missing field"));
    }
}
