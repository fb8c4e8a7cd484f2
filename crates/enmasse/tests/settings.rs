//! Sources of settings: help, files, the environment, flags, and their precedence.

mod common;

use std::fs;
use std::path::Path;

use common::{Ended, enmasse, finish, pictures, program};
use enmasse_train::SETTINGS;

#[test]
fn help_and_version() {
    let version = enmasse(&["--version"]).well();
    assert_eq!(version.stdout, format!("enmasse {}\n", env!("CARGO_PKG_VERSION")));
    let help = enmasse(&["--help"]).well().stdout;
    for command in ["train", "eval", "predict", "plan", "bench", "launch"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
        enmasse(&[command, "--help"]).well();
    }
    let train = enmasse(&["train", "--help"]).well().stdout;
    for setting in SETTINGS.iter().filter(|setting| setting.name != "data") {
        assert!(train.contains(&setting.flag()) && train.contains(setting.help), "{}: {train}", setting.name);
    }
    assert!(train.contains("cosine, cosine-annealing, step, constant"), "{train}");

    let check = |arguments: &[&str], mention: &str| {
        let ended = enmasse(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.stderr.contains(mention), "{}", ended.stderr);
    };
    check(&[], "Usage: enmasse");
    check(&["plan"], "Usage: enmasse plan");
    check(&["trian"], "did you mean train?");
    check(&["bench", "step", "--steps", "0"], "--steps");
    check(&["launch", "-n", "2"], "<PROGRAM>");
}

#[test]
fn later_sources_take_precedence() {
    let folder = tempfile::tempdir().unwrap();
    let data = pictures(folder.path(), 5).display().to_string();
    let file = folder.path().join("x.toml");
    let text =
        "model = \"mlp\"\nsize = 8\nbatch = 2\nepochs = 1\nlr = 0.01\nseed = 1\ndevices = \"cpu:1\"\nmomentum = 0.5\n";
    fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let go = |run: &Path, arguments: &[&str]| -> Ended {
        let run = run.display().to_string();
        let fixed = ["train", &data, "--out", &run, "--config", &file];
        let mut command = program();
        finish(command.args(fixed).args(arguments).env("ENMASSE_LR", "0.02").env("ENMASSE_SEED", "2"))
    };
    let run = folder.path().join("run");
    go(&run, &["--seed", "3"]).well();
    let saved = |line: &str| {
        let text = fs::read_to_string(run.join("config.toml")).unwrap();
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    };
    // A default, a value from the file, one from the environment over the file, one from the command line over both.
    ["weight_decay = 0.0005", "momentum = 0.5", "lr = 0.02", "seed = 3"].into_iter().for_each(saved);

    // A resumed run keeps its settings unless they are overridden.
    let resumed = enmasse(&["train", "--out", &run.display().to_string(), "--resume", "--epochs", "2"]).well();
    assert!(resumed.stdout.contains("epoch 2/2") && !resumed.stdout.contains("epoch 1/2"), "{}", resumed.stdout);
    ["lr = 0.02", "seed = 3", "momentum = 0.5", "epochs = 2"].into_iter().for_each(saved);

    fs::write(&file, "bach = 2\n").unwrap();
    let ended = go(&folder.path().join("other"), &[]);
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{ended:?}");
    assert!(["bach", &file, "batch"].iter().all(|part| ended.stderr.contains(part)), "{}", ended.stderr);
    let mut unknown = program();
    let ended = finish(unknown.args(["train", &data]).env("ENMASSE_EPOCH", "1"));
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("ENMASSE_EPOCH in the environment: did you mean ENMASSE_EPOCHS?"),
        "{}",
        ended.stderr
    );
}
