//! An evaluation on its ranks.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use enmasse_data::{DecodePool, EvalLoader, Sharding};
use enmasse_datasets::TaskKind;
use enmasse_image::EvalCrop;
use enmasse_system::files::write_whole;
use enmasse_train::{
    EpochPosition, Evaluation, Kept, OnBadSample, RunConfig, Scores, compare_devices, compare_evaluated,
    evaluate_keeping,
};

use super::EVALUATION;
use super::figures::Figures;
use super::images::{Found, Part};
use super::report::Report;
use super::values::{ValuesReport, rows_of};
use crate::command_line::arguments::{self, DECIDED, crops_flag};
use crate::command_line::settings;
use crate::commands::weights::{PREPARATION, Weights};
use crate::failure::{Failure, failed};
use crate::output::{Output, warn, warn_of_left_out};
use crate::ranks::Rank;
use crate::report::{Audience, Reporter};

/// Mistakes that `--mistakes` lists on the screen, unless it says how many.
const MISTAKES: usize = 20;

/// What is made of the results.
pub struct Shown {
    /// Where to draw the confusion matrix.
    pub confusion: Option<PathBuf>,
    /// Where to draw the curves of the classes.
    pub curves: Option<PathBuf>,
    /// Where to draw the reliability diagram.
    pub reliability: Option<PathBuf>,
    /// Whether to list mistakes, and how many.
    pub mistakes: Option<Option<usize>>,
    /// Whether to print a table for other programs.
    pub csv: bool,
}

impl Shown {
    /// The flags of a rank.
    fn flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = Vec::new();
        let charts =
            [("--confusion", &self.confusion), ("--curves", &self.curves), ("--reliability", &self.reliability)];
        for (flag, path) in charts {
            flags.extend(path.iter().flat_map(|path| [flag.into(), path.into()]));
        }
        if self.csv {
            flags.push("--csv".into());
        }
        flags.extend(self.mistakes.map(|count| match count {
            Some(count) => format!("--mistakes={count}").into(),
            None => "--mistakes".into(),
        }));
        flags
    }
}

/// An evaluation: the weights, the images, the settings.
pub struct Task {
    pub weights: Weights,
    pub images: Found,
    /// The part that the user named.
    pub asked: Part,
    pub config: RunConfig,
    pub shown: Shown,
    /// Those by which each image is evaluated.
    pub crops: Vec<EvalCrop>,
    /// Whether the images are those on which the run of the weights validated.
    pub validates_run: bool,
}

impl Task {
    /// One rank of the evaluation; the first one prints.
    pub fn evaluate(&self, rank: &Rank) -> Result<(), Failure> {
        let Task { weights, images, config, shown, crops, .. } = self;
        if rank.is_first() {
            weights.report();
            warn_of_left_out(&images.left_out);
            images.warnings.iter().for_each(warn);
        }
        let batch = config.train.batch_per_shard(rank.world_size());
        let data = &images.data;
        let group = rank.group.as_ref();
        let shard = group.map_or(0, |group| group.rank());
        let sharding = Sharding::one(shard, rank.world_size(), batch);
        let pool = DecodePool::new(rank.loader_threads(&config.train)).map_err(Failure::error)?;
        let pool = pool.timeout(config.train.timeout(rank.world_size()));
        let transform = weights.classifier.transform.clone();
        let loader = EvalLoader::new(&pool, data.clone(), transform, sharding).map_err(Failure::error)?;
        let loader = loader.skip_unreadable(config.train.bad_samples() != OnBadSample::Error);
        let loader = loader.cropped(crops).map_err(Failure::error)?;
        let task = weights.classifier.task.as_ref();
        let kind = weights.classifier.kind();
        let has_classes = kind == TaskKind::Classification;
        let loader = loader.with_targets(task.target().values());
        let device = rank.device(config)?;
        if let Some(group) = group {
            compare_devices(group, device.as_ref(), config.program.share_devices)?;
        }
        let forward = |x, classes| weights.model.forward(x, classes);
        // Evaluation has no collectives: the group only adds up the sums at its end.
        let mut program = weights.classifier.program(&forward, device.as_ref(), batch)?;
        if let Some(group) = group {
            compare_evaluated(group, program.as_mut(), &images.classes, data.as_ref())?;
        }
        let audience = match rank.is_first() {
            true => Audience::Everybody(Output::new(config.program.json)),
            false => Audience::Nobody,
        };
        let mut reporter = Reporter::new(audience);
        let position = EpochPosition::default();
        let kept = Kept { mistakes: shown.mistakes.is_some(), scores: true };
        let total = data.len() as u64;
        let mut found = evaluate_keeping(program.as_mut(), &loader, total, group, position, kept, &mut reporter)?;
        if !rank.is_first() {
            return reporter.finish(|_| ());
        }
        if !has_classes {
            if found.scores.is_none() {
                warn(format_args!(
                    "there are no figures but the loss: more than {} outputs are not kept",
                    Scores::MAX_VALUES
                ));
            }
            let figures = found.scores.as_ref().map(|scores| scores.figures(task, data.as_ref()));
            found.metrics.extend(figures.into_iter().flatten());
            let averaged = weights.classifier.averaged;
            let rows = found.scores.as_ref().map(|scores| rows_of(scores, data.as_ref(), &images.classes, task, kind));
            let rows = rows.unwrap_or_default();
            let kept = self.keep_thresholds(&rows, found.samples);
            let report = ValuesReport { found: &found, images, kind, averaged, kept, rows };
            return reporter.finish(|output| report.print(output, shown.csv));
        }
        if let Some(path) = &shown.confusion {
            self.draw(path, &found)?;
        }
        let figures = Figures::of(&found, images.part);
        self.draw_figures(&found, &figures)?;
        let kept = self.keep_temperature(&found, &figures);
        let everything = config.program.json || shown.csv;
        let mistakes = shown.mistakes.map(|count| count.unwrap_or(if everything { usize::MAX } else { MISTAKES }));
        let averaged = weights.classifier.averaged;
        let report = Report { found: &found, figures: &figures, kept, images, mistakes, averaged, crops: crops.len() };
        reporter.finish(|output| report.print(output, shown.csv))
    }

    /// Writes the confusion matrix.
    fn draw(&self, path: &Path, found: &Evaluation) -> Result<(), Failure> {
        let none = || failed!("--confusion: more than 1024 classes make too large a matrix");
        let title = format!("confusion matrix, {}", self.images.part.describe());
        let confusion = found.confusion.as_ref().ok_or_else(none)?;
        let svg = confusion.draw(&title, &self.images.classes)?;
        write_whole(path, |file| file.write_all(svg.as_bytes())).map_err(Failure::error)
    }

    /// The arguments of a rank.
    pub fn command_line(&self, root: &Path) -> Vec<OsString> {
        // Values from a run or a checkpoint must not be passed again.
        let is_own = |name| !self.weights.is_bare && (name == "model" || PREPARATION.contains(&name));
        let passed = arguments::named(EVALUATION).filter(|setting| !is_own(setting.name));
        let mut arguments = vec!["eval".into(), format!("--{DECIDED}").into()];
        arguments.extend(settings::rank_flags(&self.config, passed));
        arguments.push(format!("--split={}", self.asked.word()).into());
        arguments.push(crops_flag(&self.crops).into());
        arguments.extend(self.shown.flags());
        arguments.extend(["--".into(), self.weights.path.as_os_str().to_owned(), root.into()]);
        arguments
    }
}
