//! `enmasse data fetch NAME [DIR]`: a known data set from the network, ready to train on.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};
use enmasse_datasets::{OpenOptions, open};
use enmasse_remote::fetch::{KnownSet, SETS, find};
use enmasse_wording::{counted, shell_word};
use serde_json::json;

use crate::command_line::arguments::{option, path, settings};
use crate::command_line::settings::layers;
use crate::data::fetcher;
use crate::failure::{Failure, failed, usage};
use crate::output::transfer::{Transfer, follow};
use crate::output::{Output, say};
use crate::ranks::interrupt::Interrupts;

const ABOUT: &str = "\
NAME is cifar10, cifar100, mnist, fashion-mnist or flower-photos. Archives are checked by their SHA-256. A download that \
was cut goes on where it ended when the command is repeated. Proxies are taken from https_proxy, http_proxy and no_proxy, \
and a file of trusted certificates from SSL_CERT_FILE.";

/// Names of the set that nobody may pass on.
const IMAGENET: [&str; 5] = ["imagenet", "imagenet1k", "ilsvrc", "ilsvrc2012", "imagenet2012"];

/// The way to ImageNet.
const IMAGENET_STEPS: &str = "\
ImageNet (ILSVRC 2012) is given only to people who have registered, and accepted its terms:
  1. Register at https://image-net.org, or at https://www.kaggle.com, and accept the terms of the competition
     imagenet-object-localization-challenge there.
  2. Download ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from image-net.org, or
     imagenet-object-localization-challenge.zip by Kaggle's own program:
       kaggle competitions download -c imagenet-object-localization-challenge
  3. Extract it. Kaggle's folder is read as it is, with ILSVRC/ and LOC_val_solution.csv. Images from image-net.org go into
     train/ and val/ of one folder, each with a folder per class (n01440764 and so on), as torchvision reads them.
  4. enmasse train FOLDER --num-classes 1000";

/// The command line of `enmasse data fetch`.
pub fn command() -> Command {
    Command::new("fetch")
        .about("Download a known data set")
        .after_help(ABOUT)
        .arg(Arg::new("name").value_name("NAME").required(true).help("The data set, such as cifar10"))
        .arg(
            Arg::new("folder")
                .value_name("DIR")
                .value_parser(path)
                .help("Folder in which that of the data set is made [default: the current one]"),
        )
        .arg(
            option("mirror", "URL")
                .action(ArgAction::Append)
                .help("Address of a folder with the archives, instead of the usual servers; repeatable, in the order in which they are asked"),
        )
        .args(settings("json"))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let config = layers(matches)?.finish()?;
    let name = matches.get_one::<String>("name").map_or("", String::as_str);
    let Some(set) = find(name) else { return Err(unknown(name)) };
    let folder = matches.get_one::<PathBuf>("folder").cloned().unwrap_or_default();
    let mirrors = matches.get_many::<String>("mirror").into_iter().flatten().cloned().collect();
    let fetcher = fetcher().mirrors(mirrors);
    let was_there = folder.join(set.folder).exists();
    let mut transfer = Transfer::new("");
    let target = fetcher.fetch(set, &folder, &mut |event| follow(event, &mut transfer)).map_err(Failure::error)?;
    let classes = check(set, &target)?;
    if was_there {
        say(format_args!("{} is there already", target.display()));
    }
    let mut output = Output::new(config.program.json);
    output.json(json!({
        "event": "fetch", "data": target, "name": set.name, "samples": set.images, "classes": classes,
        "fetched": !was_there
    }));
    if !output.is_json() {
        output.text(format_args!("{}: {} in {}", set.title, counted(set.images, "image"), counted(classes, "class")));
        output.text(format_args!("enmasse train {}", shell_word(&target)));
    }
    output.finish()
}

/// Opens the data as a run does, and returns the number of its classes. A folder of that name may have been there before.
fn check(set: &KnownSet, target: &Path) -> Result<usize, Failure> {
    let advice = format!("remove {} to fetch it again, or name another DIR", target.display());
    let opened = open(target, &OpenOptions::default());
    let opened = opened.map_err(|error| failed!("{error}; {advice}"))?;
    let images = opened.train.len() + opened.validation.len() + opened.test.map_or(0, |test| test.len());
    if images != set.images {
        let found = counted(images, "image");
        let expected = set.images;
        return Err(failed!("{}: it has {found}, not {expected}; {advice}", target.display()));
    }
    Ok(opened.classes.len())
}

/// The failure for a name that is not in the table.
fn unknown(name: &str) -> Failure {
    let plain: String = name.to_ascii_lowercase().chars().filter(|letter| !"-_ ".contains(*letter)).collect();
    if IMAGENET.contains(&plain.as_str()) {
        IMAGENET_STEPS.lines().for_each(say);
        return Failure::Told(1);
    }
    let known: Vec<&str> = SETS.iter().map(|set| set.name).collect();
    usage!("{name:?} cannot be fetched; the known data sets are {}, and imagenet says how to get it", known.join(", "))
}
