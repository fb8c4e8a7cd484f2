//! Writes a packed file from front to back. The header comes last, so that its hash covers all that it names.

use std::io::{self, Seek, SeekFrom, Write};

use super::header::{self, Header, Metadata};
use super::record::{self, RecordLocation};
use super::targets;
use crate::TaskKind;
use crate::targets::Targets;

/// A packed file being written. Records of all parts come in their order.
pub(super) struct Writer<W> {
    file: W,
    /// Bytes so far.
    length: u64,
    header: Header,
    parts: [Part; header::PARTS],
    record: Vec<u8>,
}

/// Labels and index of a part.
#[derive(Default)]
struct Part {
    labels: Vec<u8>,
    /// Where each record begins, and where the last one ends.
    offsets: Vec<u64>,
    records: blake3::Hasher,
    /// `None` if each image has one class.
    targets: Option<Targets>,
}

impl<W: Write + Seek> Writer<W> {
    /// Leaves room for the header of a file with the classes, or other outputs, of this task.
    pub fn new(mut file: W, task: TaskKind, classes: usize) -> io::Result<Self> {
        file.write_all(&[0; header::BYTES])?;
        let targets = Targets::of_task(task, classes);
        let version = if targets.is_some() { header::VERSION } else { header::OF_CLASSES };
        let mut parts: [Part; header::PARTS] = Default::default();
        parts.iter_mut().for_each(|part| part.targets.clone_from(&targets));
        let header = Header { version, ..Header::default() };
        Ok(Writer { file, length: header::BYTES as u64, header, parts, record: Vec::new() })
    }

    /// Adds what a model is to predict of the next record of a part. The problem is the end of a sentence about it.
    pub fn add_targets(&mut self, part: usize, vector: &[f32]) -> Result<(), String> {
        self.parts[part].targets.as_mut().map_or(Ok(()), |targets| targets.push(vector))
    }

    /// Adds a record to a part, by its number. A part begins when the one before is complete.
    pub fn add(&mut self, part: usize, label: u32, name: &str, image: &[u8]) -> io::Result<()> {
        let own = &mut self.parts[part];
        let place = RecordLocation { part, index: own.labels.len() / header::LABEL, label: label as usize };
        record::write(place, image, name, &mut self.record);
        self.file.write_all(&self.record)?;
        if own.offsets.is_empty() {
            own.offsets.push(self.length);
        }
        self.length += self.record.len() as u64;
        own.offsets.push(self.length);
        own.labels.extend(label.to_le_bytes());
        own.records.update(&self.record[..size_of::<header::Hash>()]);
        Ok(())
    }

    /// Samples of a part so far.
    pub fn samples(&self, part: usize) -> usize {
        self.parts[part].labels.len() / header::LABEL
    }

    /// Writes what follows the records, and then the header. Returns the bytes of the file.
    pub fn finish(mut self, metadata: &Metadata) -> io::Result<u64> {
        for (part, own) in std::mem::take(&mut self.parts).into_iter().enumerate() {
            if own.labels.is_empty() {
                continue;
            }
            let offsets: Vec<u8> = own.offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
            let index = self.append(&offsets)?;
            let labels = self.append(&own.labels)?;
            self.header.parts[part] = header::Part {
                samples: (own.labels.len() / header::LABEL) as u64,
                labels,
                index,
                labels_hash: *blake3::hash(&own.labels).as_bytes(),
                records_hash: *own.records.finalize().as_bytes(),
                ..header::Part::default()
            };
            if let Some(targets) = &own.targets {
                let targets = targets::to_bytes(targets);
                let place = (self.append(&targets)?, targets.len() as u64);
                let part = &mut self.header.parts[part];
                (part.targets, part.targets_hash) = (place, *blake3::hash(&targets).as_bytes());
            }
        }
        let metadata = metadata.to_bytes();
        self.header.metadata_hash = *blake3::hash(&metadata).as_bytes();
        self.header.metadata = (self.append(&metadata)?, metadata.len() as u64);
        self.header.length = self.length;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&self.header.to_bytes())?;
        Ok(self.length)
    }

    /// Writes bytes at the end, and zeros up to a multiple of 8. Returns the offset of the bytes.
    fn append(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let offset = self.length;
        self.file.write_all(bytes)?;
        let padding = bytes.len().next_multiple_of(header::OFFSET) - bytes.len();
        self.file.write_all(&[0; header::OFFSET][..padding])?;
        self.length += (bytes.len() + padding) as u64;
        Ok(offset)
    }
}
