//! Opens the data of a run, and makes all checks and gives all warnings that need no running ranks.

use std::path::Path;

use enmasse_comm::ShardMap;
use enmasse_data::DataError;
use enmasse_datasets::{DataKind, TaskKind};
use enmasse_graph::Target;
use enmasse_image::Crop;
use enmasse_models::Model;
use enmasse_train::{
    AllReduceAlgorithm, Compilation, FineTune, Objective, Preparation, ProgramConfig, Recomputation, ReducePrecision,
    RunConfig, RunPaths, SettingOrigins, TrainConfig, TrainingData,
};
use enmasse_wording::{counted, grouped, one_line};

use super::spec::RunSpec;
use crate::command_line::settings::{self, cores};
use crate::data::staging::{Copier, stage};
use crate::data::stand_in::{SHAPES_SIZE, shapes};
use crate::failure::{Failure, failed, usage};
use crate::output::{say, warn, warn_of_left_out};
use crate::pretrained;

/// The parts of a run, once they have been checked against each other.
pub struct Run {
    pub config: RunConfig,
    /// Where the settings come from.
    pub origins: SettingOrigins,
    pub model: Model,
    pub data: TrainingData,
}

impl Run {
    /// Opens the data, which `copier` copies if the run asks for it, and checks everything that needs no running ranks.
    pub fn open(spec: &RunSpec, copier: Copier) -> Result<Self, Failure> {
        let mut config = spec.config.clone();
        let resumed = spec.resumed();
        config.train = config.train.shortened();
        let model = enmasse_models::find(&config.train.model).map_err(Failure::usage)?;
        if let (Some(weights), None, None) = (&config.train.weights, &config.train.weights_file, resumed) {
            check_weights(weights)?;
        }
        if let Some(run) = config.train.data.as_deref().filter(|root| RunPaths::new(*root).is_resumable()) {
            let run = run.display();
            return Err(usage!("{run} is a run, not data: to resume it, pass --resume {run}"));
        }
        let (root, own_size) = match &config.train.data {
            Some(root) => (root.clone(), None),
            None => (shapes()?, Some(SHAPES_SIZE)),
        };
        config.train.size = config.train.size.or(own_size);
        let (read_from, left_out) = stage(&config, &root, copier)?;
        let mut data = match resumed.filter(|paths| paths.split().exists()) {
            Some(paths) => {
                let split = paths.read_split().map_err(Failure::error)?;
                TrainingData::from_record(&read_from, split, &config.train.open_options())?
            }
            None => TrainingData::open(&read_from, &config.train.open_options())?,
        };
        data.left_out.append(left_out);
        // A resumed run keeps its split, so repeating the option is not a mistake.
        data.has_parts &= resumed.is_none();
        check_classes(&config.train, &root, &data.classes)?;
        config.train.size = Some(config.train.image_size(data.kind.native_size()));
        if data.task != TaskKind::Classification {
            // Recipes have it for the head of classes; the trainer leaves it out too.
            config.train.fine_tune.take_if(|layers| *layers == FineTune::All);
        }
        config.train.epochs = config.train.epochs_of_run();
        let preparation = Preparation::new(&config.train, data.kind);
        let shards = config.train.shard_count(spec.world_size);
        let replicas = config.train.replicas(spec.world_size).map_err(Failure::usage)?;
        ShardMap::new(shards, replicas).map_err(|error| usage!("--shards {shards}: {error}"))?;
        let samples = data.train.len();
        let batch = config.train.batch_per_shard(shards);
        let global_batch = batch.saturating_mul(shards);
        if config.train.drop_last && samples < global_batch {
            return Err(Failure::error(DataError::TooFewSamples { samples, global_batch, shards, batch }));
        }
        let objective = Objective::default().of_data(&data, &config.train)?;
        let objective = objective.taught(&config.train, &preparation, Some(&data))?;
        let forward = |x, classes| model.forward(x, classes);
        // What a budget allows depends on the device, on which the trainer compiles.
        let recompute = match config.train.recompute {
            Recomputation::All => Recomputation::All,
            _ => Recomputation::No,
        };
        let train = &TrainConfig { recompute, ..config.train.clone() };
        let compilation = Compilation {
            config: train,
            preparation: &preparation,
            model: &forward,
            objective: &objective,
            outputs: data.classes.len(),
            target: &Target::default(),
        };
        compilation.plans(shards)?;
        compilation.parts(shards)?;
        Ok(Run { config, origins: spec.origins.clone(), model, data })
    }

    /// Warns of GPUs that stay idle, of what is left out of the data, of options that have no effect, and of more computing threads than
    /// cores.
    pub fn warn(&self, spec: &RunSpec) {
        settings::tell_of_idle_devices(&spec.layers);
        let Run { config, data, .. } = self;
        let size = config.train.image_size(data.kind.native_size());
        let is_padded = matches!(data.kind.crop(size), Crop::Padded { .. });
        let surroundings = data.surroundings(is_padded, spec.is_launched, spec.world_size == 1);
        warn_of_left_out(&data.left_out);
        data.warnings.iter().for_each(warn);
        unvalidated(&data.unvalidated_classes()).iter().for_each(warn);
        oversized(&config.train, config.train.shard_count(spec.world_size), data.train.len()).iter().for_each(warn);
        spec.layers.without_effect(&surroundings, |_| true).iter().for_each(warn);
        nothing_to_sum(&config.train, spec.world_size).iter().for_each(warn);
        too_many_threads(&config.program, spec.local_ranks, cores()).iter().for_each(warn);
        if spec.resumed().is_none() && config.train.data.is_some() && data.kind == DataKind::Folder {
            without_weights(&config.train, data.train.len()).iter().for_each(say);
        }
    }
}

/// The lines about settings of sums over ranks where there is one rank.
fn nothing_to_sum(config: &TrainConfig, ranks: usize) -> Vec<String> {
    let algorithm =
        (config.all_reduce != AllReduceAlgorithm::Tree).then(|| format!("all_reduce = {}", config.all_reduce));
    let narrow = config.reduce_precision != ReducePrecision::F32;
    let narrow = narrow.then(|| format!("reduce_precision = {}", config.reduce_precision));
    let idle = algorithm.into_iter().chain(narrow).filter(|_| ranks == 1);
    idle.map(|setting| format!("`{setting}` has no effect with one rank")).collect()
}

/// The line about weights that would help, for photographs that are few.
fn without_weights(config: &TrainConfig, samples: usize) -> Option<String> {
    const FEW: usize = 20_000;
    let known = pretrained::best(&config.model).filter(|_| samples < FEW && !config.begins_with_weights())?;
    let top1 = known.top1.map_or(String::new(), |top1| format!(" (ImageNet, {top1} % top-1 there)"));
    Some(format!(
        "weights:  none, so {} begins anew; --pretrained would begin with {}{top1}, which mostly is far more accurate \
         on so few images",
        config.model,
        known.full_name()
    ))
}

/// The warning of classes that no validation image has.
fn unvalidated(classes: &[&str]) -> Option<String> {
    const NAMED: usize = 5;
    let names = classes.iter().take(NAMED).map(|class| one_line(class)).collect::<Vec<_>>().join(", ");
    let more = match classes.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {} more", grouped(more as u64)),
    };
    let (verb, them) = if classes.len() == 1 { ("has", "it") } else { ("have", "them") };
    let count = counted(classes.len(), "class");
    (!classes.is_empty())
        .then(|| format!("{count} {verb} no image for validation, so nothing evaluates {them}: {names}{more}"))
}

/// The warning of a batch that no step can fill.
fn oversized(config: &TrainConfig, shards: usize, samples: usize) -> Option<String> {
    let batch = config.batch?;
    let most = samples.div_ceil(shards).max(1);
    (batch > most).then(|| {
        format!(
            "--batch {batch}: the global batch of {} is larger than the {} for training, and all its places are computed; \
             use --batch {most}",
            grouped(batch.saturating_mul(shards) as u64),
            counted(samples, "image"),
        )
    })
}

/// The warning if ranks that share some cores have more computing threads than these.
fn too_many_threads(config: &ProgramConfig, local_ranks: usize, cores: usize) -> Option<String> {
    let threads = (0..local_ranks).map(|rank| config.threads_of_rank(cores, rank, local_ranks));
    let threads = threads.fold(0, usize::saturating_add);
    (threads > cores).then(|| {
        let ranks = counted(local_ranks, "rank");
        let threads = counted(threads, "computing thread");
        format!("{ranks} with {threads} in all on {}: every step waits for the slowest", counted(cores, "core"))
    })
}

/// A mistyped path must not lead to training from random weights. This is checked before anything else is done.
fn check_weights(path: &Path) -> Result<(), Failure> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(()),
        Ok(_) => Err(failed!("--weights {}: is not a file", path.display())),
        Err(error) => Err(failed!("--weights {}: cannot be read: {error}", path.display())),
    }
}

/// The number of classes that the user expects must match the data.
fn check_classes(config: &TrainConfig, root: &Path, classes: &[String]) -> Result<(), Failure> {
    const SHOWN: usize = 10;
    match config.num_classes {
        Some(expected) if expected != classes.len() => {
            let more = if classes.len() > SHOWN { ", ..." } else { "" };
            Err(usage!(
                "--num-classes {expected}: {} has {} ({}{more})",
                root.display(),
                counted(classes.len(), "class"),
                classes.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", "),
            ))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use enmasse_train::Pretrained;

    use super::*;

    #[test]
    fn classes_without_a_validation_image_are_named() {
        let check = |classes: usize, expected: Option<&str>| {
            let names: Vec<String> = (0..classes).map(|class| format!("c{class}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            assert_eq!(unvalidated(&names).as_deref(), expected);
        };
        check(0, None);
        check(1, Some("1 class has no image for validation, so nothing evaluates it: c0"));
        check(2, Some("2 classes have no image for validation, so nothing evaluates them: c0, c1"));
        let many =
            "1,005 classes have no image for validation, so nothing evaluates them: c0, c1, c2, c3, c4 and 1,000 more";
        check(1005, Some(many));
    }

    #[test]
    fn few_images_are_told_of_weights() {
        let check = |model: &str, pretrained: Pretrained, samples: usize, expected: Option<&str>| {
            let config = TrainConfig { model: model.to_owned(), pretrained, ..TrainConfig::default() };
            assert_eq!(without_weights(&config, samples).as_deref(), expected, "{model} {samples}");
        };
        let line = "weights:  none, so resnet50 begins anew; --pretrained would begin with resnet50.IMAGENET1K_V2 (ImageNet, \
                    80.858 % top-1 there), which mostly is far more accurate on so few images";
        check("resnet50", Pretrained::No, 19_999, Some(line));
        check("resnet50", Pretrained::No, 20_000, None);
        check("resnet50", Pretrained::Best, 100, None);
        check("mlp", Pretrained::No, 100, None);
    }

    #[test]
    fn more_threads_than_cores_are_a_warning() {
        let check = |threads: Option<usize>, ranks: usize, cores: usize, expected: Option<&str>| {
            let config = ProgramConfig { threads, ..ProgramConfig::default() };
            let expected = expected.map(|text| format!("{text}: every step waits for the slowest"));
            assert_eq!(too_many_threads(&config, ranks, cores), expected, "{threads:?} {ranks} {cores}");
        };
        check(None, 2, 2, None);
        check(None, 1, 8, None);
        check(None, 5, 2, Some("5 ranks with 5 computing threads in all on 2 cores"));
        check(Some(4), 1, 4, None);
        check(Some(5), 1, 4, Some("1 rank with 5 computing threads in all on 4 cores"));
        check(Some(2), 2, 3, Some("2 ranks with 4 computing threads in all on 3 cores"));
    }
}
