//! The text of scripts, compared with records next to this file.
//!
//! After an intended change, `ENMASSE_WRITE_GOLDEN=1 cargo test -p enmasse-slurm` writes the records again; review the
//! difference before committing it.

use std::path::Path;

use enmasse_slurm::{Axis, Container, ContainerRuntime, RunName, Script, Sweep, check};

#[track_caller]
fn golden(name: &str, script: &Script) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = script.text().unwrap();
    if std::env::var_os("ENMASSE_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text, expected, "differs from {}", path.display());
    assert_eq!(check(&text), [], "{name}");
}

/// A realistic request on a GPU cluster.
fn everything() -> Script {
    Script {
        partition: Some("gpu".into()),
        account: Some("vision".into()),
        qos: Some("high".into()),
        nodes: 8,
        ntasks_per_node: 4,
        cpus_per_task: 12,
        gres: Some("gpu:4".into()),
        memory: Some("240G".into()),
        time: Some("1-12:00:00".parse().unwrap()),
        output: Some("logs/%x-%j.out".into()),
        error: Some("logs/%x-%j.err".into()),
        mail_type: Some("END,FAIL".into()),
        mail_user: Some("somebody@example.org".into()),
        signal: Some("USR1@120".parse().unwrap()),
        extra: vec!["--constraint=h100&ib".into(), "--exclusive".into()],
        modules: vec!["gcc/12".into(), "cuda/12.4".into()],
        run: RunName::Fixed("/scratch/my runs/imagenet".into()),
        arguments: ["/data/imagenet", "--model", "resnet50", "--epochs", "90", "--lr", "0.1", "--schedule", "cosine"]
            .map(str::to_owned)
            .into(),
        ..Script::new("imagenet", ["enmasse", "train"])
    }
}

#[test]
fn least() {
    golden("least.sbatch", &Script::new("shapes", ["enmasse", "train"]));
}

#[test]
fn all_options() {
    golden("all_options.sbatch", &everything());
}

#[test]
fn array_of_hyper_parameters() {
    let axes = ["lr=0.1,0.01", "batch=64,128"].map(|axis| Axis::parse(axis).unwrap());
    let script = Script {
        sweep: Sweep::new(axes.into()).unwrap(),
        array_limit: Some(2),
        cpus_per_task: 4,
        time: Some("30".parse().unwrap()),
        signal: Some("USR1@90".parse().unwrap()),
        arguments: ["--epochs", "5", "--", "my photos"].map(str::to_owned).into(),
        ..Script::new("sweep", ["enmasse", "train"])
    };
    golden("array.sbatch", &script);
}

#[test]
fn containers() {
    let with = |runtime, image: &str, mounts: &[&str]| Script {
        container: Some(Container {
            image: image.into(),
            runtime,
            mounts: mounts.iter().map(|&mount| mount.into()).collect(),
        }),
        gres: Some("gpu:2".into()),
        ntasks_per_node: 2,
        arguments: vec!["/data/flowers".into()],
        ..Script::new("flowers", ["enmasse", "train"])
    };
    golden("apptainer.sbatch", &with(ContainerRuntime::Apptainer, "enmasse.sif", &["/data:/data", "/my scratch"]));
    golden("pyxis.sbatch", &with(ContainerRuntime::Pyxis, "registry#enmasse:1", &["/data:/data"]));
}

#[test]
fn no_second_start() {
    let script = Script {
        requeue: false,
        kill_on_bad_exit: false,
        signal: Some("TERM@60".parse().unwrap()),
        nodes: 2,
        ..Script::new("once", ["enmasse", "train"])
    };
    let text = script.text().unwrap();
    for line in ["#SBATCH --no-requeue\n", "#SBATCH --signal=TERM@60\n", "srun --kill-on-bad-exit=0 "] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn refused() {
    let check = |change: fn(&mut Script), expected: &str| {
        let mut script = everything();
        change(&mut script);
        assert_eq!(script.text().map_err(|error| error.to_string()), Err(expected.to_owned()));
    };
    let what = "quotes, backslashes, dollar signs and control characters mean nothing to Slurm; leave them out";
    check(|script| script.job_name = "a\nb".into(), &format!("--job-name \"a\\nb\": {what}"));
    check(|script| script.gres = Some("gpu:\"4".into()), &format!("--gres \"gpu:\\\"4\": {what}"));
    check(
        |script| script.partition = Some(String::new()),
        "--partition is empty; give a value, or leave the option out",
    );
    check(
        |script| script.memory = Some("lots".into()),
        "--mem lots: must be a number with K, M, G or T, for instance 64G",
    );
    check(
        |script| script.time = "2".parse().ok(),
        "--signal USR1@120 with --time 2: the signal would come at once; ask for more time, or for fewer seconds",
    );
    check(
        |script| script.arguments.push("a\nb".into()),
        "the argument \"a\\nb\" has a control character; leave it out",
    );
    check(|script| script.modules.push("a\rb".into()), "the argument \"a\\rb\" has a control character; leave it out");
    let extra = "must be one long option of sbatch, --NAME or --NAME=VALUE";
    check(|script| script.extra = vec!["-C h100".into()], &format!("--sbatch -C h100: {extra}"));
    check(|script| script.extra = vec!["--a b".into()], &format!("--sbatch --a b: {extra}"));
    check(|script| script.extra = vec!["--nodes=3".into()], "--sbatch --nodes=3: has a flag of its own; use that");
}
