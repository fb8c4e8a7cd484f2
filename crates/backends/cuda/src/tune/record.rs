//! What earlier processes measured on a GPU: a file in the user's cache, one for each GPU and
//! version of cuDNN. So another run measures nothing.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use enmasse_graph::Choices;
use enmasse_system::files::{read_regular, write_whole};

use crate::cudnn::Problem;
use crate::gpu::Gpu;

/// The largest file that is read or written: some ten thousand problems.
const MAX_BYTES: usize = 4 << 20;

/// The fastest engines of a GPU, by problem.
pub(super) struct Record {
    /// `None` without a home folder.
    path: Option<PathBuf>,
    /// The file's first line.
    title: String,
    /// By the problems' text.
    engines: Choices,
    measured: Choices,
    exact: bool,
    /// Why the file was ignored.
    pub warning: Option<String>,
}

impl Record {
    /// Reads the record of a GPU in `folder`. One that is damaged is ignored, and later replaced.
    pub fn open(folder: Option<&Path>, gpu: &Gpu) -> Self {
        let properties = &gpu.context.properties;
        let [major, minor] = properties.capability;
        let title = format!("cuDNN {} on {} ({major}.{minor})", gpu.engines.version(), properties.name);
        let path = folder.map(|folder| folder.join(file_name(&title)));
        let read = path.as_ref().map_or_else(|| Ok(Choices::default()), |path| read(path, &title));
        let (engines, warning) = match read {
            Ok(engines) => (engines, None),
            Err(why) => {
                let path = path.as_deref().unwrap_or(Path::new(""));
                (Choices::default(), Some(format!("{}: {why}; it is ignored, and made again", path.display())))
            }
        };
        Record { path, title, engines, measured: Choices::default(), exact: gpu.engines.exact(), warning }
    }

    /// The engine for a problem, if it was measured.
    pub fn get(&self, problem: &Problem) -> Option<&str> {
        self.engines.get(&self.text(problem))
    }

    /// Adds what was measured.
    pub fn insert(&mut self, problem: &Problem, engine: &str) {
        self.measured.insert(self.text(problem), engine);
    }

    /// A GPU's problem, with what else decides which engines are candidates.
    fn text(&self, problem: &Problem) -> String {
        format!("{problem}{}", if self.exact { " exact" } else { "" })
    }

    /// Adds what was measured to the file, which other processes may have changed since. A folder that cannot be written is no
    /// error: the next process measures again.
    pub fn write(&self) {
        let Some(path) = self.path.as_deref().filter(|_| !self.measured.is_empty()) else { return };
        let mut engines = read(path, &self.title).unwrap_or_default();
        engines.extend(self.measured.clone());
        let text = |engines: &Choices| format!("{}\n{engines}", self.title);
        let mut all = text(&engines);
        if all.len() > MAX_BYTES {
            all = text(&self.measured);
        }
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let _ = folder.map(|()| write_whole(path, |file| file.write_all(all.as_bytes())));
    }
}

/// `cudnn-9.28.0-on-nvidia-h200-9.0.txt`, for example.
pub(crate) fn file_name(title: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { ' ' };
    let words: String = title.chars().map(plain).collect();
    format!("{}.txt", words.split_whitespace().collect::<Vec<_>>().join("-"))
}

/// The engines in a file; none if there is no file.
fn read(path: &Path, title: &str) -> Result<Choices, String> {
    let bytes = match read_regular(path, MAX_BYTES as u64) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Choices::default());
        }
        Err(error) => return Err(error.to_string()),
    };
    let text = String::from_utf8(bytes).map_err(|_| "it is not text in UTF-8".to_owned())?;
    let foreign = || format!("it is no list of the engines of {title}");
    let rest = text.strip_prefix(title).and_then(|rest| rest.strip_prefix('\n')).ok_or_else(foreign)?;
    rest.parse().map_err(|error| format!("after its first line, {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_plain_names() {
        let check = |title: &str, expected: &str| assert_eq!(file_name(title), expected);
        check("cuDNN 9.28.0 on NVIDIA H200 (9.0)", "cudnn-9.28.0-on-nvidia-h200-9.0.txt");
        check("cuDNN 9.1.1 on ../a/Ü (7.5)", "cudnn-9.1.1-on-..-a-7.5.txt");
    }

    #[test]
    fn only_whole_records_of_the_gpu_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        let check = |content: &[u8], expected: Result<usize, &str>| {
            std::fs::write(&path, content).unwrap();
            let found = read(&path, "cuDNN 9 on a GPU").map(|engines| engines.len());
            assert_eq!(found.as_ref().map_err(String::as_str), expected.as_ref().map_err(|why| *why));
        };
        check(b"cuDNN 9 on a GPU\n1 chosen by measuring\neng1 conv a\n", Ok(1));
        let cut = "after its first line, line 1 counts 1 operations, but there are 0 whole lines after it";
        check(b"cuDNN 9 on a GPU\n1 chosen by measuring\n", Err(cut));
        check(b"cuDNN 8 on a GPU\n0 chosen by measuring\n", Err("it is no list of the engines of cuDNN 9 on a GPU"));
        check(b"", Err("it is no list of the engines of cuDNN 9 on a GPU"));
        check(b"\xff", Err("it is not text in UTF-8"));
        check(&vec![b'a'; MAX_BYTES + 1], Err("it has more than 4194304 bytes"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(&path, "any"), Ok(Choices::default()));
        std::fs::create_dir(&path).unwrap();
        assert_eq!(read(&path, "any"), Err("it is a folder, not a file".to_owned()));
    }
}
