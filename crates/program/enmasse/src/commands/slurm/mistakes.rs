//! `enmasse slurm check`: the usual mistakes in a batch script.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use enmasse_slurm::{MAX_SCRIPT_BYTES, check};
use enmasse_wording::counted;
use serde_json::json;

use crate::failure::{Failure, failed};
use crate::output::Output;

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(path) = matches.get_one::<PathBuf>("file") else { return Ok(()) };
    let findings = check(&read(path)?);
    let mut output = Output::new(matches.get_flag("json"));
    let file = path.display();
    for finding in &findings {
        let (line, problem, mend) = (finding.line, &finding.problem, &finding.mend);
        output.json(
            json!({"event": "finding", "file": file.to_string(), "line": line, "problem": problem, "mend": mend}),
        );
        output.text(format_args!("{file}:{line}: {problem}"));
        output.text(format_args!("    mend: {mend}"));
    }
    output.json(json!({"event": "done", "file": file.to_string(), "findings": findings.len()}));
    output.text(match findings.len() {
        0 => format!("{file}: nothing found"),
        count => format!("{file}: {}", counted(count, "finding")),
    });
    output.finish()?;
    Failure::told(u8::from(!findings.is_empty()))
}

/// The text of a script, up to the size limit.
pub fn read(path: &Path) -> Result<String, Failure> {
    let refuse = |why: String| failed!("{}: {why}", path.display());
    let file = File::open(path).map_err(|error| refuse(format!("cannot be read: {error}")))?;
    let mut bytes = Vec::new();
    let limit = MAX_SCRIPT_BYTES as u64;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| refuse(format!("cannot be read: {error}")))?;
    if bytes.len() > MAX_SCRIPT_BYTES {
        return Err(refuse(format!("is longer than {MAX_SCRIPT_BYTES} bytes, too long for a batch script")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
