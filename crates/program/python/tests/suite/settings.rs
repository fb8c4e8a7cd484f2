//! `python/enmasse/_settings.py`: the keywords of `enmasse.train`, made from the one table of settings.

use std::fs;

use enmasse::train::{RunConfig, SETTINGS, Scope, Setting, SettingGroup, SettingKind};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../python/enmasse/_settings.py");

const HEAD: &str = r#""""The settings of `enmasse.train`, made from the program's table of settings. Do not edit it:

    WRITE_SETTINGS=1 cargo test -p enmasse-python settings
"""
import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict


class Settings(TypedDict, total=False):
    """The keywords of `train`. None is a setting's default."""

    config: str | os.PathLike[str] | None
    """Read settings from this TOML file, or from a config.py of ColossalAI's, of which nothing runs."""
    gpus: int | str | Sequence[int] | None
    """Lightning's word: a number of GPUs, -1 for all, or a list of them. The same as `devices`."""
"#;

/// Characters of a line.
const WIDTH: usize = 120;

/// Settings that `train` gives itself, and those that no flag gives.
fn is_keyword(setting: &&Setting) -> bool {
    !["data", "json"].contains(&setting.name) && setting.scope != Scope::Found
}

/// The type of a setting's values in Python.
fn annotation(setting: &Setting) -> String {
    match setting.kind {
        SettingKind::Switch => "bool".to_owned(),
        SettingKind::Optional => "bool | int | str | os.PathLike[str]".to_owned(),
        SettingKind::Number => {
            let refused = RunConfig::default().set(setting.name, "1.5").err();
            let is_whole = refused.is_some_and(|error| error.to_string().contains("whole number"));
            if is_whole { "int" } else { "float" }.to_owned()
        }
        SettingKind::Numbers => "float | Sequence[float]".to_owned(),
        SettingKind::Choice(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            format!("Literal[{}]", words.join(", "))
        }
        SettingKind::Text => "str | float".to_owned(),
        SettingKind::Path => "str | os.PathLike[str]".to_owned(),
        SettingKind::List => "str | Sequence[str] | Mapping[str, object]".to_owned(),
    }
}

/// What `train --help` says of a setting.
fn documentation(setting: &Setting) -> String {
    let default = setting.default_text().filter(|text| !text.is_empty());
    let default = default.unwrap_or_else(|| setting.default_words.to_owned());
    let sentences = [setting.summary, setting.details.trim_end_matches('.')].into_iter().map(str::to_owned);
    let default = (!default.is_empty()).then(|| format!("Default: {default}"));
    let sentences: Vec<String> = sentences.chain(default).filter(|text| !text.is_empty()).collect();
    wrapped(&format!("\"\"\"{}.\"\"\"", sentences.join(". ")))
}

/// Lines of a class's body.
fn wrapped(text: &str) -> String {
    let mut lines = String::from("   ");
    let mut width = lines.len();
    for word in text.split(' ') {
        if width + 1 + word.chars().count() > WIDTH {
            lines.push_str("\n   ");
            width = 3;
        }
        lines.push(' ');
        lines.push_str(word);
        width += 1 + word.chars().count();
    }
    lines
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut group: Option<SettingGroup> = None;
    for setting in SETTINGS.iter().filter(is_keyword) {
        if group.replace(setting.group) != Some(setting.group) {
            page.push_str(&format!("\n    # {}.\n\n", setting.group));
        }
        let documentation = documentation(setting);
        assert!(!documentation.contains('\\') && documentation.matches("\"\"\"").count() == 2, "{documentation}");
        page.push_str(&format!("    {}: {} | None\n{documentation}\n", setting.name, annotation(setting)));
    }
    page
}

#[test]
fn the_keywords_of_the_package_are_the_settings() {
    if std::env::var_os("WRITE_SETTINGS").is_some() {
        fs::write(FILE, page()).unwrap();
    }
    let written = fs::read_to_string(FILE).unwrap_or_default();
    assert!(written == page(), "{FILE} is stale: WRITE_SETTINGS=1 cargo test -p enmasse-python settings");
}
