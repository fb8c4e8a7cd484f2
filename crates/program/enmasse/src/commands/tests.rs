//! The whole command line: every setting has its flag, and every error is one line.

use std::ffi::OsString;

use clap::{ArgMatches, Command};
use enmasse_train::{ALIASES, ANSWERS, SETTINGS, Setting, SettingKind};

use super::command;
use crate::command_line::arguments::given;
use crate::command_line::parse;
use crate::failure::{Failure, usage};

fn read(line: &str) -> Result<ArgMatches, Failure> {
    let arguments = std::iter::once("enmasse").chain(line.split_whitespace()).map(OsString::from);
    parse(command(), arguments).map(|matches| matches.unwrap())
}

#[test]
fn the_definition_is_sound() {
    command().debug_assert();
}

#[test]
fn every_setting_has_its_flag() {
    let check = |line: &str, expected: &[(&str, &str)]| {
        let matches = read(&format!("train {line}")).unwrap_or_else(|failure| panic!("{line}: {failure:?}"));
        let found: Vec<_> = given(matches.subcommand().unwrap().1).collect();
        assert_eq!(found.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>(), expected, "{line}");
    };
    for setting in SETTINGS.iter().filter(|setting| setting.name != "data") {
        match setting.kind {
            SettingKind::Switch => check(&setting.flag(), &[(setting.name, "true")]),
            SettingKind::Optional => {
                check(&setting.flag(), &[(setting.name, "true")]);
                check(&format!("{}=7", setting.flag()), &[(setting.name, "7")]);
            }
            _ => check(&format!("{} 7", setting.flag()), &[(setting.name, "7")]),
        }
    }
    check("", &[]);
    check("photos --lr -1", &[("data", "photos"), ("lr", "-1")]);
    check("--sync-bn=false --json x", &[("data", "x"), ("sync_bn", "false"), ("json", "true")]);
    check("--lr 1 --sync-bn --lr 2 --sync-bn=false", &[("lr", "2"), ("sync_bn", "false")]);
    check("--freeze a --freeze b,c", &[("freeze", "a,b,c")]);
    check("--batch-size 4 --weight_decay 0 --syncBN", &[("batch", "4"), ("weight_decay", "0"), ("sync_bn", "true")]);
}

/// As readers of the tutorials type them.
#[test]
fn the_tutorials_spellings() {
    let check = |line: &str, expected: &[(&str, &str)]| {
        let matches = read(&format!("train {line}")).unwrap_or_else(|failure| panic!("{line}: {failure:?}"));
        let found: Vec<_> = given(matches.subcommand().unwrap().1).collect();
        let found: Vec<_> = found.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(found, expected, "{line}");
    };
    check("--data-path D --num_classes 5", &[("data", "D"), ("num_classes", "5")]);
    check("--data_path D --num-classes=5", &[("data", "D"), ("num_classes", "5")]);
    check("--data C --data-path D", &[("data", "D")]);
    check("--syncBN True D", &[("data", "D"), ("sync_bn", "True")]);
    check("--syncBN D", &[("data", "D"), ("sync_bn", "true")]);
    check("--sync_bn=False D --json", &[("data", "D"), ("sync_bn", "False"), ("json", "true")]);
    check("--freeze-layers False --syncBN true", &[("freeze_layers", "False"), ("sync_bn", "true")]);
    check("--freeze_layers --weights F", &[("weights", "F"), ("freeze_layers", "true")]);
    check("--freeze-layers true --freeze-layers 0", &[("freeze_layers", "0")]);
    check("--sync-bn -- True", &[("data", "True"), ("sync_bn", "true")]);
    check("--device cuda --world-size 4 --dist-url env:// --local_rank 1", &[]);
    let both = "the argument '[DATA]' cannot be used with '--data-path <DIR>'; see --help";
    assert_eq!(read("train C --data-path D").unwrap_err(), Failure::Usage(both.into()));
}

/// Words of other tools, with `-` and with `_`.
#[test]
fn other_tools_words() {
    let flags = |words: &'static str| {
        words.split_whitespace().flat_map(|word| {
            let dashes = if word.len() == 1 { "-" } else { "--" };
            [word.to_owned(), word.replace('_', "-")].map(|spelled| (word, format!("{dashes}{spelled}")))
        })
    };
    for (name, words) in ALIASES {
        for (_, flag) in flags(words) {
            let line = format!("train {flag} 1");
            let matches = read(&line).unwrap_or_else(|failure| panic!("{line}: {failure:?}"));
            let found: Vec<_> = given(matches.subcommand().unwrap().1).collect();
            assert_eq!(found, [(*name, "1".to_owned())], "{line}");
            let help = command().find_subcommand("train").unwrap().clone().render_long_help().to_string();
            let also = flag.replace('_', "-");
            assert!(help.contains(&also), "{also} in the help of {name}");
        }
    }
    for (words, answer) in ANSWERS {
        for (word, flag) in flags(words) {
            let line = format!("train {flag} 1");
            match read(&line) {
                // Flags that repeat a launcher's variables are read in launcher_flags.rs.
                Ok(_) => {
                    let launched = ["device", "gpus", "world_size", "dist_url", "init_method", "rank", "local_rank"];
                    assert!(launched.contains(&word) || ["project", "name"].contains(&word), "{line}");
                }
                Err(failure) => assert_eq!(failure, usage!("{flag}: {answer}"), "{line}"),
            }
        }
    }
}

#[test]
fn usage_errors_are_one_line() {
    let check =
        |line: &str, expected: &str| assert_eq!(read(line).unwrap_err(), Failure::Usage(expected.into()), "{line}");
    check("train --epoch 3", "unexpected argument '--epoch' found: did you mean --epochs?");
    check("train --epoch-size 3", "unexpected argument '--epoch-size' found; see --help");
    check("train --ema", "a value is required for '--ema <SHARE>' but none was supplied; see --help");
    // Those of other tools.
    for (name, meant) in
        [("fit", "train"), ("info", "doctor"), ("validate", "eval"), ("evaluate", "eval"), ("val", "eval")]
    {
        check(name, &format!("unrecognized subcommand '{name}': did you mean {meant}?"));
    }
    check("trian", "unrecognized subcommand 'trian': did you mean drain or train?");
    check("train a b", "unexpected argument 'b' found; see --help");
    check("eval", "the following required arguments were not provided: <RUN|WEIGHTS>; see --help");
    check(
        "predict run a.jpg --top 0",
        "invalid value '0' for '--top <K>': must be a whole number from 1 to 1000000; see --help",
    );
    check("train --lr", "a value is required for '--lr <RATE>' but none was supplied; see --help");
}

/// It promised a key and a variable for every flag.
#[test]
fn the_help_of_train_names_the_flags_that_are_no_settings() {
    let train = command().find_subcommand("train").unwrap().clone();
    let words = train.get_after_long_help().unwrap().to_string();
    let visible = train.get_arguments().filter(|arg| !arg.is_hide_set());
    let others = visible.filter(|arg| Setting::find(arg.get_id().as_str()).is_none());
    let of_scripts = |heading: &str| heading.ends_with("PyTorch's scripts") && words.contains("PyTorch's scripts");
    for flag in others.filter(|flag| !flag.get_help_heading().is_some_and(of_scripts)) {
        assert!(words.contains(&format!("--{}", flag.get_long().unwrap())), "{}", flag.get_id());
    }
}

/// The page lacked nine commands.
#[test]
fn every_command_with_json_is_in_the_page_of_json() {
    fn check(command: &Command, path: &str, page: &str) {
        if command.get_arguments().any(|arg| arg.get_id() == "json") {
            let forms = [format!("`{path} --json`"), format!("\n| `{}` |", command.get_name())];
            assert!(forms.iter().any(|form| page.contains(form)), "{path}");
        }
        command.get_subcommands().for_each(|inner| check(inner, &format!("{path} {}", inner.get_name()), page));
    }
    check(&command(), "enmasse", include_str!("../../../../../docs/json.md"));
}
