//! Compiles the shared objects, each once for each text of its sources.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use test_support::Need;

/// A shared object, by the name under which programs load it.
pub(crate) struct Library {
    name: &'static str,
    /// C++ files in `cpp/`.
    sources: &'static [&'static str],
    /// Whether it also holds the `cuda` crate's kernels.
    kernels: bool,
    /// Whether it calls the driver.
    driver: bool,
}

/// The kernels, with what runs them.
pub(crate) const KERNELS: Library =
    Library { name: "libenmasse_kernels.so", sources: &["host.cpp"], kernels: true, driver: false };

/// Kernels for the tests of this crate.
#[cfg(test)]
pub(crate) const RULES: Library =
    Library { name: "libenmasse_rules.so", sources: &["host.cpp", "rules.cu"], kernels: false, driver: false };

/// NVIDIA's driver.
const DRIVER: Library =
    Library { name: "libcuda.so.1", sources: &["host.cpp", "cuda.cpp"], kernels: true, driver: false };

/// All that [`folder`] holds. Programs load the part of cuDNN before they call it.
const LIBRARIES: [Library; 6] = [
    DRIVER,
    Library { name: "libcudnn.so.9", sources: &["cudnn.cpp"], kernels: false, driver: true },
    Library { name: "libcudnn_graph.so.9", sources: &["cudnn.cpp"], kernels: false, driver: true },
    Library { name: "libcublasLt.so.12", sources: &["cublas_lt.cpp"], kernels: false, driver: true },
    Library { name: "libnvidia-ml.so.1", sources: &["management.cpp"], kernels: false, driver: false },
    Library { name: "libnccl.so.2", sources: &["nccl.cpp"], kernels: false, driver: true },
];

/// No contraction: the kernels say where they want a fused product, here as on a GPU.
const FLAGS: [&str; 10] = [
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
];

/// The flags, with those for this machine.
fn flags() -> Vec<&'static str> {
    // Without it every fused product is a call.
    #[cfg(target_arch = "x86_64")]
    let fused = std::arch::is_x86_feature_detected!("fma").then_some("-mfma");
    // Compilers for other processors use such instructions unasked.
    #[cfg(not(target_arch = "x86_64"))]
    let fused = None;
    FLAGS.into_iter().chain(fused).collect()
}

/// The folder with every library, for the loader of a program under test. `None` without a compiler: the test is then in
/// the table of those that did not run.
pub fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    compiler()
        .then(|| {
            FOLDER.get_or_init(|| {
                let libraries = LIBRARIES.map(|library| (library.name, library.build()));
                let texts: Vec<_> = libraries.iter().map(|(_, path)| path.as_os_str().as_encoded_bytes()).collect();
                let folder = cache().join(format!("libraries-{}", digest(&texts)));
                whole(&folder, |fresh| {
                    fs::create_dir(fresh).expect("a new folder");
                    for (name, path) in &libraries {
                        fs::hard_link(path, fresh.join(name)).expect("a link");
                    }
                });
                folder
            })
        })
        .map(PathBuf::as_path)
}

/// Whether there is a compiler. If not, the test is in the table.
pub(crate) fn compiler() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| Command::new("c++").arg("--version").output().is_ok());
    if !found {
        test_support::skip(Need::Compiler, "there is no c++");
    }
    found
}

impl Library {
    /// Compiles what has changed since the last time, and links it.
    pub(crate) fn build(&self) -> PathBuf {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp");
        let product = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/kernels");
        let headers = [files(&own, "h"), files(&product, "h")].concat();
        let mut sources: Vec<PathBuf> = self.sources.iter().map(|name| own.join(name)).collect();
        if self.kernels {
            sources.extend(files(&product, "cu"));
        }
        let driver = self.driver.then(|| DRIVER.build());
        let mut objects = Vec::new();
        // One thread of one process compiles while others wait for it.
        let lock = File::create(cache().join("lock")).expect("a lock file");
        lock.lock().expect("a lock");
        std::thread::scope(|scope| {
            for source in &sources {
                let headers = &headers;
                let texts: Vec<Vec<u8>> = headers.iter().chain([source]).map(|path| read(path)).collect();
                let name = source.file_stem().expect("a name").to_string_lossy();
                let object = cache().join(format!("{name}-{}.o", digest(&texts)));
                objects.push(object.clone());
                let include = [&own, &product].map(|folder| format!("-I{}", folder.display()));
                scope.spawn(move || {
                    whole(&object, |fresh| {
                        let text = fresh.with_extension("cpp");
                        fs::write(&text, unit(source, headers)).expect("a file");
                        run(Command::new("c++").args(flags()).args(include).arg("-c").arg(&text), fresh);
                        fs::remove_file(&text).expect("a file of this process");
                    });
                });
            }
        });
        objects.extend(driver);
        let texts: Vec<_> = objects.iter().map(|path| path.as_os_str().as_encoded_bytes()).collect();
        let library = cache().join(format!("{}-{}", self.name, digest(&texts)));
        whole(&library, |fresh| {
            let soname = format!("-Wl,-soname,{}", self.name);
            run(Command::new("c++").args(["-shared", "-Wl,-z,defs", &soname]).args(&objects), fresh);
        });
        library
    }
}

/// The text that compiles a source. Kernels of each file are in a namespace of their own, as they are where all of them are
/// compiled together: files may then use a name for different things.
fn unit(source: &Path, headers: &[PathBuf]) -> String {
    let include = |path: &Path| format!("#include \"{}\"\n", path.display());
    match source.file_stem().filter(|_| source.extension().is_some_and(|extension| extension == "cu")) {
        None => include(source),
        Some(name) => {
            let headers: String = headers.iter().map(|header| include(header)).collect();
            format!("{headers}namespace {}_kernels {{\n{}}}\n", name.display(), include(source))
        }
    }
}

/// Where everything built lies: beside the programs of tests, in cargo's folder.
fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let program = std::env::current_exe().expect("the path of this program");
        let folder = program.parent().expect("a folder").join("emulation");
        fs::create_dir_all(&folder).expect("a folder");
        folder
    })
}

/// Makes a path that does not exist yet, so that it appears whole.
fn whole(path: &Path, make: impl FnOnce(&Path)) {
    if path.exists() {
        return;
    }
    let fresh = path.with_added_extension(std::process::id().to_string());
    make(&fresh);
    if fs::rename(&fresh, path).is_err() {
        assert!(path.exists(), "{} cannot be made", path.display());
        fs::remove_dir_all(&fresh).expect("a folder of this process");
    }
}

/// The files of a folder with this extension, sorted.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    paths
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A name for these texts, and for how they are compiled.
fn digest(texts: &[impl AsRef<[u8]>]) -> String {
    let mut hasher = blake3::Hasher::new();
    for text in texts.iter().map(AsRef::as_ref).chain(flags().iter().map(|flag| flag.as_bytes())) {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text);
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Runs the compiler.
fn run(command: &mut Command, output: &Path) {
    let result = command.arg("-o").arg(output).output().expect("c++ runs");
    assert!(result.status.success(), "{command:?}: {}", String::from_utf8_lossy(&result.stderr));
}
