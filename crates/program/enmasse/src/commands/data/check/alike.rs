//! Images that occur twice: the same file in two parts or two classes, and validation images that look like training ones.

use std::collections::HashMap;

use enmasse_dataset_tools::Nearest;
use enmasse_datasets::TaskKind;
use enmasse_train::TrainingData;

use super::finding::{Finding, Item};
use super::look::CheckedPart;
use crate::commands::data::targets::of_image;

/// What occurs twice.
pub struct Alike {
    /// The same image with two classes, or other labels or numbers.
    pub of_two_classes: Finding,
    /// The same image in two parts.
    pub in_two_parts: Finding,
    /// The same image twice in a class of a part.
    pub repeated: Finding,
    /// Images of other parts that look like a training image.
    pub near: Finding,
}

/// An image: its part, and its number there.
type ImageLocation = (usize, usize);

/// Compares all images with each other.
pub fn find(data: &TrainingData, parts: &[CheckedPart]) -> Alike {
    let mut places: HashMap<u128, Vec<ImageLocation>> = HashMap::new();
    for (number, part) in parts.iter().enumerate() {
        for (index, look) in part.looks.iter().enumerate() {
            if let Some(content) = look.content {
                places.entry(content).or_default().push((number, index));
            }
        }
    }
    // Each list is in the order of places, and so is the list of them.
    let mut same: Vec<Vec<ImageLocation>> = places.into_values().filter(|places| places.len() > 1).collect();
    same.sort_unstable();

    let label = |&(part, index): &ImageLocation| {
        let dataset = parts[part].dataset.as_ref();
        (dataset.label(index), dataset.targets(index))
    };
    let has_two_labels = |places: &[ImageLocation]| places.iter().any(|place| label(place) != label(&places[0]));
    let has_two_parts = |places: &[ImageLocation]| places.iter().any(|place| place.0 != places[0].0);
    let item = |places: &Vec<ImageLocation>| {
        Item::of_files(places.iter().map(|&(part, index)| parts[part].name(index)).collect())
    };
    let of_classes = |places: &Vec<ImageLocation>| {
        let file = |&(part, index): &ImageLocation| {
            (parts[part].name(index), of_image(data, parts[part].dataset.as_ref(), index))
        };
        Item::of_classes(&places.iter().map(file).collect::<Vec<_>>())
    };
    let two_labels: Vec<Item> = same.iter().filter(|places| has_two_labels(places)).map(of_classes).collect();
    let two_parts: Vec<Item> = same.iter().filter(|places| has_two_parts(places)).map(item).collect();
    let others = same.iter().filter(|places| !has_two_labels(places) && !has_two_parts(places));
    let repeated: Vec<Item> = others.map(item).collect();
    let like = ["looks like", "look like"].map(|verb| {
        format!("outside training {verb} a training image (at most {} of 64 bits differ)", Nearest::WITHIN)
    });
    let two = match data.task {
        TaskKind::Classification => ["has two classes", "have two classes"],
        TaskKind::MultiLabel => ["has other labels elsewhere", "have other labels elsewhere"],
        TaskKind::Regression => ["has other numbers elsewhere", "have other numbers elsewhere"],
    };
    let image = |kind, said, items| Finding::counted(kind, "image", said, items);
    Alike {
        of_two_classes: image("of_two_classes", two, two_labels),
        in_two_parts: image("in_two_parts", ["is in two parts", "are in two parts"], two_parts),
        repeated: image("repeated", ["is more than once in a part", "are more than once in a part"], repeated),
        near: image("near", [&like[0], &like[1]], near(parts)),
    }
}

/// Images of other parts that look like a training image and are not the same file, each with the nearest.
fn near(parts: &[CheckedPart]) -> Vec<Item> {
    let Some((train, others)) = parts.split_first() else { return Vec::new() };
    let known = train.looks.iter().enumerate().filter_map(|(index, look)| Some((look.hash?, index)));
    let nearest = Nearest::new(known);
    let of_part = |part: &CheckedPart| {
        let looks = part.looks.iter().enumerate();
        let found = looks.filter_map(|(index, look)| {
            let like = nearest.find(look.hash.as_ref()?)?;
            (train.looks[like].content != look.content)
                .then(|| Item::of_files(vec![part.name(index), train.name(like)]))
        });
        found.collect::<Vec<_>>()
    };
    others.iter().flat_map(of_part).collect()
}
