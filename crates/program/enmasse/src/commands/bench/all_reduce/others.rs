//! The sums and barriers of other programs beside ours: those of the MPI libraries whose mpirun is there, and of PyTorch's Gloo.

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use enmasse_comm::{MpiFamily, MpiSums};
use enmasse_system::files::write_whole;
use serde::Deserialize;

use super::row::{self, Row, time, time_sum};
use crate::failure::Failure;
use crate::ranks::requeue::ends;

/// How long another program may take for all sizes: far longer than it needs.
const DEADLINE: Duration = Duration::from_secs(300);
/// Seconds for the calls of one size by Gloo, as for ours.
const BUDGET: &str = "0.5";
const GLOO: &str = include_str!("gloo.py");

/// An MPI library, the word by which a rank is told of it, and what starts its ranks, the best first.
pub struct Launcher {
    pub family: MpiFamily,
    pub word: &'static str,
    programs: &'static [&'static str],
    flags: &'static [&'static str],
}

pub const LAUNCHERS: [Launcher; 2] = [
    Launcher {
        family: MpiFamily::OpenMpi,
        word: "open-mpi",
        programs: &["mpirun.openmpi", "mpirun"],
        flags: &["--oversubscribe"],
    },
    Launcher { family: MpiFamily::Mpich, word: "mpich", programs: &["mpiexec.hydra", "mpiexec.mpich"], flags: &[] },
];

impl Launcher {
    /// The rows of its library, by ranks of this program with these arguments, which leave them in `output`; otherwise why there
    /// are none.
    pub fn rows(&self, ranks: usize, arguments: &[OsString], output: &Path) -> Result<Vec<Row>, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program's own file: {error}"))?;
        for launcher in self.programs {
            let mut command = Command::new(launcher);
            command.args(self.flags).arg("-n").arg(ranks.to_string()).arg(&program).args(arguments);
            // Open MPI refuses the superuser otherwise, which may be all there is in a container.
            command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
            match finish(command, output) {
                Err(None) => {}
                Err(Some(why)) => return Err(why),
                Ok(text) => return row::read(&text).map_err(|error| error.to_string()),
            }
        }
        Err(format!("there is no {}", self.programs.join(" or ")))
    }
}

/// One rank of an MPI job. The first one leaves the rows.
pub fn join(family: MpiFamily, sizes: &[usize], output: &Path) -> Result<(), Failure> {
    let mpi = MpiSums::start(family).map_err(Failure::error)?;
    // The first rank's number of calls, as a sum to which the others add nothing.
    let agree = |calls: i64| {
        let mut calls = [if mpi.rank() == 0 { calls as f32 } else { 0.0 }];
        mpi.all_reduce(&mut calls).map(|()| calls[0] as i64)
    };
    let mut rows = vec![];
    for &bytes in sizes {
        let sum = |data: &mut [f32]| mpi.all_reduce(data);
        let times = time_sum((mpi.rank(), mpi.ranks()), bytes, sum, agree, std::io::Error::other);
        rows.push(Row::new("mpi", mpi.library(), mpi.ranks(), bytes, times.map_err(Failure::error)?));
    }
    let times = time(|| mpi.barrier(), agree).map_err(Failure::error)?;
    rows.push(Row::barrier("mpi", mpi.library(), mpi.ranks(), times));
    if mpi.rank() == 0 {
        let text = row::lines(&rows)?;
        write_whole(output, |file| file.write_all(text.as_bytes())).map_err(Failure::error)?;
    }
    Ok(())
}

/// The calls of one size by Gloo, or those of its barrier.
#[derive(Deserialize)]
struct Calls {
    version: String,
    bytes: Option<usize>,
    times: Vec<f64>,
}

/// The rows of Gloo, by a Python that has PyTorch; otherwise why there are none.
pub fn gloo(python: &Path, ranks: usize, sizes: &str, output: &Path) -> Result<Vec<Row>, String> {
    let mut command = Command::new(python);
    command.args(["-c", GLOO, &ranks.to_string(), sizes, BUDGET, "0", "0"]).arg(output);
    let text = finish(command, output).map_err(|why| why.unwrap_or(format!("there is no {}", python.display())))?;
    let row = |line: &str| {
        let Calls { version, bytes, times } = serde_json::from_str(line).map_err(|error| error.to_string())?;
        // Without the GPUs that a build is for.
        let version = version.split('+').next().unwrap_or_default();
        let program = format!("PyTorch {version}");
        Ok(match bytes {
            Some(bytes) => Row::new("gloo", &program, ranks, bytes, times),
            None => Row::barrier("gloo", &program, ranks, times),
        })
    };
    text.lines().map(row).collect()
}

/// What a program leaves in `output`; `Err(None)` if there is no such program.
fn finish(mut command: Command, output: &Path) -> Result<String, Option<String>> {
    let said = output.with_extension("said");
    let failed = |error: std::io::Error| Some(error.to_string());
    let stderr = fs::File::create(&said).map_err(failed)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let mut child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(None),
        spawned => spawned.map_err(failed)?,
    };
    if !ends(&child, Instant::now() + DEADLINE).map_err(failed)? {
        // A launcher that is told to end ends its ranks.
        let _ = child.kill();
        return Err(Some(format!("it has not ended within {} s", DEADLINE.as_secs())));
    }
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        let said = String::from_utf8_lossy(&fs::read(&said).unwrap_or_default()).into_owned();
        let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned();
        return Err(Some(format!("{status}: {}", enmasse_wording::one_line(&line))));
    }
    let text = fs::read_to_string(output).map_err(failed)?;
    let _ = fs::remove_file(output);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_are_not_there_or_fail() {
        let output = std::env::temp_dir().join(format!("enmasse-others-{}.json", std::process::id()));
        let missing = gloo(Path::new("/nowhere/python"), 2, "4", &output);
        assert_eq!(missing, Err("there is no /nowhere/python".to_owned()));
        let mut command = Command::new("sh");
        command.args(["-c", "echo one >&2; echo the last word >&2; exit 3"]);
        assert_eq!(finish(command, &output), Err(Some("exit status: 3: the last word".to_owned())));
        let _ = fs::remove_file(output.with_extension("said"));
    }
}
