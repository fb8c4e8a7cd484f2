//! Arguments that several commands share: the flags of settings, generated from the settings' definitions; counts and
//! paths.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};
use enmasse_image::EvalCrop;
use enmasse_models::{Model, models};
use enmasse_system::files::expand_home;
use enmasse_train::{SETTINGS, Scope, Setting, SettingKind};

/// The flag with the same meaning as DATA.
const DATA_PATH: &str = "data-path";

/// The defaults of commands that compute on one device, in this process.
pub const ONE_DEVICE: &[(&str, &str)] =
    &[("devices", "auto: one GPU, otherwise cpu:1"), ("threads", "one for each core")];

/// The settings that say where classes are found, for commands that open data as `train` does.
pub const SOURCE: &str = "label_pattern path_column label_column task manifest_root cache_dir cache_limit";

/// Tells a rank that another process of this program has decided its flags.
pub const DECIDED: &str = "decided";

/// Tells such a rank where the settings come from.
pub const ORIGINS: &str = "origins";

/// Largest number that is accepted for a count.
const MAX_COUNT: usize = 1_000_000;

/// A command that only has commands of its own.
pub fn group(name: &'static str, about: &'static str, commands: impl IntoIterator<Item = Command>) -> Command {
    let command = Command::new(name).about(about).subcommand_required(true).arg_required_else_help(true);
    command.disable_help_subcommand(true).subcommands(commands)
}

/// A run folder or a weights file.
pub fn source() -> Arg {
    Arg::new("source")
        .value_name("RUN|WEIGHTS")
        .required(true)
        .value_parser(path)
        .help("Run folder, or weights: a file (.pth, .ckpt or .safetensors) with torchvision's or timm's names, a name of enmasse weights list, hf:OWNER/REPO or an address")
}

/// A path in which the shell has not expanded `~`.
pub fn path(text: &str) -> Result<PathBuf, String> {
    expand_home(Path::new(text)).map_err(|error| error.to_string())
}

/// A flag with a value.
pub fn option(name: &'static str, placeholder: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(placeholder)
}

/// A flag with a count.
pub fn count(name: &'static str, placeholder: &'static str, help: &'static str) -> Arg {
    option(name, placeholder).value_parser(count_value).help(help)
}

/// A flag that is on where it is given.
pub fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// A flag with the path of a file.
pub fn file(name: &'static str, help: &'static str) -> Arg {
    option(name, "FILE").value_parser(path).help(help)
}

/// A flag that only this program gives, to a rank that it starts.
pub fn decided() -> Arg {
    Arg::new(DECIDED).long(DECIDED).action(ArgAction::SetTrue).hide(true)
}

/// Another one: where the settings come from, as JSON.
pub fn origins() -> Arg {
    Arg::new(ORIGINS).long(ORIGINS).value_parser(clap::value_parser!(String)).hide(true)
}

/// A positive number of a flag.
pub fn count_value(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=MAX_COUNT).contains(count));
    count.ok_or_else(|| format!("must be a whole number from 1 to {MAX_COUNT}"))
}

/// By which crops or views images are evaluated.
pub fn crops() -> [Arg; 2] {
    let crops = option("crops", "N")
        .value_parser(|text: &str| {
            let crops = text.parse().ok().and_then(EvalCrop::several);
            crops.ok_or("must be 1, 5 (torchvision's FiveCrop: corners and middle) or 10 (TenCrop: flipped, too)")
        })
        .help("Evaluate each image by the mean of the logits of 5 or 10 crops [default: 1, the middle]");
    let views = option("tta", "VIEWS")
        .value_parser(|text: &str| EvalCrop::views(text).ok_or("must be flip, or flip+shift"))
        .conflicts_with("crops")
        .help("Test-time augmentation: evaluate each image by the mean of the logits of the image and its mirror image (flip), or of these and both shifted by a pixel, which count as much (flip+shift)");
    [crops, views]
}

/// What [`crops`] were given.
pub fn given_crops(matches: &ArgMatches) -> Vec<EvalCrop> {
    let given = ["crops", "tta"].into_iter().find_map(|name| matches.get_one(name).cloned());
    given.unwrap_or_else(|| vec![EvalCrop::CENTER])
}

/// The flag for these crops.
pub fn crops_flag(crops: &[EvalCrop]) -> String {
    let is_views = |word: &&str| EvalCrop::views(word).as_deref() == Some(crops);
    match ["flip", "flip+shift"].into_iter().find(is_views) {
        Some(views) => format!("--tta={views}"),
        None => format!("--crops={}", crops.len()),
    }
}

/// The settings with these names, which blanks separate.
pub fn named(names: &str) -> impl Iterator<Item = &'static Setting> {
    names.split_whitespace().filter_map(Setting::find)
}

/// The flags of the settings with these names.
pub fn settings(names: &str) -> Vec<Arg> {
    settings_with(names, &[])
}

/// The flags of the settings with these names. `default` has the names of those with other defaults in this command, and these
/// defaults.
pub fn settings_with(names: &str, default: &[(&str, &'static str)]) -> Vec<Arg> {
    let default =
        |setting: &Setting| default.iter().find_map(|(name, default)| (*name == setting.name).then_some(*default));
    named(names).map(|setting| flag_with(setting, default(setting))).collect()
}

/// DATA, as an argument and as a flag.
pub fn data() -> Vec<Arg> {
    let Some(setting) = Setting::find("data") else { return Vec::new() };
    let positional = Arg::new("data").value_name("DATA").help(setting.summary).long_help(long_help(setting, None));
    let spellings = spellings(setting).into_iter().filter(|spelling| spelling != DATA_PATH);
    let flag = Arg::new(DATA_PATH)
        .long(DATA_PATH)
        .aliases(spellings)
        .value_name("DIR")
        .conflicts_with("data")
        .overrides_with(DATA_PATH)
        .help_heading(setting.group.to_string())
        .help("The same as DATA");
    vec![positional, flag]
}

/// DATA of a command that says more of it than `train` does: in its own `words`, and then what DATA may be.
pub fn data_as(words: &'static str) -> Arg {
    let forms = Setting::find("data").map_or("", |setting| setting.details);
    Arg::new("data").value_name("DATA").help(words).long_help(format!("{words}. {forms}"))
}

/// The flag of a setting. Values stay text: the setting's own parser reads them, with the same messages as for a file.
pub fn flag(setting: &'static Setting) -> Arg {
    flag_with(setting, None)
}

fn flag_with(setting: &'static Setting, default: Option<&'static str>) -> Arg {
    let long = setting.name.replace('_', "-");
    let arg = Arg::new(setting.name).aliases(spellings(setting).into_iter().filter(|spelling| *spelling != long));
    let arg = setting.aliases().filter_map(letter).fold(arg, Arg::short).long(long);
    let arg = arg.help_heading(setting.group.to_string()).long_help(long_help(setting, default));
    let arg = arg.hide(setting.scope == Scope::Found);
    let arg = match (default, shown_default(setting)) {
        (None, Some(default)) => arg.help(format!("{} [default: {default}]", setting.summary)),
        _ => arg.help(setting.summary),
    };
    // The last occurrence counts, so that a script can override earlier ones.
    match setting.kind {
        SettingKind::Switch | SettingKind::Optional => arg
            .overrides_with(setting.name)
            .value_name(if setting.kind == SettingKind::Switch { "BOOL" } else { setting.placeholder })
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        SettingKind::List => arg.action(ArgAction::Append).value_name(setting.placeholder),
        _ => arg.overrides_with(setting.name).value_name(setting.placeholder).allow_negative_numbers(true),
    }
}

/// The long help: sentences, the allowed values, the default (in the command's own words if `default` has them), and other
/// spellings.
fn long_help(setting: &Setting, default: Option<&str>) -> String {
    let mut help = setting.summary.to_owned();
    if !setting.details.is_empty() {
        help.push_str(&format!(". {}", setting.details));
    }
    let mut note = |label: &str, text: &str| {
        if !text.is_empty() {
            help.push_str(&format!("\n[{label}: {text}]"));
        }
    };
    note("one of", &choices(setting).join(", "));
    note("default", default.unwrap_or(&shown_default(setting).unwrap_or_else(|| setting.default_words.to_owned())));
    let others = setting.aliases().map(as_flag).filter(|flag| flag[2..] != *DATA_PATH);
    note("also", &others.collect::<Vec<_>>().join(", "));
    help
}

/// The values that a setting accepts, if they can be listed.
fn choices(setting: &Setting) -> Vec<&'static str> {
    match setting.kind {
        SettingKind::Choice(words) => words.to_vec(),
        _ if setting.name == "model" => models().iter().map(Model::name).collect(),
        _ => Vec::new(),
    }
}

/// The default to be shown; `None` for a switch that is off, and for a list, which is empty.
fn shown_default(setting: &Setting) -> Option<String> {
    let is_told = |text: &String| !text.is_empty() && (!setting.kind.stands_alone() || text == "true");
    setting.default_text().filter(is_told)
}

/// A word as a flag: `--batch-size`, `-b`.
fn as_flag(word: &str) -> String {
    let dashes = if letter(word).is_some() { "-" } else { "--" };
    format!("{dashes}{}", word.replace('_', "-"))
}

/// The letter of a word of one letter.
fn letter(word: &str) -> Option<char> {
    let mut letters = word.chars();
    letters.next().filter(|_| letters.next().is_none())
}

/// All spellings of a setting's flag, without dashes and single letters: enmasse's own and other tools' aliases, each with `-`
/// and with `_`, as written and in lower case.
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

/// Whether this is the flag of a setting of a kind, in any of its spellings.
pub fn is_of_kind(flag: &str, kind: SettingKind) -> bool {
    let mut settings = SETTINGS.iter().filter(|setting| setting.kind == kind);
    settings.any(|setting| spellings(setting).iter().any(|spelling| spelling == flag))
}
