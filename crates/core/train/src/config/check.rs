//! Values that are wrong, alone or together.

use super::{
    AllReduceAlgorithm, Balance, ConfigError, FineTune, MetricName, OptimizerKind, Precision, RankKind, Recomputation,
    ReducePrecision, RunConfig, SETTINGS, ScheduleKind, Setting, SettingSource, Shuffling, StrategyKind, SumOrder,
    TrainConfig,
};

impl TrainConfig {
    /// Checks each value, and their combination.
    ///
    /// # Errors
    /// The first value that is out of range or does not go with another.
    pub fn check(&self) -> Result<(), ConfigError> {
        RunConfig { train: self.clone(), ..RunConfig::default() }.check()
    }
}

impl RunConfig {
    /// Checks each value, and their combination. [`LayeredConfig::finish`](super::LayeredConfig::finish) does the same and names the
    /// source of a wrong value.
    ///
    /// # Errors
    /// The first value that is out of range or does not go with another.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_with(|_| SettingSource::Default)
    }

    /// Checks each value, and their combination. A wrong value is named with its source.
    pub(super) fn check_with(&self, source: impl Fn(&Setting) -> SettingSource) -> Result<(), ConfigError> {
        let refuse = |setting: &Setting, reason: String| {
            let text = self.get(setting.name).unwrap_or_default();
            Err(ConfigError::value(setting, &text, &source(setting), reason))
        };
        for setting in SETTINGS {
            if let Some(reason) = self.inspect(setting).fault {
                return refuse(setting, reason);
            }
        }
        let RunConfig { train, program } = self;
        let together = |name: &str, wrong: bool, reason: String| match Setting::find(name) {
            Some(setting) if wrong => refuse(setting, reason),
            _ => Ok(()),
        };
        let both = train.pretrained.is_on() && train.weights.is_some();
        together("weights", both, "`pretrained` names weights too; use one of them".to_owned())?;
        let both = train.ema.is_some() && train.lookahead.is_some();
        together("lookahead", both, "`ema` averages the weights too; use one of them".to_owned())?;
        together("tune", train.tune && train.exact, "`exact` leaves nothing to choose; use one of them".to_owned())?;
        let tuned = train.fine_tune.is_some();
        together(
            "fine_tune",
            tuned && !train.begins_with_weights(),
            "needs `weights` or `pretrained` to begin with".to_owned(),
        )?;
        let reason = "already says which layers are trained; leave out `freeze_layers`".to_owned();
        together("fine_tune", tuned && train.freeze_layers, reason)?;
        let both = train.shards.is_some() && train.accumulate > 1;
        together("accumulate", both, "`shards` already sets the number of shards; use one of them".to_owned())?;
        let nesterov = train.nesterov && train.optimizer == OptimizerKind::Sgd && train.momentum == 0.0;
        together("nesterov", nesterov, "needs a `momentum` above 0".to_owned())?;
        let blocks = train.shuffle == Some(Shuffling::Block);
        let balanced = blocks && train.balance == Balance::Classes;
        together("shuffle", balanced, "`balance = classes` draws from all samples; use one of them".to_owned())?;
        let repeated = blocks && train.repeat_augment > 1;
        together("shuffle", repeated, "`repeat_augment` draws from all samples; use one of them".to_owned())?;
        let optimizer = train.chosen_optimizer();
        let named = if train.opt_arg.is_empty() { "optimizer" } else { "opt_arg" };
        let unknown = optimizer.is_err() && train.optimizer != OptimizerKind::Own;
        together(named, unknown, optimizer.clone().err().unwrap_or_default())?;
        let adapts = optimizer.is_ok_and(|optimizer| optimizer.adapts());
        let decay = train.no_decay_norm_bias && train.weight_decay == 0.0 && !adapts;
        together("no_decay_norm_bias", decay, "needs a `weight_decay` above 0".to_owned())?;
        let narrow = train.reduce_precision != ReducePrecision::F32;
        let both = narrow && program.sum == SumOrder::Tree;
        together("reduce_precision", both, "`sum = tree` sums f32 alone; use one of them".to_owned())?;
        let dp = train.strategy == StrategyKind::Dp;
        together("strategy", dp && train.sync_bn, "`sync_bn` needs `strategy = ddp`, as in PyTorch".to_owned())?;
        together("sum", dp && program.sum == SumOrder::Tree, "needs `strategy = ddp`".to_owned())?;
        let named = train.all_reduce != AllReduceAlgorithm::Tree;
        let is_ddp = train.strategy == StrategyKind::Ddp;
        together("all_reduce", !is_ddp && named, "needs `strategy = ddp`, in which all ranks get all sums".to_owned())?;
        together("all_reduce", named && !train.stages.is_empty(), "needs a model without `stages`".to_owned())?;
        let is_cut = train.tensor_parallel > 1;
        let reason = "needs a model without `tensor_parallel`";
        together("all_reduce", named && is_cut, reason.to_owned())?;
        together("reduce_precision", narrow && is_cut, reason.to_owned())?;
        let reason = "needs `strategy = ddp`, in which all ranks get all sums";
        together("reduce_precision", !is_ddp && narrow, reason.to_owned())?;
        together("reduce_precision", named && narrow, "needs `all_reduce = tree`".to_owned())?;
        let reason = "needs a model without `stages`";
        together("reduce_precision", narrow && !train.stages.is_empty(), reason.to_owned())?;
        let processes =
            dp && train.ranks == RankKind::Process && Setting::find("ranks").map(&source).is_some_and(is_given);
        let reason = "has ranks that are threads of one process; leave out `ranks = process`, or use `strategy = ddp`";
        together("strategy", processes, reason.to_owned())?;
        check_stages(train, &together)?;
        check_tensor_parallel(train, &together)?;
        let other = train.resume.run().zip(train.out.as_deref()).filter(|(run, out)| run != out);
        let reason = other.map_or(String::new(), |(_, out)| {
            format!("the run goes on in its own folder; leave out `out = {}`", out.display())
        });
        together("resume", other.is_some(), reason)?;
        let modes = [
            ("fast_dev_run", train.fast_dev_run.0.is_some()),
            ("find_lr", train.find_lr),
            ("find_batch", train.find_batch),
        ];
        let mut modes = modes.into_iter().filter_map(|(name, is_on)| is_on.then_some(name));
        if let Some(mode) = modes.next() {
            let reason = format!("`{mode}` is for the beginning of a run, and keeps nothing; use one of them");
            together("resume", train.resume.is_on(), reason)?;
            let other = modes.next().unwrap_or_default();
            together(other, true, format!("`{mode}` is another search or trial; use one of them"))?;
        }
        let budget = train.find_batch && matches!(train.recompute, Recomputation::Within(_));
        let reason = "`find_batch` fits batches into what is free; use `recompute = auto`".to_owned();
        together("recompute", budget, reason)?;
        let wrong = train.channels.is_some_and(|channels| ![1, 3].contains(&channels));
        together("channels", wrong, "must be 1 or 3".to_owned())?;
        for (name, list) in [("mean", &train.mean), ("std", &train.std)] {
            let Some(list) = list else { continue };
            let wrong = ![1, 3].contains(&list.len());
            together(name, wrong, "must be 1 number, or 3 separated by commas".to_owned())?;
            let several = train.channels == Some(1) && list.len() > 1;
            together(name, several, "`channels = 1` takes one number; use one of them".to_owned())?;
        }
        for (name, range) in [("scale", &train.scale), ("ratio", &train.ratio)] {
            let wrong = range.as_deref().is_some_and(|range| !matches!(range, [min, max] if min <= max));
            together(name, wrong, "must be 2 numbers separated by a comma, the smaller one first".to_owned())?;
        }
        let jitter = train.color_jitter.as_ref();
        let count = jitter.is_some_and(|numbers| ![1, 3, 4].contains(&numbers.len()));
        together("color_jitter", count, "must be 1, 3 or 4 numbers separated by commas".to_owned())?;
        let hue = jitter.is_some_and(|numbers| numbers.get(3).is_some_and(|hue| *hue > 0.5));
        together("color_jitter", hue, "the hue, its last number, must be at most 0.5".to_owned())?;
        let cycle = train.schedule == ScheduleKind::OneCycle && train.warmup_epochs > 0.0;
        together(
            "warmup_epochs",
            cycle,
            "`schedule = one-cycle` rises by itself, by `pct_start`; use one of them".to_owned(),
        )?;
        let epochs = train.epochs - train.epochs_of_head();
        let warmup = train.warmup_epochs > epochs as f64 && train.fine_tune != Some(FineTune::Head);
        together("warmup_epochs", warmup, format!("must not be more than the {epochs} epochs of the run"))
    }
}

/// Refuses settings that need all stages of a model at once.
fn check_stages(
    train: &TrainConfig,
    together: &impl Fn(&str, bool, String) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    let all = [
        ("sync_bn", train.sync_bn, "leave out one of them"),
        ("strategy", train.strategy != StrategyKind::Ddp, "use `strategy = ddp`"),
        ("clip_norm", train.clip_norm.is_some(), "leave out one of them"),
        ("metrics", train.metrics.contains(&MetricName::GradientNorm), "leave out `gradient_norm`"),
        ("ema", train.ema.is_some(), "leave out one of them"),
        ("lookahead", train.lookahead.is_some(), "leave out one of them"),
        ("precision", train.precision == Precision::F16, "use `precision = bf16` or f32"),
        ("recompute", train.recompute != Recomputation::No, "leave out one of them"),
        ("layer_decay", train.layer_decay != 1.0, "leave out one of them"),
        ("head_lr_mult", train.head_lr_mult != 1.0, "leave out one of them"),
        ("teacher", train.teacher.is_some(), "leave out one of them"),
        ("fine_tune", train.fine_tune.is_some(), "leave out one of them"),
        ("tune", train.tune, "leave out one of them"),
        ("trace_steps", train.trace_steps.is_some(), "leave out one of them"),
        ("find_lr", train.find_lr, "search without `stages`"),
        ("find_batch", train.find_batch, "search without `stages`"),
    ];
    let is_cut = !train.stages.is_empty();
    all.into_iter().try_for_each(|(name, is_given, remedy)| {
        together(name, is_cut && is_given, format!("has no meaning for a model in `stages`; {remedy}"))
    })
}

/// Refuses settings that need whole layers, or that do not work with parts of them.
fn check_tensor_parallel(
    train: &TrainConfig,
    together: &impl Fn(&str, bool, String) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    let refused = [
        ("stages", !train.stages.is_empty(), "use one of them"),
        ("sync_bn", train.sync_bn, "leave out one of them"),
        ("strategy", train.strategy != StrategyKind::Ddp, "use `strategy = ddp`"),
        ("clip_norm", train.clip_norm.is_some(), "leave out one of them"),
        ("metrics", train.metrics.contains(&MetricName::GradientNorm), "leave out `gradient_norm`"),
        ("optimizer", train.optimizer == OptimizerKind::Lars, "use `optimizer = sgd` or adamw"),
        ("ema", train.ema.is_some(), "leave out one of them"),
        ("lookahead", train.lookahead.is_some(), "leave out one of them"),
        ("precision", train.precision == Precision::F16, "use `precision = bf16` or f32"),
        ("recompute", train.recompute != Recomputation::No, "leave out one of them"),
        ("teacher", train.teacher.is_some(), "leave out one of them"),
        ("fine_tune", train.fine_tune.is_some(), "leave out one of them"),
        ("tune", train.tune, "leave out one of them"),
        ("trace_steps", train.trace_steps.is_some(), "leave out one of them"),
        ("find_lr", train.find_lr, "search without `tensor_parallel`"),
        ("find_batch", train.find_batch, "search without `tensor_parallel`"),
    ];
    let is_cut = train.tensor_parallel > 1;
    refused.into_iter().try_for_each(|(name, is_given, remedy)| {
        together(name, is_cut && is_given, format!("does not work with layers cut by `tensor_parallel`; {remedy}"))
    })
}

/// Whether a value comes from the user, for this run.
fn is_given(source: SettingSource) -> bool {
    matches!(source, SettingSource::File(_) | SettingSource::Environment | SettingSource::CommandLine)
}
