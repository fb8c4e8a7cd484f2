//! The shell runs the scripts as intended: every argument arrives unchanged, and each element gets its own flags.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use enmasse_slurm::{Axis, RunName, Script, SlurmJob, Sweep, check, run_folder};
use proptest::prelude::*;

/// Runs a script with an `srun` that prints its arguments, one per line.
fn run(script: &str, variables: &[(&str, &str)]) -> Result<Vec<String>, i32> {
    let folder = tempfile::tempdir().unwrap();
    let (srun, path) = (folder.path().join("srun"), folder.path().join("script"));
    std::fs::write(&srun, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n").unwrap();
    std::fs::set_permissions(&srun, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(&path, script).unwrap();
    let search = format!("{}:/usr/bin:/bin", folder.path().display());
    let output = Command::new("bash")
        .arg(&path)
        .env_clear()
        .env("PATH", search)
        .env("SLURM_CPUS_PER_TASK", "3")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    match output.status.code() {
        Some(0) => Ok(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()),
        code => Err(code.unwrap_or(-1)),
    }
}

#[test]
fn arrays_choose_their_element() {
    if !Path::new("/bin/bash").exists() {
        return println!("skipped: there is no /bin/bash");
    }
    let axes = ["lr=0.1,0.01", "model=a b,c;d"].map(|axis| Axis::parse(axis).unwrap());
    let script = Script {
        sweep: Sweep::new(axes.into()).unwrap(),
        arguments: vec!["--epochs".into(), "3".into()],
        ..Script::new("my sweep", ["enmasse", "train"])
    };
    let text = script.text().unwrap();
    let ended = |index: &str| {
        run(&text, &[("SLURM_ARRAY_TASK_ID", index), ("SLURM_ARRAY_JOB_ID", "70"), ("SLURM_JOB_ID", "72")])
    };
    let srun = ["--kill-on-bad-exit=1", "--cpus-per-task=3", "enmasse", "train"];
    let first = ["--out=runs/my sweep-70/0-lr=0.1-model=a_b", "--lr=0.1", "--model=a b", "--epochs", "3"];
    let last = ["--out=runs/my sweep-70/3-lr=0.01-model=c_d", "--lr=0.01", "--model=c;d", "--epochs", "3"];
    assert_eq!(ended("0").unwrap(), [&srun[..], &first].concat());
    assert_eq!(ended("3").unwrap(), [&srun[..], &last].concat());
    assert_eq!(ended("4"), Err(2));
    let folder = |element: &str| {
        run_folder(&text, &SlurmJob { id: 72, array: Some((70, element.into())), ..SlurmJob::default() })
    };
    assert_eq!(folder("3").as_deref(), Some("runs/my sweep-70/3-lr=0.01-model=c_d"));
    assert_eq!(folder("0-3%2"), None);
    assert_eq!(folder("4"), None);
    assert_eq!(run_folder("#!/bin/bash\nsrun python train.py\n", &SlurmJob { id: 1, ..SlurmJob::default() }), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_script_is_right(
        job_name in "[ !#%&(-\\[\\]-~]{1,20}",
        nodes in 1usize..4,
        ntasks_per_node in 1usize..4,
        folder in proptest::option::of("[ -~é]{1,20}"),
        arguments in prop::collection::vec("[ -~é]{0,40}", 0..6),
        gpus in any::<bool>(),
    ) {
        let gres = gpus.then(|| format!("gpu:{ntasks_per_node}"));
        let run_name = folder.clone().map_or(RunName::PerJob(format!("runs/{job_name}")), RunName::Fixed);
        let script = Script {
            nodes, ntasks_per_node, gres, run: run_name, arguments: arguments.clone(),
            ..Script::new(&*job_name, ["enmasse", "train"])
        };
        let text = script.text().unwrap();
        let folder = folder.unwrap_or(format!("runs/{job_name}-7"));
        prop_assert_eq!(check(&text), []);
        prop_assert_eq!(run_folder(&text, &SlurmJob { id: 7, ..SlurmJob::default() }), Some(folder.clone()));
        if Path::new("/bin/bash").exists() {
            let mut expected = vec!["--kill-on-bad-exit=1".to_owned(), "--cpus-per-task=3".into(), "enmasse".into()];
            expected.extend(["train".into(), format!("--out={folder}")]);
            expected.extend(arguments);
            prop_assert_eq!(run(&text, &[("SLURM_JOB_ID", "7")]), Ok(expected));
        }
    }
}
