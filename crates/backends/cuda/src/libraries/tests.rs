//! Search and loading, on machines that are tables of variables and files.

use std::collections::BTreeSet;

use super::*;

/// A machine of variables, and of paths; a path with ` -> ` is a link, one with ` = ` has a text.
struct Fake<'a> {
    variables: &'a [(&'a str, &'a str)],
    files: &'a [&'a str],
}

impl Fake<'_> {
    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| Path::new(file.split(" -> ").next().unwrap().split(" = ").next().unwrap()))
    }

    fn after<'b>(&'b self, path: &Path, sign: &str) -> Option<&'b str> {
        let pairs = self.files.iter().filter_map(|file| file.split_once(sign));
        pairs.into_iter().find(|(name, _)| Path::new(name) == path).map(|(_, rest)| rest)
    }
}

impl Machine for Fake<'_> {
    fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
    }

    fn names(&self, folder: &Path) -> Vec<String> {
        let below = self.paths().filter_map(|path| path.strip_prefix(folder).ok()?.iter().next()?.to_str());
        below.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn text(&self, file: &Path) -> Option<String> {
        self.after(file, " = ").map(str::to_owned)
    }

    fn link(&self, path: &Path) -> Option<PathBuf> {
        self.after(path, " -> ").map(PathBuf::from)
    }
}

/// What every machine has, between the first and the last places.
const USUAL: [&str; 6] = [
    "system /usr/lib/ARCH-linux-gnu",
    "system /usr/lib64",
    "system /usr/lib",
    "system /usr/local/lib",
    "toolkit /usr/local/cuda/lib64",
    "toolkit /usr/local/cuda/lib",
];

#[test]
fn places_in_their_order() {
    let check = |variables: &[(&str, &str)], files: &[&str], before: &[&str], after: &[&str]| {
        let found: Vec<String> = places(&Fake { variables, files })
            .iter()
            .map(|place| {
                format!("{:?} {}", place.origin, place.folder.display()).replace("LoaderPath", "loader").to_lowercase()
            })
            .collect();
        let usual = USUAL.map(|place| place.replace("ARCH", std::env::consts::ARCH));
        let expected: Vec<String> = before
            .iter()
            .map(|place| (*place).to_owned())
            .chain(usual)
            .chain(after.iter().map(|place| (*place).to_owned()))
            .collect();
        assert_eq!(found, expected);
    };
    check(&[], &[], &[], &[]);
    // A relative folder, and one that was named before, count for nothing.
    check(&[(GIVEN, "/g:here:/h"), ("LD_LIBRARY_PATH", ":/l:/g:")], &[], &["given /g", "given /h", "loader /l"], &[]);
    check(
        &[("LD_LIBRARY_PATH", "")],
        &["/etc/ld.so.conf.d/cuda.conf = # a\n/c # b\ninclude /x\n"],
        &["system /c"],
        &[],
    );
    let packages = "/v/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9";
    let python = "python /v/lib/python3.12/site-packages/nvidia/cudnn/lib";
    check(&[("VIRTUAL_ENV", "/v")], &[packages, "/v/lib/other/site-packages/nvidia/x/lib"], &[], &[python]);
    check(&[("PATH", "/bin:/v/bin")], &[packages, "/v/bin/python3 -> /usr/bin/python3.12"], &[], &[python]);
    check(&[("PATH", "/shims")], &[packages, "/shims/python3 -> /v/bin/python3.12"], &[], &[python]);
    // An environment in the middle of links was passed by when only the last one counted.
    let links = ["/bin/python3 -> /v/bin/python3", "/v/bin/python3 -> /usr/bin/python3.12", "/v/pyvenv.cfg"];
    let others = "/usr/lib/python3.12/dist-packages/nvidia/cudnn/lib/libcudnn.so.9";
    let of_base = "python /usr/lib/python3.12/dist-packages/nvidia/cudnn/lib";
    check(&[("PATH", "/bin")], &[&links[..], &[packages, others]].concat(), &[], &[python, of_base]);
    check(&[("PATH", "/a")], &["/a/python3 -> /b/python3", "/b/python3 -> /a/python3"], &[], &[]);
    // Only the first python3 is the one that would be started.
    check(&[("PATH", "/bin:/v/bin")], &[packages, "/bin/python3 -> /bin/python3.12", "/v/bin/python3"], &[], &[]);
    check(
        &[("HOME", "/u")],
        &["/u/.local/lib/python3.9/site-packages/nvidia/cu13/lib/x"],
        &[],
        &["python /u/.local/lib/python3.9/site-packages/nvidia/cu13/lib"],
    );
    check(
        &[("CONDA_PREFIX", "/k")],
        &["/k/lib/python3.11/site-packages/nvidia/cublas/lib/x"],
        &[],
        &["python /k/lib/python3.11/site-packages/nvidia/cublas/lib", "conda /k/lib"],
    );
}

#[test]
fn the_toolkit_that_is_named_comes_first() {
    let found = places(&Fake { variables: &[("CUDA_PATH", "/p"), ("CUDA_HOME", "/h")], files: &[] });
    let toolkit: Vec<_> =
        found.iter().filter(|place| place.origin == Origin::Toolkit).map(|place| &place.folder).collect();
    let expected = ["/h/lib64", "/h/lib", "/p/lib64", "/p/lib", "/usr/local/cuda/lib64", "/usr/local/cuda/lib"];
    assert_eq!(toolkit, expected.map(PathBuf::from).iter().collect::<Vec<_>>());
}

#[test]
fn files_of_the_versions_that_the_driver_takes() {
    let check = |library: Library, expected: &[&str]| assert_eq!(library.files(), expected);
    check(Library::CublasLt { newest: 14 }, &["libcublasLt.so.13", "libcublasLt.so.12"]);
    check(Library::CublasLt { newest: 13 }, &["libcublasLt.so.13", "libcublasLt.so.12"]);
    check(Library::CublasLt { newest: 12 }, &["libcublasLt.so.12"]);
    check(Library::CublasLt { newest: 11 }, &[]);
    check(Library::Nvrtc { major: 12 }, &["libnvrtc.so.12"]);
}

#[test]
fn a_missing_library_is_one_line() {
    let check = |origins: &[(Origin, &str)], library: Library, expected: &str| {
        let places = origins.iter().map(|(origin, folder)| LibraryFolder::new(*origin, *folder)).collect();
        let error = Libraries { places }.load(library).unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    check(
        &[(Origin::Given, "/nowhere/a"), (Origin::Given, "/nowhere/b"), (Origin::Toolkit, "/nowhere/lib64")],
        Library::Cudnn,
        "cuDNN is missing: no libcudnn.so.9 in ENMASSE_CUDA_LIBRARIES (/nowhere/a, /nowhere/b), CUDA_HOME, CUDA_PATH and \
         /usr/local/cuda (/nowhere/lib64); PyPI's nvidia-cudnn-cu12 (or -cu13) or NVIDIA's package cudnn9 brings it: install it",
    );
    check(
        &[(Origin::System, "/usr/lib")],
        Library::Nvrtc { major: 99 },
        "NVRTC is missing: no libnvrtc.so.99 in the system's folders; PyPI's nvidia-cuda-nvrtc-cu12 (nvidia-cuda-nvrtc for CUDA \
         13) or the CUDA toolkit brings it: install it",
    );
    check(
        &[],
        Library::CublasLt { newest: 13 },
        "cuBLASLt is missing: no libcublasLt.so.13 or libcublasLt.so.12 in any place; PyPI's nvidia-cublas-cu12 (nvidia-cublas \
         for CUDA 13) or the CUDA toolkit brings it: install it",
    );
}

#[test]
fn a_file_that_is_no_library_is_named_unless_another_loads() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let libraries = Libraries::in_folders(&[folders[0].path().to_owned(), folders[1].path().to_owned()]);
    let broken = folders[0].path().join("libcudnn.so.9");
    std::fs::write(&broken, "no library").unwrap();
    let error = libraries.load(Library::Cudnn).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cuDNN cannot be loaded: {}: ", broken.display())), "{error}");
    // Any library of the system serves: what loads is the file, whatever it has.
    let libc = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = libc.lines().find_map(|line| line.split_whitespace().last().filter(|path| path.ends_with("/libc.so.6")));
    std::os::unix::fs::symlink(libc.unwrap(), folders[1].path().join("libcudnn.so.9")).unwrap();
    let loaded = libraries.load(Library::Cudnn).unwrap();
    assert_eq!(loaded.path, folders[1].path().join("libcudnn.so.9"));
    let error = loaded.address("cudnnCreate").unwrap_err().to_string();
    let expected = format!("cuDNN ({}) has no function cudnnCreate: ", loaded.path.display());
    assert!(error.starts_with(&expected), "{error}");
}

functions! {
    /// A function of the C library.
    struct C {
        fn labs(number: i64) -> i64;
    }
}

functions! {
    /// A function that no library has.
    struct Lacking {
        fn labs(number: i64) -> i64;
        fn no_such_function() -> i32;
    }
}

#[test]
fn functions_are_called_by_their_names() {
    // The C library under the name of the program that this process is.
    let loaded = || Loaded { library: Library::Driver, path: "libc.so.6".into(), handle: Handle::this() };
    let c = C::load(loaded()).unwrap();
    // SAFETY: as C declares it.
    assert_eq!(unsafe { (c.labs)(-7) }, 7);
    let lacking = Lacking::load(loaded());
    let error = lacking.map(|lacking| (lacking.labs, lacking.no_such_function)).unwrap_err();
    assert!(matches!(error, CudaError::Function { function: "no_such_function", .. }), "{error}");
}
