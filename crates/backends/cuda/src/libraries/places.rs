//! Where NVIDIA's libraries may lie on a machine, in the order in which they are tried. A pure function of the environment
//! and of the names in folders.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The variable that names folders of libraries, several with `:`. They come before all others.
pub const GIVEN: &str = "ENMASSE_CUDA_LIBRARIES";

/// What the search reads of a machine.
pub trait Machine {
    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<OsString>;
    /// The names in a folder, sorted; none if it cannot be read.
    fn names(&self, folder: &Path) -> Vec<String>;
    /// A file's text, if it can be read.
    fn text(&self, file: &Path) -> Option<String>;
    /// What a link leads to, which may be a link itself; `None` if the path is none.
    fn link(&self, path: &Path) -> Option<PathBuf>;
}

/// Why a folder is searched. The order is that of the search.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// [`GIVEN`] names it.
    Given,
    /// `LD_LIBRARY_PATH` names it: the system's loader searches it.
    LoaderPath,
    /// A folder of the system, which its loader searches.
    System,
    /// Below `CUDA_HOME`, `CUDA_PATH` or `/usr/local/cuda`.
    Toolkit,
    /// A package in the active Python environment.
    Python,
    /// The active conda environment.
    Conda,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Given => GIVEN,
            Origin::LoaderPath => "LD_LIBRARY_PATH",
            Origin::System => "the system's folders",
            Origin::Toolkit => "CUDA_HOME, CUDA_PATH and /usr/local/cuda",
            Origin::Python => "the Python environment's packages",
            Origin::Conda => "CONDA_PREFIX",
        })
    }
}

/// A folder that may have libraries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LibraryFolder {
    /// Why it is searched.
    pub origin: Origin,
    /// The folder.
    pub folder: PathBuf,
}

impl LibraryFolder {
    pub(super) fn new(origin: Origin, folder: impl Into<PathBuf>) -> Self {
        LibraryFolder { origin, folder: folder.into() }
    }
}

/// All places of a machine, in the order of the search. A folder appears once.
pub fn places(machine: &dyn Machine) -> Vec<LibraryFolder> {
    let roots = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| root(machine, name));
    let toolkits = roots.chain([PathBuf::from("/usr/local/cuda")]);
    let found = [
        (Origin::Given, listed(machine, GIVEN)),
        (Origin::LoaderPath, listed(machine, "LD_LIBRARY_PATH")),
        (Origin::System, system(machine)),
        (Origin::Toolkit, toolkits.flat_map(|root| ["lib64", "lib"].map(|below| root.join(below))).collect()),
        (Origin::Python, wheels(machine)),
        (Origin::Conda, root(machine, "CONDA_PREFIX").map(|root| root.join("lib")).into_iter().collect()),
    ];
    let mut places: Vec<LibraryFolder> = Vec::new();
    for (origin, folders) in found {
        for folder in folders {
            if !places.iter().any(|earlier| earlier.folder == folder) {
                places.push(LibraryFolder { origin, folder });
            }
        }
    }
    places
}

/// Every origin with its folders, for an error. The many folders of the system and of Python are left out.
pub(super) fn describe(places: &[LibraryFolder]) -> String {
    use Origin::{Conda, Given, LoaderPath, Python, System, Toolkit};
    let texts = [Given, LoaderPath, System, Toolkit, Python, Conda].into_iter().filter_map(|origin| {
        let of_origin = || places.iter().filter(move |place| place.origin == origin);
        let folders: Vec<String> = of_origin().map(|place| place.folder.display().to_string()).collect();
        match (origin, folders.len()) {
            (_, 0) => None,
            (System | Python, _) => Some(origin.to_string()),
            _ => Some(format!("{origin} ({})", folders.join(", "))),
        }
    });
    let texts: Vec<String> = texts.collect();
    if texts.is_empty() { "any place".to_owned() } else { texts.join(", ") }
}

/// The absolute folders of a list with `:`. Relative ones depend on where the program is started.
fn listed(machine: &dyn Machine, name: &str) -> Vec<PathBuf> {
    let list = machine.variable(name).unwrap_or_default();
    std::env::split_paths(&list).filter(|folder| folder.is_absolute()).collect()
}

fn root(machine: &dyn Machine, name: &str) -> Option<PathBuf> {
    machine.variable(name).map(PathBuf::from).filter(|root| root.is_absolute())
}

/// What the system's loader searches, as its configuration says.
fn system(machine: &dyn Machine) -> Vec<PathBuf> {
    let configuration = Path::new("/etc/ld.so.conf.d");
    let files = machine.names(configuration).into_iter();
    let mut folders: Vec<PathBuf> =
        files.filter_map(|file| machine.text(&configuration.join(file))).flat_map(|text| configured(&text)).collect();
    let machine = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    folders.extend([&machine, "/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from));
    folders
}

/// The folders listed in a file of `ld.so.conf.d`.
fn configured(text: &str) -> Vec<PathBuf> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| line.starts_with('/')).map(PathBuf::from).collect()
}

/// The most links from one `python3` to the next, which may lead in a circle.
const MAX_LINKS: usize = 8;

/// The folders `nvidia/*/lib` of Python's packages: those of the active environment, then those of the `python3` that a
/// shell would start. Python is not run.
fn wheels(machine: &dyn Machine) -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| root(machine, name));
    let mut prefixes: Vec<PathBuf> = active.collect();
    let found = listed(machine, "PATH").into_iter().find(|folder| machine.names(folder).iter().any(|n| n == "python3"));
    if let Some(folder) = found {
        // A link may lead to an environment, whose own python3 is a link to the one it was made from. The environment comes first.
        let links = std::iter::successors(Some(folder.join("python3")), |path| machine.link(path)).take(MAX_LINKS);
        let mut found: Vec<PathBuf> = links.filter_map(|path| Some(path.parent()?.parent()?.to_owned())).collect();
        found.sort_by_key(|prefix| !machine.names(prefix).iter().any(|name| name == "pyvenv.cfg"));
        prefixes.extend(found);
    }
    // `pip install --user`, and pip as root on Debian.
    prefixes.extend(root(machine, "HOME").map(|home| home.join(".local")));
    prefixes.push(PathBuf::from("/usr/local"));
    let mut folders = Vec::new();
    for prefix in prefixes {
        let lib = prefix.join("lib");
        for python in machine.names(&lib).iter().filter(|name| name.starts_with("python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = lib.join(python).join(packages).join("nvidia");
                folders.extend(machine.names(&nvidia).into_iter().map(|wheel| nvidia.join(wheel).join("lib")));
            }
        }
    }
    folders
}
