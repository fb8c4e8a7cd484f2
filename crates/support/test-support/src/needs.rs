//! What tests need of the machine, and a table of those that did not run.
//!
//! A test that lacks something says so by [`skip`] and returns. The test program prints a table of these tests when it
//! ends. With `ENMASSE_TEST_ALL=1`, which the gate sets, a test that skips fails, unless the machine cannot have what it
//! needs: `ENMASSE_TEST_WITHOUT=slurm,pytorch` names such needs.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, Once, PoisonError};

/// What a test can need beyond the compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Half a minute or more: the long form of a test, or the whole of it.
    Time,
    /// A Python with PyTorch, torchvision, onnx and ONNX Runtime.
    PyTorch,
    /// NVIDIA's libraries, which need no GPU.
    Cuda,
    /// A server that speaks S3's protocol.
    S3,
    /// Real pretrained weights, which packages have in them.
    Weights,
    /// A browser, and a Python that drives it.
    Browser,
    /// A Python with TensorBoard and MLflow's client.
    Loggers,
    /// A Python with numpy, mypy, and nbclient with a kernel of its own.
    Notebook,
    /// A Slurm cluster of several nodes.
    Slurm,
    /// A network of several hosts.
    Hosts,
    /// Open MPI's mpirun and library.
    OpenMpi,
    /// MPICH's mpiexec and library.
    Mpich,
    /// Namespaces of the kernel, and mounts in them.
    Namespaces,
    /// A control group of the test's own.
    ControlGroup,
    /// A limit of threads for one process alone, which must be of another user.
    Limits,
    /// A login session with a terminal.
    Terminal,
    /// System calls of other processes that the kernel holds until the test answers them.
    HeldCalls,
    /// A C++ compiler.
    Compiler,
    /// An instruction-set level of the processor.
    Level,
}

impl Need {
    /// The name in the table and in `ENMASSE_TEST_WITHOUT`.
    pub fn name(self) -> &'static str {
        match self {
            Need::Time => "time",
            Need::PyTorch => "pytorch",
            Need::Cuda => "cuda",
            Need::S3 => "s3",
            Need::Weights => "weights",
            Need::Browser => "browser",
            Need::Loggers => "loggers",
            Need::Notebook => "notebook",
            Need::Slurm => "slurm",
            Need::Hosts => "hosts",
            Need::OpenMpi => "openmpi",
            Need::Mpich => "mpich",
            Need::Namespaces => "namespaces",
            Need::ControlGroup => "cgroup",
            Need::Limits => "limits",
            Need::Terminal => "terminal",
            Need::HeldCalls => "held-calls",
            Need::Compiler => "c++",
            Need::Level => "level",
        }
    }

    /// Whether a test that lacks this fails. No setting gives a machine another processor.
    fn required(self) -> bool {
        let without = std::env::var("ENMASSE_TEST_WITHOUT").unwrap_or_default();
        all() && self != Need::Level && !without.split(',').any(|name| name == self.name())
    }
}

/// Whether all tests are to run, in their long forms.
fn all() -> bool {
    std::env::var_os("ENMASSE_TEST_ALL").is_some_and(|value| value == "1")
}

/// The rows of the table: test, need, reason.
static SKIPPED: Mutex<Vec<(String, Need, String)>> = Mutex::new(Vec::new());

unsafe extern "C" {
    /// C11, 7.22.4.2. The only way to print after the tests: their harness ends the process itself.
    safe fn atexit(function: extern "C" fn()) -> i32;
}

/// Prints the table.
extern "C" fn report() {
    let mut rows = std::mem::take(&mut *SKIPPED.lock().unwrap_or_else(PoisonError::into_inner));
    rows.sort_by(|a, b| (a.1.name(), &a.0, &a.2).cmp(&(b.1.name(), &b.0, &b.2)));
    rows.dedup();
    println!("skipped: {}", rows.len());
    let wide = rows.iter().map(|(test, ..)| test.len()).max().unwrap_or(0);
    for (test, need, reason) in rows {
        println!("  {:10}  {test:wide$}  {reason}", need.name());
    }
    println!();
}

/// Enters the running test in the table: all of it, or a part that `reason` names. The test returns after this.
///
/// # Panics
/// Where the gate could have what is missing.
#[track_caller]
pub fn skip(need: Need, reason: impl fmt::Display) {
    assert!(!need.required(), "needs {}: {reason}; ENMASSE_TEST_WITHOUT={0} skips it", need.name());
    // The harness names the thread of a test after it.
    let test = std::thread::current().name().unwrap_or("a thread of a test").to_owned();
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| assert_eq!(atexit(report), 0));
    SKIPPED.lock().unwrap_or_else(PoisonError::into_inner).push((test, need, reason.to_string()));
}

/// Whether a test, or its long form, may take long. If not, it is in the table.
pub fn time() -> bool {
    let has = Need::Time.required();
    if !has {
        skip(Need::Time, "takes long; ENMASSE_TEST_ALL=1 runs it");
    }
    has
}

/// The Python with PyTorch, torchvision, onnx and ONNX Runtime that `ENMASSE_TEST_PYTHON` names. If there is none, the test is in the table.
pub fn pytorch() -> Option<PathBuf> {
    let Some(python) = std::env::var_os("ENMASSE_TEST_PYTHON") else {
        skip(Need::PyTorch, "ENMASSE_TEST_PYTHON names no Python");
        return None;
    };
    let imported = Command::new(&python).args(["-c", "import torch, torchvision, onnx, onnxruntime"]).output();
    if imported.is_ok_and(|output| output.status.success()) {
        return Some(python.into());
    }
    skip(Need::PyTorch, format_args!("{} cannot import torch, torchvision, onnx and onnxruntime", python.display()));
    None
}

/// The folder of NVIDIA's libraries that `ENMASSE_TEST_CUDA` names, as `.ci/cuda` makes it. If there is none, the test is in
/// the table.
pub fn cuda() -> Option<PathBuf> {
    let folder = std::env::var_os("ENMASSE_TEST_CUDA").filter(|folder| !folder.is_empty());
    if folder.is_none() {
        skip(Need::Cuda, "ENMASSE_TEST_CUDA names no folder");
    }
    folder.map(PathBuf::from)
}

/// The program that starts ranks of [`Need::OpenMpi`] or [`Need::Mpich`], under Debian's name or its own. If there is none,
/// the test is in the table.
///
/// # Panics
/// For any other need.
pub fn mpirun(need: Need) -> Option<&'static str> {
    let (names, marks): (&[&str], &[&str]) = match need {
        Need::OpenMpi => (&["mpirun.openmpi", "mpirun"], &["Open MPI", "OpenRTE"]),
        Need::Mpich => (&["mpiexec.hydra"], &["HYDRA"]),
        other => panic!("{} has no mpirun", other.name()),
    };
    let is_it = |name: &&&str| {
        let words = Command::new(name).arg("--version").output();
        words.is_ok_and(|words| marks.iter().any(|mark| String::from_utf8_lossy(&words.stdout).contains(mark)))
    };
    let found = names.iter().find(is_it).copied();
    if found.is_none() {
        skip(need, format_args!("there is no {}", names.join(" or ")));
    }
    found
}

/// The Python with moto that `ENMASSE_TEST_S3` names, as `.ci/s3` makes it. If there is none, the test is in the table.
pub fn s3() -> Option<PathBuf> {
    let python = std::env::var_os("ENMASSE_TEST_S3").filter(|python| !python.is_empty());
    if python.is_none() {
        skip(Need::S3, "ENMASSE_TEST_S3 names no Python");
    }
    python.map(PathBuf::from)
}

/// The Python with Playwright that `ENMASSE_TEST_BROWSER` names, as `.ci/browser` makes it. If there is none, the test is in the
/// table.
pub fn browser() -> Option<PathBuf> {
    let python = std::env::var_os("ENMASSE_TEST_BROWSER").filter(|python| !python.is_empty());
    if python.is_none() {
        skip(Need::Browser, "ENMASSE_TEST_BROWSER names no Python");
    }
    python.map(PathBuf::from)
}

/// The Python with TensorBoard and MLflow's client that `ENMASSE_TEST_LOGGERS` names, as `.ci/loggers` makes it. If there is none, the
/// test is in the table.
pub fn loggers() -> Option<PathBuf> {
    let python = std::env::var_os("ENMASSE_TEST_LOGGERS").filter(|python| !python.is_empty());
    if python.is_none() {
        skip(Need::Loggers, "ENMASSE_TEST_LOGGERS names no Python");
    }
    python.map(PathBuf::from)
}

/// The Python with numpy, mypy and nbclient that `ENMASSE_TEST_NOTEBOOK` names, as `.ci/notebook` makes it. If there is none, the test is in
/// the table.
pub fn notebook() -> Option<PathBuf> {
    let python = std::env::var_os("ENMASSE_TEST_NOTEBOOK").filter(|python| !python.is_empty());
    if python.is_none() {
        skip(Need::Notebook, "ENMASSE_TEST_NOTEBOOK names no Python");
    }
    python.map(PathBuf::from)
}

/// The folder of pretrained weights that `ENMASSE_TEST_WEIGHTS` names, as `.ci/weights` makes it. If there is none, the test
/// is in the table.
pub fn weights() -> Option<PathBuf> {
    let folder = std::env::var_os("ENMASSE_TEST_WEIGHTS").filter(|folder| !folder.is_empty());
    if folder.is_none() {
        skip(Need::Weights, "ENMASSE_TEST_WEIGHTS names no folder");
    }
    folder.map(PathBuf::from)
}
