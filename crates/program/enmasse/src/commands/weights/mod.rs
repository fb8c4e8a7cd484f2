//! `enmasse weights list|show|fetch`: the weights that are known by name. The weights of `eval` and `predict` are opened here, too.

mod opened;

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use crate::command_line::arguments::{group, option, settings};
use crate::command_line::settings::layers;
use crate::failure::{Failure, usage};
use crate::output::Output;
use crate::pretrained::{self, Entry, Found, best, entries};
use crate::ranks::interrupt::Interrupts;

pub use opened::{OF_A_RUN, PREPARATION, Source, Weights, is_checked, known_model, open};

const EXAMPLES: &str = "\
Examples:
  enmasse weights list resnet50
  enmasse weights show resnet50.IMAGENET1K_V2
  enmasse weights fetch hf:timm/resnet18.a1_in1k
  enmasse train photos --pretrained IMAGENET1K_V2 --model resnet50";

/// The command line of `enmasse weights`.
pub fn command() -> Command {
    let model = || option("model", "NAME").help("The model, where several have weights of this name");
    let named = |help: &'static str| Arg::new("name").value_name("NAME").required(true).help(help);
    group(
        "weights",
        "List the weights that are known by name, show what is known of some, or fetch them",
        [
            Command::new("list")
                .about("List the weights that are known by name")
                .arg(Arg::new("models").value_name("MODEL").num_args(0..).help("Their models [default: all]"))
                .args(settings("json")),
            Command::new("show")
                .about("All that is known of weights, and how their images are prepared")
                .arg(named("A name of the list, or a model for its best weights"))
                .arg(model())
                .args(settings("json")),
            Command::new("fetch")
                .about("Fetch weights to where runs find them, and print the file")
                .arg(named("A name of the list, hf:OWNER/REPO[@REVISION], or an address"))
                .arg(model())
                .args(settings("json")),
        ],
    )
    .after_help(EXAMPLES)
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("list", matches)) => list(matches),
        Some(("show", matches)) => show(matches),
        Some(("fetch", matches)) => fetch(matches),
        _ => Ok(()),
    }
}

fn list(matches: &ArgMatches) -> Result<(), Failure> {
    let mut output = Output::new(layers(matches)?.finish()?.program.json);
    let models: Vec<&String> = matches.get_many("models").into_iter().flatten().collect();
    for model in &models {
        enmasse_models::find(model).map_err(Failure::usage)?;
    }
    let listed: Vec<_> = entries().filter(|entry| models.is_empty() || models.contains(&&entry.model)).collect();
    let name_width = listed.iter().map(|entry| entry.full_name().len()).max().unwrap_or(0);
    let model_width = listed.iter().map(|entry| entry.model.len()).max().unwrap_or(0);
    if !output.is_json() {
        let header = format_args!("{:<name_width$}  {:<model_width$}  top-1  {:<9} licence", "name", "model", "images");
        output.text(header);
    }
    for entry in listed {
        output.json(of_entry(entry));
        if !output.is_json() {
            let top1 = entry.top1.map_or_else(|| "-".to_owned(), |top1| format!("{top1:.1}"));
            let name = entry.full_name();
            let images = format!("{0}x{0}", entry.images.size);
            output.text(format_args!(
                "{name:<name_width$}  {:<model_width$}  {top1:>5}  {images:<9} {}",
                entry.model, entry.license
            ));
        }
    }
    output.finish()
}

fn show(matches: &ArgMatches) -> Result<(), Failure> {
    let mut output = Output::new(layers(matches)?.finish()?.program.json);
    let entry = named(matches)?;
    output.json(of_entry(entry));
    if !output.is_json() {
        let Value::Object(facts) = of_entry(entry) else { return Ok(()) };
        for (name, value) in facts.iter().filter(|(_, value)| !value.is_null()) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            output.text(format_args!("{name}: {value}"));
        }
    }
    output.finish()
}

fn fetch(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let mut output = Output::new(layers(matches)?.finish()?.program.json);
    let word = matches.get_one::<String>("name").map_or("", String::as_str);
    let model = matches.get_one::<String>("model").map(String::as_str);
    let found = match pretrained::is_name(word) {
        true => pretrained::of_word(word.as_ref(), model)?,
        false => Some(pretrained::fetch(named(matches)?)?),
    };
    let Some(Found { file, name, model, license, source, images, .. }) = found else { return Ok(()) };
    let images: serde_json::Map<String, Value> =
        images.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    output.json(json!({
        "event": "fetch", "file": file, "name": name, "model": model, "license": license, "source": source, "images": images
    }));
    if !output.is_json() {
        let license = license.unwrap_or_else(|| "not known; see their source".to_owned());
        output.text(format_args!("{name}: licence {license}"));
        output.text(file.display());
    }
    output.finish()
}

/// The weights of the catalogue that a command line names.
fn named(matches: &ArgMatches) -> Result<&'static Entry, Failure> {
    let word = matches.get_one::<String>("name").map_or("", String::as_str);
    let model = matches.get_one::<String>("model").map(String::as_str);
    let found = pretrained::find(word, model);
    found
        .unwrap_or_else(|| Err(format!("{word}: no weights of this name are known; see enmasse weights list")))
        .map_err(|why| usage!("{why}"))
}

/// What is known of weights, for scripts.
fn of_entry(entry: &Entry) -> Value {
    let Entry { model, name, source, license, classes, top1, images, .. } = entry;
    json!({
        "name": entry.full_name(), "model": model, "published_name": name, "source": source, "license": license,
        "classes": classes, "top1": top1, "best": best(model).is_some_and(|best| std::ptr::eq(best, entry)),
        "size": images.size, "crop_pct": images.crop_pct, "interpolation": images.interpolation, "mean": images.mean,
        "std": images.std
    })
}
