//! Slurm's own commands, run to their end or to a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::failure::{Failure, failed};
use crate::ranks::requeue::ends;

/// The commands themselves give up on an unresponsive controller after some ten seconds and a few attempts.
const DEADLINE: Duration = Duration::from_secs(100);
/// Limit of a command's output, in bytes; a large cluster's queue is a tenth of it.
const MAX_OUTPUT: u64 = 64 << 20;

/// Printed, among other lines, if a command reaches no controller: its input is not at fault.
const UNREACHED: [&str; 2] = ["Unable to contact slurm controller", "Could not establish a configuration source"];

/// The output of a command.
pub struct Said {
    pub success: bool,
    pub stdout: String,
    /// The first line of its errors.
    pub problem: String,
}

/// Runs one of Slurm's commands with this text as its input.
pub fn slurm(program: &str, arguments: &[&str], input: &str) -> Result<Said, Failure> {
    let fail = |why: String| failed!("{program}: {why}");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => fail("not found; run this on a login node of a Slurm cluster".to_owned()),
        _ => fail(error.to_string()),
    })?;
    let deadline = Instant::now() + DEADLINE;
    let (stdout, stderr) = match streams(&mut child, input) {
        Ok(streams) => streams,
        Err(error) => {
            end(&mut child);
            return Err(fail(format!("{error}: check the limits on processes and open files (ulimit -a)")));
        }
    };
    let said = |stream: Receiver<String>| stream.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
    let answer = said(stdout).zip(said(stderr)).filter(|_| ends(&child, deadline).unwrap_or(false));
    let Some((stdout, stderr)) = answer else {
        end(&mut child);
        return Err(fail(format!("has not answered within {} s; is the controller up?", DEADLINE.as_secs())));
    };
    let status = child.wait().map_err(|error| fail(error.to_string()))?;
    let unreached = stderr.lines().find(|line| UNREACHED.iter().any(|words| line.contains(words)));
    if let Some(line) = unreached.filter(|_| !status.success()) {
        let why = without_name(line, program);
        return Err(fail(format!("{why}: run this on a login node of the cluster, and check that slurmctld is up")));
    }
    let problem = stderr.lines().map(|line| without_name(line, program)).find(|line| !line.is_empty());
    let problem = problem.unwrap_or("no reason was given").to_owned();
    Ok(Said { success: status.success(), stdout, problem })
}

/// A line of errors without its prefix `NAME: error:`.
fn without_name<'a>(line: &'a str, program: &str) -> &'a str {
    let line = line.trim();
    let rest = line.strip_prefix(program).and_then(|rest| rest.strip_prefix(':')).unwrap_or(line).trim_start();
    ["error:", "fatal:"].iter().find_map(|kind| rest.strip_prefix(kind)).unwrap_or(rest).trim_start()
}

/// The command's whole output, given the input.
fn streams(child: &mut Child, input: &str) -> io::Result<(Receiver<String>, Receiver<String>)> {
    if let Some(mut stdin) = child.stdin.take() {
        let input = input.to_owned();
        Builder::new().spawn(move || {
            // A command that does not read all of it has reported why.
            let _ = stdin.write_all(input.as_bytes());
        })?;
    }
    Ok((reader(child.stdout.take())?, reader(child.stderr.take())?))
}

/// Everything read from a stream, once it has ended.
fn reader(stream: Option<impl Read + Send + 'static>) -> io::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            // Data read before an error counts.
            let _ = stream.take(MAX_OUTPUT).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    })?;
    Ok(receiver)
}

fn end(child: &mut Child) {
    // It may have ended in the meantime. Not waited for: it may hang in the kernel, and this process ends soon.
    let _ = child.kill();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_before_errors() {
        let check = |line: &str, expected: &str| assert_eq!(without_name(line, "sbatch"), expected);
        check(
            "sbatch: error: Batch job submission failed: Invalid partition",
            "Batch job submission failed: Invalid partition",
        );
        check(" sbatch: fatal: no source\n", "no source");
        check("slurm_load_jobs error: Invalid job id", "slurm_load_jobs error: Invalid job id");
        check("", "");
    }
}
