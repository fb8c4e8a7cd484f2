//! `--explain DIR`: for each image a PNG of what the model sees of it, under a heatmap.

use std::collections::HashMap;
use std::fs::create_dir_all;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches};
use enmasse_data::Dataset;
use enmasse_datasets::TaskKind;
use enmasse_device::Device;
use enmasse_system::files::write_whole;
use enmasse_train::{Explainer, HeatmapMethod, Images, Prediction};

use crate::command_line::arguments;
use crate::commands::weights::Weights;
use crate::failure::{Failure, failed, usage};

/// Bytes of a file's name that an image gives it, at most.
const MAX_NAME: usize = 100;

/// The flags.
pub fn flags() -> [Arg; 2] {
    [
        arguments::option("explain", "DIR").value_parser(arguments::path).help(
            "Write for each image DIR/NAME.png: what the model sees of it, under a heatmap of where the most probable class comes from (Grad-CAM; of vision transformers attention rollout)",
        ),
        arguments::option("explain-class", "NAME")
            .requires("explain")
            .help("Explain this class, given by its name or label, instead of the most probable one"),
    ]
}

/// What writes the heatmaps of a command.
pub struct Explanations {
    folder: PathBuf,
    explainer: Explainer,
    class: Option<usize>,
    /// Names of files with the number that comes next for each, in lower case: some file systems take no others as different.
    taken: HashMap<String, u64>,
}

impl Explanations {
    /// Prepares them, if they are asked for.
    pub fn begin(matches: &ArgMatches, weights: &Weights, device: &dyn Device) -> Result<Option<Self>, Failure> {
        let Some(folder) = matches.get_one::<PathBuf>("explain").cloned() else { return Ok(None) };
        if weights.classifier.kind() == TaskKind::Regression {
            return Err(usage!(
                "--explain: shows where classes and labels come from, and this run predicts numbers; leave it out"
            ));
        }
        let name = matches.get_one::<String>("explain-class");
        let class = name.map(|name| class_of(name, &weights.classifier.classes)).transpose()?;
        let forward = |x, classes| weights.model.forward(x, classes);
        let explainer = weights.classifier.explainer(&forward, device)?;
        if let (Some(name), HeatmapMethod::AttentionRollout) = (name, explainer.method()) {
            return Err(usage!(
                "--explain-class {name}: the heatmap of {} is its attention rollout, the same for all classes; leave it out",
                weights.model.name()
            ));
        }
        create_dir_all(&folder).map_err(|error| failed!("cannot create {}: {error}", folder.display()))?;
        Ok(Some(Explanations { folder, explainer, class, taken: HashMap::new() }))
    }

    /// Writes the heatmap of the image at `index` of `images`, and returns its path.
    pub fn write(&mut self, images: &Images, index: usize, prediction: &Prediction) -> Result<PathBuf, Failure> {
        let class = self.class.or_else(|| prediction.top.first().map(|guess| guess.index)).unwrap_or_default();
        let image = images.read(index).map_err(Failure::error)?;
        let png = self.explainer.explain(&image, class)?.png()?;
        let path = self.folder.join(format!("{}.png", free_name(&prediction.image, &mut self.taken)));
        write_whole(&path, |file| file.write_all(&png)).map_err(Failure::error)?;
        Ok(path)
    }
}

/// The label of a class, by its name or as a number.
fn class_of(name: &str, classes: &[String]) -> Result<usize, Failure> {
    let named = classes.iter().position(|class| class == name);
    let label = || name.parse().ok().filter(|label| *label < classes.len());
    named.or_else(label).ok_or_else(|| {
        let classes = classes.len();
        usage!(
            "--explain-class {name}: none of the model's {classes} classes has this name; give one of them, or a label"
        )
    })
}

/// A name for a file, without its ending, that no other image of the command has: that of the image, with a number if it is taken.
fn free_name(image: &str, taken: &mut HashMap<String, u64>) -> String {
    let stem = Path::new(image).file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let is_plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.' | ' ');
    let plain: String = stem.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    // Neither hidden nor taken for a flag.
    let plain = plain.trim_start_matches(['.', '-', ' ']).trim_end();
    let plain = &plain[..plain.floor_char_boundary(MAX_NAME)];
    let plain = if plain.is_empty() { "image" } else { plain };
    // The next number that may be free.
    let mut next = taken.get(&plain.to_lowercase()).copied().unwrap_or(1);
    let name = loop {
        let name = if next == 1 { plain.to_owned() } else { format!("{plain}-{next}") };
        next += 1;
        if taken.insert(name.to_lowercase(), 2).is_none() {
            break name;
        }
    };
    taken.insert(plain.to_lowercase(), next);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_plain_names_of_their_own() {
        let mut taken = HashMap::new();
        let mut check = |image: &str, expected: &str| assert_eq!(free_name(image, &mut taken), expected);
        check("photos/rose.jpg", "rose");
        check("other/rose.png", "rose-2");
        check("Rose.png", "Rose-3");
        check("rose-2.png", "rose-2-2");
        check("-", "image");
        check("..", "image-2");
        check("", "image-3");
        check("a/.hidden.jpg", "hidden");
        check("shards/0.tar/b\\c:d\n.jpg", "b_c_d_");
        check("schöne rose.v2.jpg", "schöne rose.v2");
        check(&format!("{}.jpg", "ä".repeat(200)), &"ä".repeat(50));
        check(&format!("{}.png", "ä".repeat(300)), &format!("{}-2", "ä".repeat(50)));
    }

    #[test]
    fn classes_have_names_and_labels() {
        let classes = ["7".to_owned(), "rose".to_owned(), "0".to_owned()];
        assert_eq!(["rose", "0", "7", "1"].map(|name| class_of(name, &classes).unwrap()), [1, 2, 0, 1]);
        for name in ["tulip", "3", "-1", ""] {
            let found = class_of(name, &classes).unwrap_err();
            assert!(found.message().starts_with(&format!("--explain-class {name}: none of")), "{}", found.message());
        }
    }
}
