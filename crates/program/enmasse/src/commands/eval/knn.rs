//! `eval --knn K`: how well the nearest training images tell the class of those for validation, without a classifier.

use enmasse_datasets::TaskKind;
use enmasse_train::TrainingData;
use enmasse_wording::counted;
use serde_json::json;

use super::Request;
use crate::commands::embed::features;
use crate::failure::{Failure, usage};
use crate::output::{Output, warn, warn_of_left_out};
use crate::report::percent;

/// Evaluates the parts of the data: of the run's own those of its split.
pub fn evaluate(request: Request, neighbors: usize) -> Result<(), Failure> {
    let Request { weights, selection, config, .. } = request;
    let data = match selection.is_own {
        true => selection.in_parts(&weights, &selection.root)?,
        false => TrainingData::open(&selection.root, &selection.options)?,
    };
    if data.task != TaskKind::Classification {
        return Err(usage!(
            "--knn: compares classes of images, and these data have a {} task; leave it out",
            data.task
        ));
    }
    weights.report();
    warn_of_left_out(&data.left_out);
    data.warnings.iter().for_each(warn);
    let known = features(&weights, &config, &data.train, None)?;
    let asked = features(&weights, &config, &data.validation, None)?;
    let (among, images) = (known.rows().count(), asked.rows().count());
    let accuracy = asked.accuracy_by_neighbors(&known, neighbors);
    let mut output = Output::new(config.program.json);
    output.json(json!({
        "event": "knn", "accuracy": accuracy, "neighbors": neighbors, "samples": images, "among": among,
        "width": asked.width
    }));
    output.text(format_args!(
        "validation part, {}: accuracy {} by the {} of each among {}, by the cosine of {} features",
        counted(images, "image"),
        percent(accuracy),
        counted(neighbors, "nearest neighbour"),
        counted(among, "training image"),
        asked.width
    ));
    output.finish()
}
