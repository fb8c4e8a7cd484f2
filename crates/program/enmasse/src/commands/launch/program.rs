//! The program to start: as given, or a Python script or module under the active Python.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use enmasse_launch::Job;
use rustix::fs::{Access, access};

use super::flags::GivenFlags;
use crate::failure::{Failure, usage};

/// Adds program and arguments to a job of `ranks`. Unless `use_env`, every rank gets `--local-rank=N` as its script's first
/// argument.
pub fn job(given: &GivenFlags<'_>, ranks: usize, use_env: bool) -> Result<Job, Failure> {
    let mut words = given.matches.get_many::<OsString>("program").into_iter().flatten().cloned();
    let program = words.next().unwrap_or_default();
    if program.as_encoded_bytes().starts_with(b"-") {
        // No program has such a name: it is an unknown flag.
        return Err(usage!("unexpected argument '{}' found; see --help", program.display()));
    }
    let module = given.is_on("module")?;
    let no_python = given.is_on("no-python")?;
    let run_path = given.is_on("run-path")?;
    let ways = [("--module", module), ("--no-python", no_python), ("--run-path", run_path)];
    let mut asked = ways.iter().filter(|(_, is_on)| *is_on).map(|(flag, _)| flag);
    if let (Some(one), Some(other)) = (asked.next(), asked.next()) {
        return Err(usage!("{one} and {other} contradict each other; leave one of them out"));
    }
    let script = run_path || (!no_python && Path::new(&program).extension() == Some(OsStr::new("py")));
    if let (false, false, Some(command)) = (module, script, own_command(&program, given.environment)) {
        let line = format!("enmasse launch … enmasse {command} …");
        return Err(usage!("there is no program {command}; it is a command of enmasse: {line}"));
    }
    let mut words: Vec<OsString> = words.collect();
    let job = match (module, script) {
        (false, false) => {
            let script = words.drain(..words_before_arguments(&program, &words)).collect::<Vec<_>>();
            Job::new(program, ranks).args(script)
        }
        (module, _) => {
            // Unbuffered, as under torchrun: a rank's output appears at once.
            let job = Job::new(python(given.environment)?, ranks).args(["-u"]);
            if module { job.args(["-m".into(), program]) } else { job.args([program]) }
        }
    };
    Ok(if use_env { job } else { job.local_rank_argument() }.args(words))
}

/// How many words after a program belong to it rather than to the script's arguments: of a Python its own options and the
/// script, of enmasse the command.
fn words_before_arguments(program: &OsStr, words: &[OsString]) -> usize {
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    if name == "enmasse" {
        return usize::from(words.first().is_some_and(|word| !word.as_encoded_bytes().starts_with(b"-")));
    }
    if !name.starts_with("python") {
        return 0;
    }
    let mut at = 0;
    while let Some(word) = words.get(at) {
        match word.to_str() {
            // A module or a text instead of a script.
            Some("-m" | "-c") => return (at + 2).min(words.len()),
            Some("-W" | "-X" | "--check-hash-based-pycs") => at += 2,
            Some(option) if option.starts_with('-') && option != "-" => at += 1,
            _ => return at + 1,
        }
    }
    words.len()
}

/// A command of enmasse in place of a program: `enmasse launch train`.
fn own_command(program: &OsStr, environment: &dyn Fn(&str) -> Option<OsString>) -> Option<&'static str> {
    let command = ["train", "eval"].into_iter().find(|command| program == *command)?;
    find_on_path(command, environment).is_none().then_some(command)
}

/// The Python that a user would get by typing `python`.
fn python(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<OsString, Failure> {
    if let Some(python) = environment("PYTHON_EXEC").filter(|python| !python.is_empty()) {
        return Ok(python);
    }
    let active = environment("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join("bin"));
    let find = |name: &str| {
        let own = active.as_ref().map(|folder| folder.join(name)).filter(|path| is_executable(path));
        own.or_else(|| find_on_path(name, environment))
    };
    let python = find("python").or_else(|| find("python3")).map(PathBuf::into_os_string);
    python.ok_or_else(|| usage!("no python is on the PATH: activate an environment, or set PYTHON_EXEC"))
}

fn find_on_path(name: &str, environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = environment("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::super::flags::command;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// The command of rank 1 of 2, as words.
    fn run(line: &str, use_env: bool, variables: &[(&str, &OsStr)]) -> Result<Vec<String>, String> {
        let words = std::iter::once("launch").chain(line.split_whitespace());
        let matches = command("launch").try_get_matches_from(words).map_err(|error| error.to_string())?;
        let environment = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let given = GivenFlags { matches: &matches, environment: &environment };
        let job = job(&given, 2, use_env).map_err(|failure| failure.message().to_owned())?;
        let rank = enmasse_launch::plan(&job).unwrap().1.remove(1);
        let words = std::iter::once(&rank.program).chain(&rank.arguments);
        Ok(words.map(|word| word.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn programs() {
        let python = [("PYTHON_EXEC", OsStr::new("py"))];
        let check = |line: &str, use_env: bool, expected: &str| {
            let found = run(line, use_env, &python).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(found.join(" "), expected, "{line}");
        };
        check("-n 2 sh -c true -n", true, "sh -c true -n");
        check("-n 2 -- sh -c true -n", true, "sh -c true -n");
        check("--nnodes 1 python3 --nnodes 2", true, "python3 --nnodes 2");
        check("train.py --lr 1", true, "py -u train.py --lr 1");
        check("a/train.py", true, "py -u a/train.py");
        check("--no-python ./train.py", true, "./train.py");
        check("-m package.train --lr 1", true, "py -u -m package.train --lr 1");
        check("--run-path script", true, "py -u script");
        check("script", true, "script");
        // Like torch.distributed.launch: after the program, before its arguments.
        check("train.py --lr 1", false, "py -u train.py --local-rank=1 --lr 1");
        check("-m train", true, "py -u -m train");
        check("-m package.train", false, "py -u -m package.train --local-rank=1");
        check("prog -x", false, "prog --local-rank=1 -x");
        // Regression test: it stood before the script, as an option of Python, and before enmasse's command.
        check("python3 train.py --lr 1", false, "python3 train.py --local-rank=1 --lr 1");
        check("/a/python3.12 -u -W error train.py -x", false, "/a/python3.12 -u -W error train.py --local-rank=1 -x");
        check("python -m package.train -x", false, "python -m package.train --local-rank=1 -x");
        check("python -u", false, "python -u --local-rank=1");
        check("python -W", false, "python -W --local-rank=1");
        check("./enmasse train photos --lr 1", false, "./enmasse train --local-rank=1 photos --lr 1");
        check("enmasse --version", false, "enmasse --local-rank=1 --version");
        check("enmasse", false, "enmasse --local-rank=1");
        check("enmasse train photos", true, "enmasse train photos");
    }

    #[test]
    fn refusals() {
        let check = |line: &str, expected: &str| assert_eq!(run(line, true, &[]).unwrap_err(), expected, "{line}");
        check("--nodes 2 sh", "unexpected argument '--nodes' found; see --help");
        check("-x", "unexpected argument '-x' found; see --help");
        let train = "there is no program train; it is a command of enmasse: enmasse launch … enmasse train …";
        check("-n 2 train --epochs 1", train);
        check("-m --no-python a", "--module and --no-python contradict each other; leave one of them out");
        check("train.py", "no python is on the PATH: activate an environment, or set PYTHON_EXEC");
    }

    #[test]
    fn the_active_python() {
        let folder = tempfile::tempdir().unwrap();
        let make = |path: &str, mode: u32| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.into_os_string()
        };
        let (ours, theirs) = (make("venv/bin/python", 0o755), make("a/python3", 0o755));
        make("b/python", 0o644);
        let venv = folder.path().join("venv");
        let a = folder.path().join("a");
        let b = folder.path().join("b");
        let path = std::env::join_paths([&b, &a]).unwrap();
        let find = |variables: &[(&str, &OsStr)]| {
            let environment =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            python(&environment).ok()
        };
        assert_eq!(find(&[("PATH", &path)]), Some(theirs));
        assert_eq!(find(&[("PATH", &path), ("VIRTUAL_ENV", venv.as_os_str())]), Some(ours));
        assert_eq!(find(&[("PATH", b.as_os_str())]), None);
        assert_eq!(find(&[("PATH", &path), ("PYTHON_EXEC", OsStr::new("own"))]), Some("own".into()));
    }
}
