//! What is started: a program as it is, or a Python script or module under the active Python.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use enmasse_launch::Job;
use rustix::fs::{Access, access};

use super::flags::Given;
use crate::failure::Failure;

/// Adds program and arguments to a job of `ranks`. `use_env` unless every rank is to be given `--local-rank=N`.
pub fn job(given: &Given<'_>, ranks: usize, use_env: bool) -> Result<Job, Failure> {
    let mut words = given.matches.get_many::<OsString>("program").into_iter().flatten().cloned();
    let program = words.next().unwrap_or_default();
    if program.as_encoded_bytes().starts_with(b"-") {
        // No program is called so: it is a flag that is none of ours.
        return Err(Failure::Usage(format!("unexpected argument '{}' found; see --help", program.display())));
    }
    let (module, no_python, run_path) = (given.is_on("module")?, given.is_on("no-python")?, given.is_on("run-path")?);
    if module && no_python {
        return Err(Failure::Usage("--module and --no-python contradict each other; leave one of them out".to_owned()));
    }
    let script = run_path || (!no_python && Path::new(&program).extension() == Some(OsStr::new("py")));
    let job = match (module, script) {
        (false, false) => Job::new(program, ranks),
        (module, _) => {
            // Unbuffered, as under torchrun: what a rank prints is seen when it is printed.
            let job = Job::new(python(given.environment)?, ranks).args(["-u"]);
            if module { job.args(["-m".into(), program]) } else { job.args([program]) }
        }
    };
    Ok(if use_env { job } else { job.local_rank_argument() }.args(words))
}

/// The Python that a person would get by typing `python`.
fn python(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<OsString, Failure> {
    if let Some(python) = environment("PYTHON_EXEC").filter(|python| !python.is_empty()) {
        return Ok(python);
    }
    let folders = environment("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join("bin"));
    let path = environment("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = folders.into_iter().chain(std::env::split_paths(&path)).collect();
    let runs = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let find = |name: &str| folders.iter().map(|folder| folder.join(name)).find(runs);
    let python = find("python").or_else(|| find("python3")).map(PathBuf::into_os_string);
    let refusal = "no python is on the PATH: activate an environment, or name one by PYTHON_EXEC";
    python.ok_or_else(|| Failure::Usage(refusal.to_owned()))
}
