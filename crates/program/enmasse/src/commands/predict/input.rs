//! What is predicted: image files, folders of them, data sets, bytes of standard input, and files whose names come one by one.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};

use enmasse_datasets::{DataKind, DataLayout, LeftOut, TaskKind, holds_unlabelled, list_images, open_unlabelled};
use enmasse_image::decode::MAX_FILE_BYTES;
use enmasse_train::{Images, LayeredConfig, Surroundings, TrainConfig};

use super::PREDICTION;
use crate::commands::weights;
use crate::failure::{Failure, failed, usage};
use crate::output::{warn, warn_of_left_out};

/// What is named by a path.
pub enum PredictInput {
    Image(PathBuf),
    DataSet(PathBuf),
    /// The bytes of standard input.
    Input(Vec<u8>),
}

/// The path that means standard input.
pub const INPUT: &str = "-";

/// An image from standard input.
fn input() -> Result<PredictInput, Failure> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(usage!("-: standard input is a terminal; pipe an image into it, or name a file"));
    }
    let mut bytes = Vec::new();
    let read = stdin.lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| failed!("-: cannot read standard input: {error}"))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let limit = MAX_FILE_BYTES >> 20;
        return Err(failed!("-: standard input is longer than {limit} MiB, the limit of an image"));
    }
    Ok(PredictInput::Input(bytes))
}

/// The given files, and the images in the given folders.
pub fn given_paths<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Result<Vec<PredictInput>, Failure> {
    let (mut all, mut left_out) = (Vec::new(), LeftOut::default());
    let mut reads_input = false;
    for path in paths {
        if path == Path::new(INPUT) {
            if std::mem::replace(&mut reads_input, true) {
                return Err(usage!("-: standard input holds one image; name it once"));
            }
            all.push(input()?);
            continue;
        }
        if !path.is_dir() {
            let is_data_set = holds_unlabelled(path);
            all.push(if is_data_set { PredictInput::DataSet(path.clone()) } else { PredictInput::Image(path.clone()) });
            continue;
        }
        match list_images(path, &mut left_out) {
            Ok(inside) => all.extend(inside.into_iter().map(PredictInput::Image)),
            Err(_) if holds_unlabelled(path) => all.push(PredictInput::DataSet(path.clone())),
            Err(error) => return Err(Failure::error(error)),
        }
    }
    warn_of_left_out(&left_out);
    Ok(all)
}

/// The images to read, of which data sets have many. Warns of settings that have no effect on any of them, nor on files whose names
/// come later.
pub fn images(
    given: Vec<PredictInput>,
    config: &TrainConfig,
    layers: &LayeredConfig,
    (task, reads_names): (TaskKind, bool),
) -> Result<Images, Failure> {
    let mut images = Images::new(config.reading());
    let mut found: Vec<(DataKind, DataLayout)> = Vec::new();
    for given in given {
        found.push(match given {
            PredictInput::Image(path) => {
                images.add_file(path);
                (DataKind::Folder, DataLayout::ClassFolders)
            }
            PredictInput::Input(bytes) => {
                images.add_bytes(bytes, INPUT.to_owned());
                (DataKind::Folder, DataLayout::ClassFolders)
            }
            PredictInput::DataSet(path) => {
                let data = open_unlabelled(&path, &config.open_options()).map_err(Failure::error)?;
                data.warnings.iter().for_each(warn);
                data.parts.into_iter().for_each(|part| images.add_part(part));
                (data.kind, data.layout)
            }
        });
    }
    if reads_names {
        found.push((DataKind::Folder, DataLayout::ClassFolders));
    }
    found.dedup();
    let idle = |&(kind, layout): &(DataKind, DataLayout)| {
        let surroundings = Surroundings {
            kind,
            task,
            layout,
            has_blocks: false,
            has_parts: true,
            is_padded: false,
            is_launched: false,
            is_single: false,
        };
        layers.without_effect(&surroundings, |setting| weights::is_checked(PREDICTION, setting))
    };
    let lines =
        found.iter().map(idle).reduce(|idle, more| idle.into_iter().filter(|line| more.contains(line)).collect());
    lines.into_iter().flatten().for_each(warn);
    Ok(images)
}

/// Names that are read ahead, and images that are predicted together, at most.
const MAX_NAMES: usize = 1024;

/// Bytes of a name, at most: what Linux takes for a path.
const MAX_NAME_BYTES: u64 = 4096;

/// Names of image files, one a line, in pieces: as many at once as have come by then.
pub struct Names(Receiver<Result<PathBuf, Failure>>);

impl Names {
    /// Begins to read a file, or standard input for [`INPUT`].
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let source: Box<dyn Read + Send> = match path == Path::new(INPUT) {
            true if io::stdin().is_terminal() => {
                return Err(usage!(
                    "--files-from -: standard input is a terminal; pipe names of images into it, or name a file"
                ));
            }
            true => Box::new(io::stdin()),
            false => Box::new(File::open(path).map_err(|error| failed!("cannot open {}: {error}", path.display()))?),
        };
        let (sender, receiver) = sync_channel(MAX_NAMES);
        let origin = path.display().to_string();
        let read = move || {
            let mut lines = BufReader::new(source);
            // The receiver is gone if predicting has ended by an error.
            while let Some(name) = next_name(&mut lines, &origin)
                && sender.send(name).is_ok()
            {}
        };
        let thread = std::thread::Builder::new().name("names".to_owned()).spawn(read);
        thread.map_err(|error| failed!("cannot start the thread that reads names: {error}"))?;
        Ok(Names(receiver))
    }
}

impl Iterator for Names {
    type Item = Result<Vec<PathBuf>, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.0.recv().ok()?;
        Some(std::iter::once(first).chain(self.0.try_iter()).take(MAX_NAMES).collect())
    }
}

/// The next name of a stream; lines without one are passed over.
fn next_name(lines: &mut impl BufRead, origin: &str) -> Option<Result<PathBuf, Failure>> {
    loop {
        let mut line = Vec::new();
        match lines.by_ref().take(MAX_NAME_BYTES + 1).read_until(b'\n', &mut line) {
            Ok(0) => return None,
            Ok(read) if read as u64 > MAX_NAME_BYTES => {
                return Some(Err(failed!(
                    "{origin}: a line has more than {MAX_NAME_BYTES} bytes: it is no name of a file"
                )));
            }
            Ok(_) => {}
            Err(error) => return Some(Err(failed!("cannot read {origin}: {error}"))),
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if !line.is_empty() {
            return Some(Ok(PathBuf::from(OsString::from_vec(line))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lines() {
        let check = |text: &[u8], expected: &[&str], ends: Option<&str>| {
            let mut lines = text;
            let mut found = Vec::new();
            let failure = loop {
                match next_name(&mut lines, "names.txt") {
                    Some(Ok(name)) => found.push(name),
                    Some(Err(failure)) => break Some(failure.message().to_owned()),
                    None => break None,
                }
            };
            assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
            assert_eq!(failure.as_deref(), ends);
        };
        check(b"", &[], None);
        check(b"a.jpg", &["a.jpg"], None);
        check(b"\n a.jpg\n\n\nb c.jpg \n", &[" a.jpg", "b c.jpg "], None);
        let longest = "n".repeat(4095);
        check(format!("{longest}\nb\n").as_bytes(), &[&longest, "b"], None);
        let problem = "names.txt: a line has more than 4096 bytes: it is no name of a file";
        check(&[b"a\n".as_slice(), &[b'n'; 5000]].concat(), &["a"], Some(problem));
    }
}
