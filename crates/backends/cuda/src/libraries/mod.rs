//! NVIDIA's libraries, found and loaded at run time. Nothing links to them, so that one binary runs
//! with and without a GPU, and with the libraries of CUDA 12 and 13.
//!
//! `places` says where a library may lie, [`Libraries::load`] loads the first one that the system
//! takes, and `functions!` declares a table of its functions.
//!
//! Convolutions are cuDNN's, linear layers are cuBLASLt's, and everything else is our kernels.

mod functions;
mod library;
mod places;
mod version;

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::error::CudaError;

pub(crate) use functions::functions;
pub use library::Library;
pub use places::GIVEN;
use places::{LibraryFolder, Machine, Origin, places};
pub use version::Version;

/// The environment and the files of this process's machine.
struct ThisMachine;

impl Machine for ThisMachine {
    fn variable(&self, name: &str) -> Option<OsString> {
        env::var_os(name)
    }

    fn names(&self, folder: &Path) -> Vec<String> {
        let entries = read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    fn text(&self, file: &Path) -> Option<String> {
        read_to_string(file).ok()
    }

    fn link(&self, path: &Path) -> Option<PathBuf> {
        let target = path.parent()?.join(path.read_link().ok()?);
        Some(target.parent()?.canonicalize().ok()?.join(target.file_name()?))
    }
}

/// The folders in which this process looks for NVIDIA's libraries, the first choice first.
pub fn machine_folders() -> Vec<PathBuf> {
    places(&ThisMachine).into_iter().map(|place| place.folder).collect()
}

/// The places of this machine's libraries.
#[derive(Clone, Debug)]
pub struct Libraries {
    places: Vec<LibraryFolder>,
}

impl Libraries {
    /// Reads the environment and lists folders; loads nothing.
    pub fn gather() -> Self {
        Libraries { places: places(&ThisMachine) }
    }

    /// Libraries in these folders alone.
    pub fn in_folders(folders: &[PathBuf]) -> Self {
        let places = folders.iter().map(|folder| LibraryFolder::new(Origin::Given, folder)).collect();
        Libraries { places }
    }

    /// Loads the first file that the system takes.
    ///
    /// # Errors
    /// [`CudaError::Missing`], or [`CudaError::Unusable`] if there is a file, but none that the system loads; [`CudaError::Static`].
    pub fn load(&self, library: Library) -> Result<Loaded, CudaError> {
        if cfg!(target_feature = "crt-static") {
            return Err(CudaError::Static { library });
        }
        let mut refused = None;
        for path in self.candidates(&library.files()) {
            match open(&path) {
                Ok(handle) => return Ok(Loaded { library, path, handle }),
                Err(Refusal::Absent) => {}
                Err(Refusal::Because(why)) => {
                    refused.get_or_insert(why);
                }
            }
        }
        Err(match refused {
            Some(why) => CudaError::Unusable { library, why },
            None => CudaError::Missing {
                library,
                files: library.files().join(" or "),
                places: places::describe(&self.places),
            },
        })
    }

    /// What to ask the loader for: a bare name where the loader searches itself, otherwise paths of files that exist.
    fn candidates(&self, files: &[String]) -> Vec<PathBuf> {
        let mut candidates: Vec<PathBuf> = Vec::new();
        for place in &self.places {
            let paths = files.iter().map(|file| match place.origin {
                Origin::LoaderPath | Origin::System => PathBuf::from(file),
                _ => place.folder.join(file),
            });
            for path in paths {
                let bare = path.parent() == Some(Path::new(""));
                if (bare || path.exists()) && !candidates.contains(&path) {
                    candidates.push(path);
                }
            }
        }
        candidates
    }
}

/// Why the system's loader does not load a file.
enum Refusal {
    /// It is nowhere.
    Absent,
    /// The loader's words.
    Because(String),
}

fn open(path: &Path) -> Result<Handle, Refusal> {
    // SAFETY: the initialisers of NVIDIA's libraries have no preconditions, as those of the system's own. A file under such a
    // name in a folder that the user names is as trusted as the program.
    unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        let why = error.source().map_or_else(|| error.to_string(), |words| words.to_string());
        // The loader's words for a file that is not there. The name is the one asked for, not a dependency's.
        let is_absent = why.starts_with(&format!("{}:", path.display())) && why.contains("No such file");
        if is_absent { Refusal::Absent } else { Refusal::Because(why) }
    })
}

/// A library in this process. It is never unloaded: the libraries keep state of threads and of the process's end.
#[derive(Debug)]
pub struct Loaded {
    /// Which one.
    pub library: Library,
    /// The file, or its bare name if the system's loader found it.
    pub path: PathBuf,
    handle: Handle,
}

impl Loaded {
    /// The address of a function.
    ///
    /// # Errors
    /// [`CudaError::Function`] if the library does not have it.
    pub(crate) fn address(&self, function: &'static str) -> Result<*const (), CudaError> {
        // SAFETY: the address is only looked up; [`functions!`] says what it is.
        let symbol = unsafe { self.handle.get::<*const ()>(function.as_bytes()) };
        let missing = || CudaError::Function { library: self.library, path: self.path.clone(), function };
        symbol.map(|symbol| symbol.into_raw().cast_const().cast()).map_err(|_| missing())
    }

    /// Loads a part of the library from the same folder. The library would load it itself when it first needs it, and end the
    /// process where that fails.
    ///
    /// # Errors
    /// [`CudaError::Missing`] or [`CudaError::Unusable`].
    pub(crate) fn load_part(&self, file: &str) -> Result<(), CudaError> {
        let library = self.library;
        match open(&self.path.with_file_name(file)) {
            Ok(part) => {
                std::mem::forget(part);
                Ok(())
            }
            Err(Refusal::Absent) => {
                let places = format!("the folder of {}", self.path.display());
                Err(CudaError::Missing { library, files: file.to_owned(), places })
            }
            Err(Refusal::Because(why)) => Err(CudaError::Unusable { library, why }),
        }
    }

    /// Keeps the library in the process for ever, so that addresses of its functions stay good.
    pub(crate) fn keep(self) -> PathBuf {
        std::mem::forget(self.handle);
        self.path
    }
}

#[cfg(test)]
mod tests;
