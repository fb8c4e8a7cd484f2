//! Arguments that several commands share: the flags of settings, generated from the settings' definitions; counts and
//! paths.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches};
use enmasse_files::expand_home;
use enmasse_train::{Kind, SETTINGS, Setting};

/// The flag with the same meaning as DATA.
const DATA_PATH: &str = "data-path";

/// Tells a rank that another process of this program has decided its flags.
pub const DECIDED: &str = "decided";

/// Largest number that is accepted for a count.
const MOST_COUNT: usize = 1_000_000;

/// A run folder or a weights file.
pub fn source() -> Arg {
    Arg::new("source")
        .value_name("RUN|WEIGHTS")
        .required(true)
        .value_parser(path)
        .help("Run folder, or weights file (.pth or .safetensors) with torchvision's names")
}

/// A path in which the shell has not expanded `~`.
pub fn path(text: &str) -> Result<PathBuf, String> {
    expand_home(Path::new(text)).map_err(|error| error.to_string())
}

/// A flag with a count.
pub fn count(name: &'static str, placeholder: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(placeholder).value_parser(count_value).help(help)
}

fn count_value(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=MOST_COUNT).contains(count));
    count.ok_or_else(|| format!("must be a whole number from 1 to {MOST_COUNT}"))
}

/// The flags of the settings with these names.
pub fn settings(names: &[&str]) -> Vec<Arg> {
    names.iter().filter_map(|name| Setting::find(name)).map(flag).collect()
}

/// DATA, as an argument and as a flag.
pub fn data() -> [Arg; 2] {
    let help = Setting::find("data").map_or("", |setting| setting.help);
    let others =
        Setting::find("data").into_iter().flat_map(Setting::aliases).filter(|word| as_flag(word)[2..] != *DATA_PATH);
    let positional = Arg::new("data").value_name("DATA").help(help);
    let flag = Arg::new(DATA_PATH)
        .long(DATA_PATH)
        .aliases(Setting::find("data").into_iter().flat_map(spellings).filter(|spelling| spelling != DATA_PATH))
        .value_name("DIR")
        .conflicts_with("data")
        .overrides_with(DATA_PATH)
        .help(format!("The same as DATA{}", also(others)));
    [positional, flag]
}

/// The flag of a setting. Values stay text: the setting's own parser reads them, with the same messages as for a file.
pub fn flag(setting: &'static Setting) -> Arg {
    let long = setting.name.replace('_', "-");
    let mut help = setting.help.to_owned();
    if let Kind::Choice(words) = setting.kind {
        help.push_str(&format!(" [one of: {}]", words.join(", ")));
    }
    if let Some(default) = setting.default_text().filter(|text| setting.kind != Kind::Switch && !text.is_empty()) {
        help.push_str(&format!(" [default: {default}]"));
    }
    help.push_str(&also(setting.aliases()));
    let arg = Arg::new(setting.name).aliases(spellings(setting).into_iter().filter(|spelling| *spelling != long));
    let arg = setting.aliases().filter_map(letter).fold(arg, Arg::short).long(long).help(help);
    // The last occurrence counts, so that a script can override earlier ones.
    match setting.kind {
        Kind::Switch => arg
            .overrides_with(setting.name)
            .value_name("true|false")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .hide_possible_values(true),
        Kind::List => arg.action(ArgAction::Append).value_name(setting.placeholder),
        _ => arg.overrides_with(setting.name).value_name(setting.placeholder).allow_negative_numbers(true),
    }
}

/// What the help says of other spellings.
fn also(words: impl Iterator<Item = &'static str>) -> String {
    let flags: Vec<String> = words.map(as_flag).collect();
    if flags.is_empty() { String::new() } else { format!(" [also: {}]", flags.join(", ")) }
}

/// A word as a flag: `--batch-size`, `-b`.
fn as_flag(word: &str) -> String {
    let dashes = if letter(word).is_some() { "-" } else { "--" };
    format!("{dashes}{}", word.replace('_', "-"))
}

/// The letter of a word that is one.
fn letter(word: &str) -> Option<char> {
    let mut letters = word.chars();
    letters.next().filter(|_| letters.next().is_none())
}

/// All spellings of a setting's flag, without its dashes and single letters: our own and other tools' words, each with `-` and
/// with `_`, as written and in small letters.
fn spellings(setting: &'static Setting) -> Vec<String> {
    let words = std::iter::once(setting.name).chain(setting.aliases()).filter(|word| letter(word).is_none());
    let forms = words.flat_map(|word| [word.to_owned(), word.to_ascii_lowercase(), word.replace('_', "-")]);
    let mut spellings: Vec<String> = forms.collect();
    spellings.sort_unstable();
    spellings.dedup();
    spellings
}

/// The user's values on the command line; a repeatable flag's occurrences are joined by commas.
pub fn given(matches: &ArgMatches) -> impl Iterator<Item = (&'static str, String)> {
    SETTINGS.iter().filter_map(|setting| {
        let flag = if setting.name == "data" { matches.try_get_many::<String>(DATA_PATH).ok().flatten() } else { None };
        let values: Vec<&String> = flag.or_else(|| matches.try_get_many(setting.name).ok().flatten())?.collect();
        Some((setting.name, values.into_iter().map(String::as_str).collect::<Vec<_>>().join(",")))
    })
}

/// Whether this is the flag of a switch, in any of its spellings.
pub fn is_switch(flag: &str) -> bool {
    let mut switches = SETTINGS.iter().filter(|setting| setting.kind == Kind::Switch);
    switches.any(|setting| spellings(setting).iter().any(|spelling| spelling == flag))
}
