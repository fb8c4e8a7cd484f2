//! Arguments that several commands share: the flags of settings, generated from the settings' definitions; counts and
//! paths.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches};
use enmasse_files::expand_home;
use enmasse_train::{Kind, SETTINGS, Setting};

/// Other programs' spellings of our flags.
const ALIASES: &[(&str, &[&str])] =
    &[("batch", &["batch-size", "batch_size"]), ("sync_bn", &["syncBN", "syncbn"]), ("data", &["data_path", "data"])];

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
    let positional = Arg::new("data").value_name("DATA").help(help);
    let flag = Arg::new(DATA_PATH)
        .long(DATA_PATH)
        .aliases(aliases("data"))
        .value_name("DIR")
        .conflicts_with("data")
        .overrides_with(DATA_PATH)
        .help("The same as DATA");
    [positional, flag]
}

/// The flag of a setting. Values stay text: the setting's own parser reads them, with the same messages as for a file.
pub fn flag(setting: &'static Setting) -> Arg {
    let long = setting.name.replace('_', "-");
    let mut help = setting.help.to_owned();
    if let Kind::Choice(words) = setting.kind {
        help.push_str(&format!(" [one of: {}]", words.join(", ")));
    }
    let underscored = (long != setting.name).then_some(setting.name);
    let arg = Arg::new(setting.name).long(long).aliases(aliases(setting.name).chain(underscored));
    match setting.kind {
        Kind::Switch => arg
            .overrides_with(setting.name)
            .value_name("true|false")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .hide_possible_values(true)
            .help(help),
        kind => {
            if let Some(default) = setting.default_text().filter(|text| !text.is_empty()) {
                help.push_str(&format!(" [default: {default}]"));
            }
            // The last occurrence counts, so that a script can override earlier ones.
            let arg = match kind {
                Kind::List => arg.action(ArgAction::Append),
                _ => arg.overrides_with(setting.name),
            };
            arg.value_name(setting.placeholder).allow_negative_numbers(true).help(help)
        }
    }
}

/// Other spellings of a setting's flag.
fn aliases(name: &'static str) -> impl Iterator<Item = &'static str> {
    ALIASES.iter().filter(move |(of, _)| *of == name).flat_map(|(_, aliases)| *aliases).copied()
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
    switches.any(|setting| setting.name == flag.replace('-', "_") || aliases(setting.name).any(|alias| alias == flag))
}
