//! Sources of settings: help, files, the environment, flags, and their precedence.

use std::fs;
use std::path::Path;

use crate::common::{Ended, enmasse, finish, images, program};
use enmasse_train::{SETTINGS, Scope, Setting};

#[test]
fn help_and_version() {
    let version = enmasse(&["--version"]).well();
    for word in ["version", "-V"] {
        assert_eq!(enmasse(&[word]).well().stdout, version.stdout, "{word}");
    }
    assert_eq!(version.stdout, format!("enmasse {}\n", env!("CARGO_PKG_VERSION")));
    let help = enmasse(&["--help"]).well().stdout;
    for command in ["train", "eval", "predict", "data", "models", "weights", "plan", "bench", "launch"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
        enmasse(&[command, "--help"]).well();
    }
    let train = enmasse(&["train", "--help"]).well().stdout;
    assert_eq!(enmasse(&["help", "train"]).well().stdout, train);
    let words = train.split_whitespace().collect::<Vec<_>>().join(" ");
    for setting in SETTINGS.iter().filter(|setting| setting.name != "data") {
        if setting.scope == Scope::Found {
            assert!(!words.contains(&setting.flag()), "{}: {train}", setting.name);
            continue;
        }
        let parts = [&setting.flag(), setting.summary, setting.details, setting.default_words];
        assert!(parts.iter().all(|part| words.contains(*part)), "{}: {train}", setting.name);
        assert!(words.contains(&format!(" {}: ", setting.group)), "{}", setting.group);
    }
    let schedules = "cosine, cosine-annealing, warm-restarts, one-cycle, polynomial, step, plateau, constant";
    assert!(words.contains(schedules), "{train}");
    assert!(words.contains("resnet18, resnet34, "), "{train}");
    let evaluation = enmasse(&["eval", "--help"]).well().stdout;
    assert!(evaluation.contains("[default: the run's;") && !evaluation.contains("[default: resnet18]"), "{evaluation}");

    let check = |arguments: &[&str], mention: &str| {
        let ended = enmasse(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.stderr.contains(mention), "{}", ended.stderr);
    };
    check(&[], "Usage: enmasse");
    check(&["plan"], "Usage: enmasse plan");
    check(&["trian"], "did you mean drain or train?");
    check(&["bench", "step", "--steps", "0"], "--steps");
    check(&["bench", "scaling", "--sync-bn"], "--sync-bn: the rows differ in it");
    check(&["bench", "scaling", "--strategy", "dp"], "--strategy: the rows differ in it");
    check(&["launch", "-n", "2"], "<PROGRAM>");
}

#[test]
fn the_help_names_all_forms_of_data() {
    let forms = Setting::find("data").unwrap().details;
    for form in ["class folders", "manifest", ".tar", "Parquet", "packed file", "Kaggle", "CIFAR-10"] {
        assert!(forms.contains(form), "{form}: {forms}");
    }
    for command in ["train", "eval", "bench scaling", "data check", "data show", "data stats", "data pack"] {
        let help = finish(program().args(command.split_whitespace()).arg("--help")).well().stdout;
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(forms), "{command}: {help}");
    }
}

/// All commands with their own help.
const COMMANDS: &[&str] = &[
    "",
    "train",
    "eval",
    "predict",
    "export",
    "data",
    "data check",
    "data show",
    "data split",
    "data fetch",
    "data stats",
    "data pack",
    "models",
    "plan",
    "plan print",
    "bench",
    "bench step",
    "bench scaling",
    "bench peak",
    "launch",
    "slurm",
    "slurm script",
    "slurm submit",
    "slurm status",
    "slurm check",
    "status",
    "doctor",
];

#[test]
fn help_fits_a_terminal() {
    for command in COMMANDS {
        for flag in ["-h", "--help"] {
            let help = finish(program().args(command.split_whitespace()).arg(flag).env("COLUMNS", "80")).well().stdout;
            let wide: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(wide.is_empty(), "{command} {flag}: {wide:#?}");
            // A text with breaks of its own is broken again, in the middle of its sentences.
            let lines: Vec<&str> = help.lines().collect();
            for pair in lines.windows(2).filter(|pair| pair.iter().all(|line| line.starts_with(char::is_alphanumeric)))
            {
                let word = pair[1].split(' ').next().unwrap_or_default();
                let had_room = pair[0].chars().count() + 1 + word.chars().count() <= 80;
                assert!(!had_room || pair[0].ends_with(['.', ':']), "{command} {flag}: {pair:#?}");
            }
        }
    }
}

#[test]
fn the_short_help_has_a_line_for_each_option() {
    let help = finish(program().args(["train", "-h"]).env("COLUMNS", "80")).well().stdout;
    let options = help.split_once("Options:\n").unwrap().1.split_once("\nExamples:").unwrap().0;
    for line in options.lines().filter(|line| line.starts_with(' ')) {
        assert!(line.trim_start().starts_with('-'), "{line:?} in {help}");
        assert!(line.trim_start().contains("  "), "{line:?} has no help beside it");
    }
    assert!(options.lines().count() > SETTINGS.len(), "{help}");
}

/// As with `| head -3`.
#[test]
fn a_closed_reader_is_not_an_error() {
    for arguments in [&["train", "--help"][..], &["--version"], &["help"], &["models"], &["plan", "print"]] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let mut command = program();
        let ended = command.args(arguments).stdout(writer).stderr(std::process::Stdio::piped()).output().unwrap();
        assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), &b""[..]), "{arguments:?}");
    }
}

#[test]
fn models_are_listed() {
    let list = enmasse(&["models"]).well().stdout;
    assert_eq!(list.lines().count(), 1 + enmasse_models::models().len(), "{list}");
    // Numbers of torchvision's documentation.
    let rows = [
        ["resnet18 ", "11,689,512", " 1.81 ", "224x224   69.8  resnet18.IMAGENET1K_V1"],
        ["resnet50 ", "25,557,032", " 4.09 ", "224x224   80.9  resnet50.IMAGENET1K_V2 and 1 more"],
        ["efficientnet_lite0 ", "4,652,008", " 0.39 ", "224x224   74.8  tf_efficientnet_lite0.in1k and 1 more"],
        ["vit_small_patch14_dinov2 ", "22,", "", "518x518         vit_small_patch14_dinov2.lvd142m"],
        ["mlp ", "636,554", " 0.00 ", "28x28"],
    ];
    for parts in rows {
        assert!(list.lines().any(|line| parts.iter().all(|part| line.contains(part))), "{parts:?}: {list}");
    }
    let measured = enmasse(&["models", "mlp", "lenet", "--bench", "--size", "16", "--batch", "2", "--json"]).well();
    let objects = measured.json();
    assert_eq!(objects.len(), 2);
    for (object, name) in objects.iter().zip(["mlp", "lenet"]) {
        assert_eq!((&object["model"], &object["size"]), (&name.into(), &16.into()));
        assert!(object["images_per_second"].as_f64().unwrap() > 0.0, "{object}");
        assert!(object["gflops"].as_f64().unwrap() > 0.0, "{object}");
    }
    let resnet = enmasse(&["models", "resnet50", "--json"]).well().json().remove(0);
    let weights = ["resnet50.IMAGENET1K_V1", "resnet50.IMAGENET1K_V2"];
    assert_eq!((&resnet["top1"], &resnet["weights"]), (&80.858f64.into(), &weights.as_slice().into()));
    let unknown = enmasse(&["models", "resnet19"]);
    assert_eq!(unknown.code, Some(2));
}

#[test]
fn later_sources_take_precedence() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5).display().to_string();
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
