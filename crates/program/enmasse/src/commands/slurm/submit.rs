//! `enmasse slurm submit`: passes a script to sbatch.

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use enmasse_slurm::{JobId, Script, SlurmJob, check, run_folder, submitted};
use serde_json::json;

use super::tools::slurm;
use super::{mistakes, script};
use crate::failure::{Failure, failed};
use crate::output::{Output, warn};

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.get_one::<PathBuf>("file") {
        Some(path) => submit_file(path, matches),
        None => submit_written(matches),
    }
}

fn submit_file(path: &Path, matches: &ArgMatches) -> Result<(), Failure> {
    let text = mistakes::read(path)?;
    let file = path.display().to_string();
    for finding in check(&text) {
        warn(format_args!("{file}:{}: {}; mend: {}", finding.line, finding.problem, finding.mend));
    }
    let mut output = Output::new(matches.get_flag("json"));
    if matches.get_flag("dry-run") {
        output.json(json!({"event": "dry_run", "command": ["sbatch", "--parsable", &file], "script": text}));
        output.text(format_args!("would run: sbatch --parsable {file}"));
        return output.finish();
    }
    let (id, cluster) = sbatch(&["--parsable", &file], "")?;
    output.json(json!({"event": "submitted", "job": id, "cluster": cluster}));
    tell(&mut output, id, &[]);
    output.finish()
}

fn submit_written(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(script) = script::script(matches)? else { return Ok(()) };
    let text = script.text().map_err(Failure::usage)?;
    let mut output = Output::new(matches.get_flag("json"));
    if matches.get_flag("dry-run") {
        output.json(json!({"event": "dry_run", "command": ["sbatch", "--parsable"], "script": text}));
        output.text("# would be passed to: sbatch --parsable");
        output.block(text.trim_end());
        return output.finish();
    }
    let files = [Some(script.output_file()), script.error.clone()];
    files.iter().flatten().try_for_each(|file| make_folder_of(file))?;
    let (id, cluster) = sbatch(&["--parsable"], &text)?;
    let elements = script.sweep.elements().len();
    let job = SlurmJob { id, array: (elements > 0).then(|| (id, "0".to_owned())), ..SlurmJob::default() };
    // For an array: the folder of all its runs.
    let run = run_folder(&text, &job).map(|run| match elements {
        0 => run,
        _ => run.rsplit_once('/').map_or(run.clone(), |(folder, _)| folder.to_owned()),
    });
    let says = output_of(&script, id);
    output.json(json!({
        "event": "submitted", "job": id, "cluster": cluster, "elements": elements.max(1), "output": says, "run": run,
    }));
    tell(&mut output, id, &[("output", Some(&says)), ("run", run.as_ref())]);
    output.finish()
}

/// Slurm silently ends a job whose output has no folder.
fn make_folder_of(file: &str) -> Result<(), Failure> {
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    if folder.is_empty() || folder.contains('%') {
        return Ok(());
    }
    std::fs::create_dir_all(folder).map_err(|error| failed!("cannot create {folder}: {error}"))
}

fn sbatch(arguments: &[&str], input: &str) -> Result<(JobId, Option<String>), Failure> {
    let said = slurm("sbatch", arguments, input)?;
    match submitted(&said.stdout).filter(|_| said.success) {
        Some(job) => Ok(job),
        None => Err(failed!("sbatch refuses the script: {}", said.problem)),
    }
}

/// The path of the job's output, as far as it is known now.
fn output_of(script: &Script, id: JobId) -> String {
    let id = id.to_string();
    let element = if script.sweep.is_empty() { "4294967294" } else { "*" };
    script.output_file().replace("%x", &script.job_name).replace("%j", &id).replace("%A", &id).replace("%a", element)
}

fn tell(output: &mut Output, id: JobId, facts: &[(&str, Option<&String>)]) {
    output.text(format_args!("job {id} is submitted"));
    for (name, value) in facts {
        if let Some(value) = value {
            output.text(format_args!("{:<8}{value}", format!("{name}:")));
        }
    }
    output.text(format_args!("status: enmasse slurm status {id}"));
}
