//! What was typed for a run: settings with the source of each, and the place that a launcher gave this process.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches};
use enmasse_launch::process_variable;
use enmasse_train::{LayeredConfig, RUNS, RunPaths, SettingOrigins, SettingSource};

use crate::command_line::arguments::{ORIGINS, option, path};
use crate::command_line::launcher_flags::{self, LauncherFlags};
use crate::command_line::settings;
use crate::failure::{Failure, usage};
use crate::ranks::automatic;
use crate::ranks::launched::Launched;

/// The command line, the environment and the file of `--config`, read and checked.
pub struct Typed {
    pub layers: LayeredConfig,
    /// This process's place in a launched job.
    pub launched: Option<Launched>,
    /// Whether the process that started this rank has checked the flags, and copied the data.
    pub is_decided: bool,
    /// Where the settings come from, as that process says.
    pub origins: Option<SettingOrigins>,
}

impl Typed {
    pub fn read(matches: &ArgMatches) -> Result<Self, Failure> {
        let mut layers = settings::layers(matches)?;
        name_run(matches, &mut layers)?;
        name_resumed(&mut layers)?;
        let launched = LauncherFlags::of(matches).place(process_variable, automatic::exactly, &mut layers)?;
        let origins = matches.get_one::<String>(ORIGINS).map(|text| serde_json::from_str(text)).transpose();
        let origins = origins.map_err(|error| usage!("--{ORIGINS}: {error}"))?;
        Ok(Typed { layers, launched, is_decided: settings::is_decided(matches), origins })
    }
}

/// The flags by which YOLO's scripts name a run's folder in two parts.
pub fn run_names() -> [Arg; 2] {
    let flag = |name: &'static str, placeholder: &'static str, help: &'static str| {
        let arg = option(name, placeholder).value_parser(path).overrides_with(name);
        arg.help(help).help_heading(launcher_flags::HEADING)
    };
    [
        flag("project", "DIR", "The folder of --name [default: runs]"),
        flag("name", "NAME", "A name for the run: --project P --name N is --out P/N"),
    ]
}

/// Takes `--project` and `--name` as `--out`.
fn name_run(matches: &ArgMatches, layers: &mut LayeredConfig) -> Result<(), Failure> {
    let given = |name: &str| matches.get_one::<PathBuf>(name);
    let (project, name) = match (given("project"), given("name")) {
        (None, None) => return Ok(()),
        (Some(project), None) => {
            return Err(usage!(
                "--project {}: the run has no name there; give --name NAME too, or --out DIR alone",
                project.display()
            ));
        }
        (project, Some(name)) => (project.map_or(Path::new(RUNS), PathBuf::as_path), name),
    };
    if name.as_os_str().is_empty() {
        return Err(usage!("--name is empty; give a name for the run"));
    }
    if let (Some(out), Some(&SettingSource::CommandLine)) = (&layers.config().train.out, layers.source("out")) {
        let why = format!("--out {} names the run's folder; leave one of them out", out.display());
        return Err(usage!("--name {}: {why}", name.display()));
    }
    let out = project.join(name);
    let text = out.to_str().ok_or_else(|| usage!("--name {}: must be UTF-8 text", name.display()))?;
    Ok(layers.argument("out", text)?)
}

/// `--resume RUN` is `--resume` with RUN as the folder of the run, which must hold one.
fn name_resumed(layers: &mut LayeredConfig) -> Result<(), Failure> {
    let asked = layers.config();
    let Some(run) = asked.train.resume.run() else { return Ok(()) };
    let refuse = |why: String| Err(usage!("--resume {why}"));
    if let Some(out) = asked.train.out.as_deref().filter(|out| *out != run) {
        let (run, out) = (run.display(), out.display());
        return refuse(format!("{run}: the run goes on in its own folder; leave out --out {out}"));
    }
    if let Err(error) = RunPaths::new(run).check_resume(&asked.train.resume) {
        return refuse(error.to_string());
    }
    let run = run.display().to_string();
    layers.argument("out", &run)?;
    Ok(layers.argument("resume", "true")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_run_may_be_named_in_two_parts() {
        let named = |line: &str| {
            let matches =
                super::super::command().try_get_matches_from(std::iter::once("train").chain(line.split(' '))).unwrap();
            let mut layers = LayeredConfig::new();
            for (name, value) in crate::command_line::arguments::given(&matches) {
                layers.argument(name, &value).unwrap();
            }
            let named = name_run(&matches, &mut layers);
            named.map(|()| layers.config().train.out.clone()).map_err(|failure| failure.message().to_owned())
        };
        let check =
            |line: &str, expected: Option<&str>| assert_eq!(named(line), Ok(expected.map(PathBuf::from)), "{line}");
        check("--epochs 1", None);
        check("--name a", Some("runs/a"));
        check("--project p/q --name a", Some("p/q/a"));
        check("--project p --name a --name b", Some("p/b"));
        let alone = "--project p: the run has no name there; give --name NAME too, or --out DIR alone";
        assert_eq!(named("--project p").unwrap_err(), alone);
        let both = "--name a: --out o names the run's folder; leave one of them out";
        assert_eq!(named("--out o --project p --name a").unwrap_err(), both);
    }
}
