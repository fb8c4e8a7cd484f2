//! For fuzzing: each reader of configurations and of a run's files keeps its promises for any bytes. Compiled with
//! `--cfg fuzzing` alone.

use std::collections::BTreeMap;

use enmasse_graph::{Choices, compile_evaluation};
use enmasse_image::{Image, Resizer};

use crate::bad_samples::{from_lines, to_lines};
use crate::{Checkpoint, CheckpointMeta, Classifier, RunConfig};

/// Longest side of an image that is prepared.
const MAX_SIZE: usize = 2048;

/// A configuration reads back as it was written, and a message about one is a line.
pub fn configuration(bytes: &[u8]) {
    match RunConfig::from_toml(&String::from_utf8_lossy(bytes)) {
        Ok(config) => {
            let text = config.to_toml();
            let again = RunConfig::from_toml(&text).expect("it wrote the text itself");
            assert_eq!(again.to_toml(), text);
            let _ = config.check();
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// The metadata of a checkpoint, `KEY=VALUE` between zero bytes, read back as they were written.
pub fn checkpoint(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let map = text.split('\0').filter_map(|entry| entry.split_once('='));
    let map: BTreeMap<_, _> = map.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    if let Ok(meta) = CheckpointMeta::from_map(&map) {
        let written = meta.to_map();
        let again = CheckpointMeta::from_map(&written).expect("it wrote the map itself");
        assert_eq!(again.to_map(), written);
    }
}

/// A classifier of the same metadata, without tensors, compiles for any of its models, or is refused in one line. Then it prepares
/// images.
pub fn classifier(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let map = text.split('\0').filter_map(|entry| entry.split_once('='));
    let map: BTreeMap<_, _> = map.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let Ok(meta) = CheckpointMeta::from_map(&map) else { return };
    let Ok(classifier) = Classifier::of(Checkpoint { meta, tensors: Vec::new() }, "input".to_owned()) else { return };
    let Ok(model) = enmasse_models::find(&classifier.model) else { return };
    let classes = classifier.classes.len();
    match compile_evaluation(&|x| model.forward(x, classes), &classifier.options(1)) {
        Ok(_) => {
            let transform = &classifier.transform;
            let image = Image::new(3, 2, (0..18).collect()).expect("its length is right");
            if transform.size <= MAX_SIZE {
                let mut fitted = vec![0; transform.size * transform.size * 3];
                transform.fit(&image, &mut Resizer::new(), &mut fitted);
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// Lists of choices and of unreadable images read back as they were written.
pub fn lists(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(choices) = text.parse::<Choices>() {
        assert_eq!(choices.to_string().parse::<Choices>().as_ref(), Ok(&choices));
    }
    let lines = to_lines(&from_lines(&text));
    assert_eq!(to_lines(&from_lines(&lines)), lines);
}
