//! TensorBoard event files: TFRecord framing around a few messages of protocol buffers.
//!
//! A record is the length (u64), a masked CRC-32C of the length, the bytes, and a masked CRC-32C of the bytes, all little
//! endian. Sources: TensorFlow's `core/lib/io/record_writer.cc`, `core/util/event.proto`, `core/framework/summary.proto`.

mod summaries;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use enmasse_protobuf::Message;
use enmasse_system::files::FileError;

use crate::run_folder::create_folder_of;
use crate::{CallbackResult, EpochRecord, LogPoint, Logger, Media, RunConfig, RunError, Started, TrainError};

/// The folder of the values of single steps.
const STEPS: &str = "steps";
/// What the line of an epoch says, and no chart.
const NOT_DRAWN: [&str; 3] = ["images_per_second", "seconds", "balanced_accuracy"];

/// An event file of a run.
#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    file: File,
    /// The last epoch that it has.
    epoch: u64,
    /// The event file of single steps, once there are any.
    steps: Option<Box<TensorBoard>>,
}

impl TensorBoard {
    /// Creates a new event file in the run folder. Earlier files' data of `first_epoch` and later are void: TensorBoard
    /// drops them, as those epochs run again.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn create(folder: &Path, first_epoch: u64) -> Result<Self, RunError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "_");
        // TensorBoard reads files in the order of their names; nanoseconds distinguish two starts within a second.
        let seconds = now.as_secs();
        let nanoseconds = now.subsec_nanos();
        let process = std::process::id();
        let path = folder.join(format!("events.out.tfevents.{seconds:010}.{nanoseconds:09}.{host}.{process}"));
        create_folder_of(&path)?;
        let file =
            OpenOptions::new().append(true).create_new(true).open(&path).map_err(FileError::of("create", &path))?;
        let mut board = TensorBoard { path, file, epoch: first_epoch, steps: None };
        let wall_time = now.as_secs_f64();
        board.write(&[version_event(wall_time), session_start_event(wall_time, first_epoch)])?;
        Ok(board)
    }

    /// Adds values, of a step or an epoch.
    fn append(&mut self, step: u64, scalars: &[(String, f64)]) -> Result<(), RunError> {
        self.write(&[scalars_event(now(), step, scalars)])
    }

    /// The file for a point, and the point as TensorBoard's step.
    fn file_of(&mut self, at: LogPoint) -> Result<(&mut TensorBoard, u64), RunError> {
        match at {
            LogPoint::Epoch(epoch) => {
                self.epoch = epoch;
                Ok((self, epoch))
            }
            LogPoint::Step(step) => Ok((self.steps(step)?, step)),
        }
    }

    /// The file of single steps, which begins with `first` if it is new.
    fn steps(&mut self, first: u64) -> Result<&mut TensorBoard, RunError> {
        let steps = match self.steps.take() {
            Some(steps) => steps,
            None => Box::new(TensorBoard::create(&self.path.with_file_name(STEPS), first)?),
        };
        Ok(self.steps.insert(steps))
    }

    /// Writes whole records in one call, so that a reader never waits for the rest of one.
    fn write(&mut self, events: &[Vec<u8>]) -> Result<(), RunError> {
        let records: Vec<u8> = events.iter().flat_map(|event| frame(event)).collect();
        Ok(self.file.write_all(&records).map_err(FileError::of("write", &self.path))?)
    }
}

impl Logger for TensorBoard {
    /// TensorBoard's table of hyperparameters lists the run with its settings. Of a resumed run it shows those of the first start.
    fn start(&mut self, started: &Started, settings: &RunConfig) -> CallbackResult {
        let event = summaries::settings_event(now(), started.first_epoch(), settings);
        Ok(self.write(&[event]).map_err(TrainError::from)?)
    }

    /// Steps have a file of their own: where a resumed run goes on, TensorBoard drops a file's later data by their step, whether that
    /// counts steps or epochs.
    fn scalars(&mut self, at: LogPoint, scalars: &[(&str, f64)]) -> CallbackResult {
        let scalars: Vec<_> = scalars.iter().map(|(name, value)| (tag(name), *value)).collect();
        let written = self.file_of(at).and_then(|(file, step)| file.append(step, &scalars));
        Ok(written.map_err(TrainError::from)?)
    }

    fn media(&mut self, at: LogPoint, name: &str, media: &Media) -> CallbackResult {
        let event = |step| [summaries::media_event(now(), step, name, media)];
        let written = self.file_of(at).and_then(|(file, step)| file.write(&event(step)));
        Ok(written.map_err(TrainError::from)?)
    }

    /// Adds an epoch under the tutorials' tags and under `train/` and `val/`; the step is the epoch.
    fn epoch(&mut self, record: &EpochRecord) -> CallbackResult {
        let tutorials = [("loss", Some(record.train_loss)), ("accuracy", record.val_accuracy)];
        let tutorials = tutorials.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let drawn = record.scalars().into_iter().filter(|(name, _)| !NOT_DRAWN.contains(name));
        let scalars: Vec<_> = tutorials.chain(drawn).collect();
        self.scalars(LogPoint::Epoch(record.epoch), &scalars)
    }

    /// Only a success ends it: the table keeps the first end of a run, and another one may be resumed.
    fn finish(&mut self, error: Option<&TrainError>) -> CallbackResult {
        if error.is_none() {
            self.write(&[summaries::end_event(now(), self.epoch)]).map_err(TrainError::from)?;
        }
        Ok(())
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// `train_top5` becomes `train/top5`: TensorBoard groups charts by the part before the slash.
fn tag(name: &str) -> String {
    let part = ["train", "val"].into_iter().find_map(|part| Some((part, name.strip_prefix(part)?.strip_prefix('_')?)));
    part.map_or_else(|| name.to_owned(), |(part, rest)| format!("{part}/{rest}"))
}

fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
}

/// The first record of every file.
fn version_event(wall_time: f64) -> Vec<u8> {
    event(wall_time, 0).bytes(3, "brain.Event:2").to_vec()
}

/// `session_log { status: START }`, at which TensorBoard drops its data of this step and later ones.
fn session_start_event(wall_time: f64, step: u64) -> Vec<u8> {
    event(wall_time, step).message(7, Message::new().varint(1, 1)).to_vec()
}

fn scalars_event(wall_time: f64, step: u64, scalars: &[(String, f64)]) -> Vec<u8> {
    let entry = |(tag, value): &(String, f64)| Message::new().bytes(1, tag).float(2, *value as f32);
    let summary = scalars.iter().map(entry).fold(Message::new(), |summary, entry| summary.message(1, entry));
    event(wall_time, step).message(5, summary).to_vec()
}

fn event(wall_time: f64, step: u64) -> Message<'static> {
    Message::new().double(1, wall_time).varint(2, step)
}

/// TFRecord's mask: a CRC of data that contain CRCs would be weak.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// CRC-32C (Castagnoli), bit by bit: some kilobytes an epoch, and an image a run, need no table.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg());
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4.
    #[test]
    fn crc_known_answers() {
        let check = |bytes: &[u8], expected| assert_eq!(crc32c(bytes), expected);
        check(b"", 0);
        check(b"123456789", 0xE306_9283);
        check(&[0; 32], 0x8A91_36AA);
        check(&[0xFF; 32], 0x62A8_AB43);
        check(&(0..32).collect::<Vec<u8>>(), 0x46DD_794E);
    }

    /// A field of a protobuf message: its number, and its value as bytes.
    type Field<'a> = (u64, &'a [u8]);

    /// An independent reader of only the protobuf features in use.
    fn fields(mut message: &[u8]) -> Vec<Field<'_>> {
        fn varint(message: &mut &[u8]) -> u64 {
            let length = message.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
            let (digits, rest) = message.split_at(length);
            *message = rest;
            digits.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7F))
        }
        let mut found = Vec::new();
        while !message.is_empty() {
            let key = varint(&mut message);
            let start = message;
            let length = match key & 7 {
                0 => {
                    varint(&mut message);
                    start.len() - message.len()
                }
                1 => 8,
                2 => varint(&mut message) as usize,
                5 => 4,
                other => panic!("wire type {other}"),
            };
            let start = if key & 7 == 0 { start } else { message };
            found.push((key >> 3, &start[..length]));
            message = &start[length..];
        }
        found
    }

    fn records(mut file: &[u8]) -> Vec<&[u8]> {
        let mut found = Vec::new();
        while !file.is_empty() {
            let (length, rest) = file.split_at(8);
            let (length_crc, rest) = rest.split_at(4);
            let (data, rest) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
            let (data_crc, rest) = rest.split_at(4);
            assert_eq!(masked_crc(length).to_le_bytes(), length_crc);
            assert_eq!(masked_crc(data).to_le_bytes(), data_crc);
            found.push(data);
            file = rest;
        }
        found
    }

    #[test]
    fn files_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::create(folder.path(), 200).unwrap();
        let record = EpochRecord {
            epoch: 200,
            train_loss: 0.5,
            train_accuracy: Some(0.25),
            val_loss: 0.75,
            val_accuracy: Some(0.125),
            balanced_accuracy: Some(0.0625),
            val_macro_f1: Some(0.03125),
            learning_rate: 2.0,
            images_per_second: 1.0,
            data_wait: 0.375,
            rank_wait: 0.625,
            seconds: 1.0,
            world_size: 1,
            partial: false,
            unvalidated: false,
            unreadable: 0,
            converted: 0,
            straggler: None,
            ranks: Default::default(),
            loss_scale: Some(512.0),
            skipped_steps: 3,
            metrics: [("val_top5".to_owned(), 0.875), ("temperature".to_owned(), 36.5)].into(),
            best: true,
        };
        board.epoch(&record).unwrap();
        let name = board.path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("events.out.tfevents."), "{name}");
        let file = std::fs::read(&board.path).unwrap();
        let events: Vec<_> = records(&file).into_iter().map(fields).collect();
        let [version, session, scalars] = events.as_slice() else { panic!("{} events", events.len()) };
        assert_eq!(version[2], (3, &b"brain.Event:2"[..]));
        let step: Field = (2, &[200, 1]);
        assert_eq!((session[1], session[2]), (step, (7, &[8, 1][..])));
        assert_eq!((scalars[1], scalars[2].0), (step, 5));
        let values: Vec<_> = fields(scalars[2].1)
            .into_iter()
            .map(|(field, value)| {
                let value = fields(value);
                assert_eq!((field, value[0].0, value[1].0), (1, 1, 2));
                (std::str::from_utf8(value[0].1).unwrap(), f32::from_le_bytes(value[1].1.try_into().unwrap()))
            })
            .collect();
        let expected = [
            ("loss", 0.5),
            ("accuracy", 0.125),
            ("learning_rate", 2.0),
            ("data_wait", 0.375),
            ("rank_wait", 0.625),
            ("train/loss", 0.5),
            ("train/accuracy", 0.25),
            ("val/loss", 0.75),
            ("val/accuracy", 0.125),
            ("val/macro_f1", 0.03125),
            ("loss_scale", 512.0),
            ("skipped_steps", 3.0),
            ("temperature", 36.5),
            ("val/top5", 0.875),
        ];
        assert_eq!(values, expected);
    }
}
