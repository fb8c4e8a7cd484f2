//! Finds and loads the library that the process's mpirun belongs to, and recognises it by its own words.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::error::MpiError;
use super::family::{GIVEN, MpiFamily};

/// The only function that is called before the family is known. All declare it alike.
type GetLibraryVersion = unsafe extern "C" fn(text: *mut c_char, length: *mut c_int) -> c_int;

/// `MPI_MAX_LIBRARY_VERSION_STRING`, of MPICH; Open MPI's is smaller.
const MAX_VERSION: usize = 8192;

/// A library in this process, which it never leaves.
pub(super) struct Loaded {
    handle: Library,
    path: PathBuf,
    family: MpiFamily,
    /// Its name and version, for people.
    pub name: String,
}

impl Loaded {
    /// Loads the file that [`GIVEN`] names, or else the first one that the system's loader finds.
    pub fn find(family: MpiFamily) -> Result<Self, MpiError> {
        match std::env::var_os(GIVEN).filter(|given| !given.is_empty()) {
            Some(given) if Path::new(&given).is_absolute() => Self::open_first(family, &[Path::new(&given)]),
            Some(given) => Err(MpiError::Given(given.into_boxed_os_str())),
            None => Self::open_first(family, &family.files().iter().map(Path::new).collect::<Vec<_>>()),
        }
    }

    fn open_first(family: MpiFamily, paths: &[&Path]) -> Result<Self, MpiError> {
        for path in paths {
            match open(path) {
                Ok(handle) => return Self::recognise(handle, path, family),
                Err(None) => {}
                Err(Some(why)) => return Err(MpiError::Unusable { family, why }),
            }
        }
        let files: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        Err(MpiError::Missing { family, file: files.join(" or ") })
    }

    fn recognise(handle: Library, path: &Path, family: MpiFamily) -> Result<Self, MpiError> {
        let mut loaded = Loaded { handle, path: path.to_owned(), family, name: String::new() };
        let address = loaded.address("MPI_Get_library_version")?;
        // SAFETY: all libraries declare this function alike; it may be called at any time.
        let get_version = unsafe { std::mem::transmute::<*mut c_void, GetLibraryVersion>(address) };
        let (mut text, mut length): ([c_char; MAX_VERSION], c_int) = ([0; MAX_VERSION], 0);
        // SAFETY: there is room for the longest text, which ends in a zero.
        let version = unsafe {
            get_version(text.as_mut_ptr(), &mut length);
            CStr::from_ptr(text.as_ptr())
        };
        let version = version.to_string_lossy();
        match name(&version) {
            Some((found, name)) if found == family => loaded.name = name,
            _ => {
                let version = version.lines().next().unwrap_or_default().to_owned();
                return Err(MpiError::Unknown { path: loaded.path, family, version });
            }
        }
        Ok(loaded)
    }

    /// The address of a function or an object.
    pub fn address(&self, name: &'static str) -> Result<*mut c_void, MpiError> {
        // SAFETY: the address is only looked up; `sys` says what it is.
        let symbol = unsafe { self.handle.get::<*mut c_void>(name.as_bytes()) };
        let missing = || MpiError::Symbol { path: self.path.clone(), family: self.family, name };
        symbol.map(|symbol| symbol.into_raw()).map_err(|_| missing())
    }

    /// Keeps the library in the process for ever.
    pub fn keep(self) -> String {
        std::mem::forget(self.handle);
        self.name
    }
}

/// `Err(None)` if there is no such file; otherwise the loader's words.
fn open(path: &Path) -> Result<Library, Option<String>> {
    if cfg!(target_feature = "crt-static") {
        return Err(Some("this program is static, and has no loader; take the one for glibc".to_owned()));
    }
    // SAFETY: the initialisers of MPI libraries have no preconditions. A file under such a name is as trusted as mpirun. The
    // plugins that they load look for their symbols among the global ones.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| {
        let why = error.source().map_or_else(|| error.to_string(), |source| source.to_string());
        let is_absent = why.starts_with(&format!("{}:", path.display())) && why.contains("No such file");
        (!is_absent).then_some(why)
    })
}

/// The family of a library, and its name and version, by the text that it gives of itself; `None` if it is not known.
fn name(version: &str) -> Option<(MpiFamily, String)> {
    let line = version.lines().next()?.split(',').next()?;
    let words: Vec<_> = line.split([' ', '\t', ':']).filter(|word| !word.is_empty()).collect();
    let family = match words[..] {
        ["Open", "MPI", number] if ["v4.", "v5."].iter().any(|known| number.starts_with(known)) => MpiFamily::OpenMpi,
        ["MPICH" | "MVAPICH" | "MVAPICH2", "Version", _] => MpiFamily::Mpich,
        ["Intel(R)", "MPI", "Library", ..] | ["CRAY", "MPICH", ..] => MpiFamily::Mpich,
        _ => return None,
    };
    let name = words.into_iter().filter(|word| *word != "Version").map(|word| match family {
        MpiFamily::OpenMpi => word.trim_start_matches('v'),
        MpiFamily::Mpich => word,
    });
    Some((family, name.collect::<Vec<_>>().join(" ")))
}

/// Whether a library of this name is known to hang in `MPI_Finalize` where its processes are on several hosts. MPICH 4.0 closes
/// its connections one process after another, and those that are done no longer answer the others.
pub(crate) fn hangs_between_hosts(name: &str) -> bool {
    name.starts_with("MPICH 4.0.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_recognised_by_their_own_words() {
        let check = |version: &str, expected: Option<(MpiFamily, &str)>| {
            assert_eq!(name(version), expected.map(|(family, name)| (family, name.to_owned())), "{version:?}");
        };
        let open_mpi = |name| Some((MpiFamily::OpenMpi, name));
        let mpich = |name| Some((MpiFamily::Mpich, name));
        check("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", open_mpi("Open MPI 4.1.4"));
        check("Open MPI v5.0.3, package: Open MPI root@host Distribution", open_mpi("Open MPI 5.0.3"));
        check("Open MPI v3.1.6, package: Open MPI", None);
        check("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7", mpich("MPICH 4.0.2"));
        check("MVAPICH2 Version      :\t2.3.7\n", mpich("MVAPICH2 2.3.7"));
        check("Intel(R) MPI Library 2021.9 for Linux* OS\n", mpich("Intel(R) MPI Library 2021.9 for Linux* OS"));
        check("HPE MPT 2.28", None);
        check("", None);
        assert_eq!(["MPICH 4.0.2", "MPICH 4.1.1", "Open MPI 4.0.2"].map(hangs_between_hosts), [true, false, false]);
    }

    #[test]
    fn files_that_are_no_library_are_named() {
        let error = |path: &Path| Loaded::open_first(MpiFamily::OpenMpi, &[path]).err().unwrap().to_string();
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = error(file.path());
        let expected = format!("Open MPI cannot be loaded: {}: file too short", file.path().display());
        assert_eq!(found, expected);
        let nothing = Path::new("/nowhere/libmpi.so.40");
        assert!(
            error(nothing).starts_with("Open MPI is missing: there is no /nowhere/libmpi.so.40 in "),
            "{}",
            error(nothing)
        );
        // A library of something else.
        let found = error(Path::new("libc.so.6"));
        assert!(found.starts_with("libc.so.6 has no MPI_Get_library_version, "), "{found}");
    }
}
