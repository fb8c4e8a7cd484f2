//! The package by the tests in `python/tests`, as pip installs it: Python's files and the extension in a folder, and the program in
//! `bin` beside them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../python");

/// The installed package, in a folder that is removed on drop.
struct Installed(TempDir);

impl Installed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [package, programs] = ["enmasse", "bin"].map(|name| folder.path().join(name));
        for folder in [&package, &programs] {
            fs::create_dir(folder).unwrap();
        }
        for file in fs::read_dir(Path::new(PYTHON).join("enmasse")).unwrap() {
            let file = file.unwrap();
            symlink(file.path().canonicalize().unwrap(), package.join(file.file_name())).unwrap();
        }
        symlink(built("deps/libenmasse_python.so"), package.join("_native.abi3.so")).unwrap();
        symlink(built("enmasse"), programs.join("enmasse")).unwrap();
        Installed(folder)
    }

    /// A module of Python with arguments, which can import the package, without variables that affect it.
    fn run(&self, python: &Path, arguments: &[&str]) {
        let mut command = Command::new(python);
        command.args(arguments).current_dir(Path::new(PYTHON).join("tests")).env_clear();
        let kept = ["PATH", "HOME", "TMPDIR"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        command.envs(kept).env("CUDA_VISIBLE_DEVICES", "").env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PYTHONPATH", self.0.path()).env("ENMASSE_CACHE", self.0.path().join("cache"));
        let ended = command.output().unwrap();
        let [said, errors] = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(ended.status.success(), "{arguments:?}: {}\n{said}\n{errors}", ended.status);
    }
}

/// What the build of these tests has made.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let file = own.parent().and_then(Path::parent).unwrap().join(name);
    assert!(file.exists(), "{} is not built: cargo build -p enmasse -p enmasse-python", file.display());
    file
}

#[test]
fn python_trains_and_predicts() {
    let Some(python) = test_support::notebook() else { return };
    Installed::new().run(&python, &["-m", "unittest", "discover", "--pattern", "test_*.py"]);
}

#[test]
fn pytorch_computes_what_a_run_predicts() {
    let Some(python) = test_support::pytorch() else { return };
    Installed::new().run(&python, &["-m", "unittest", "discover", "--pattern", "torch_*.py"]);
}

#[test]
fn the_notebook_runs() {
    let Some(python) = test_support::notebook() else { return };
    let notebook = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/notebook.ipynb");
    Installed::new().run(&python, &["notebook.py", notebook]);
}

#[test]
fn the_package_is_typed() {
    let Some(python) = test_support::notebook() else { return };
    Installed::new().run(&python, &["-m", "mypy", "--strict", "--cache-dir=/dev/null", "../enmasse", "typed.py"]);
}
