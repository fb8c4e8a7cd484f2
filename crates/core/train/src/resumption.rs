//! Resuming: what a run does otherwise from here on, and what it cannot do otherwise.

use std::fmt;

use enmasse_wording::counted;

use crate::{CheckpointMeta, LrSchedule, Position, RunConfig, SETTINGS, SamplerKind, ScheduleKind, Scope, TrainConfig};

/// Classes that an error lists by name.
const SHOWN: usize = 5;

/// A setting that a resumed run changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name.
    pub name: &'static str,
    /// The value so far; none where the program chose.
    pub from: Option<String>,
    /// The value from here on.
    pub to: Option<String>,
}

/// `lr: 0.1 -> 0.01`
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<String>| match value {
            Some(value) if !value.is_empty() => value.clone(),
            _ => "none".to_owned(),
        };
        write!(f, "{}: {} -> {}", self.name, text(&self.from), text(&self.to))
    }
}

/// The settings that differ from those that a run was saved with, as far as they last for the run. A configuration that this
/// version cannot read, changes nothing.
pub fn changes(saved: &CheckpointMeta, config: &RunConfig) -> Vec<Change> {
    let Ok(earlier) = RunConfig::from_toml(&saved.configuration) else { return Vec::new() };
    let lasting = SETTINGS.iter().filter(|setting| setting.scope == Scope::Run);
    let change = lasting.map(|setting| {
        let (from, to) = (earlier.get(setting.name), config.get(setting.name));
        Change { name: setting.name, from, to }
    });
    change.filter(|change| change.from != change.to).collect()
}

/// What a schedule does that is stretched over another number of epochs, by the `changes` that a run resumed at `position` makes.
pub(crate) fn rescheduled(
    changes: &[Change],
    config: &TrainConfig,
    shards: usize,
    position: &Position,
) -> Option<String> {
    let epochs = changes.iter().find(|change| change.name == "epochs")?;
    let curve = match config.schedule {
        ScheduleKind::Cosine | ScheduleKind::CosineAnnealing => "cosine",
        ScheduleKind::OneCycle => "cycle",
        ScheduleKind::Polynomial => "polynomial",
        _ => return None,
    };
    let mut earlier = config.clone();
    for Change { name, from, .. } in changes {
        from.iter().try_for_each(|from| earlier.set(name, from)).ok()?;
    }
    if earlier.schedule == ScheduleKind::Own {
        return None;
    }
    // The epoch of the last step so far.
    let last = if position.samples == 0 { position.epoch.checked_sub(1)? } else { position.epoch };
    let rate = |config: &TrainConfig, epoch: u64| short(LrSchedule::new(config, shards).learning_rate(epoch as f64));
    let before = rate(&earlier, last);
    let now = rate(config, position.epoch);
    let from = epochs.from.as_deref()?;
    Some(format!("the {curve} now spans {} epochs, not {from}: lr goes from {before} to {now}", config.epochs))
}

/// A rate in three digits: `0.03`, `0.0299`, `3e-5`.
pub fn short(rate: f64) -> String {
    let rounded: f64 = format!("{rate:.2e}").parse().unwrap_or(rate);
    if rounded == 0.0 || rounded >= 1e-3 { rounded.to_string() } else { format!("{rounded:e}") }
}

/// Why a run cannot go on as `now`: the end of a sentence about it, with what it was and what it would be.
pub fn contradiction(saved: &CheckpointMeta, now: &CheckpointMeta) -> Option<String> {
    if saved.model != now.model {
        return Some(format!("trains the model {}, not {}", saved.model, now.model));
    }
    if saved.target != now.target {
        return Some(format!("learns {} of each image, not {}", saved.target, now.target));
    }
    if saved.classes != now.classes {
        return Some(format!("has {}, and the data have {}", listed(&saved.classes), listed(&now.classes)));
    }
    if saved.split != now.split {
        return Some("is a run with other images than its split.json or the data have now".to_owned());
    }
    match (&saved.teacher, &now.teacher) {
        (None, Some(_)) => return Some("began without a teacher".to_owned()),
        (Some(saved), Some(now)) if saved != now => {
            return Some("learns from a teacher with other weights than `teacher` has now".to_owned());
        }
        _ => {}
    }
    // The position in an epoch counts samples in the order that the seed gives them, or a sampler.
    let order = |meta: &CheckpointMeta| match RunConfig::from_toml(&meta.configuration) {
        Ok(config) if config.train.sampler == SamplerKind::Own => "sampler = own".to_owned(),
        _ => format!("seed = {}", meta.seed),
    };
    let is_within = saved.samples_consumed > 0;
    let saved = order(saved);
    let now = order(now);
    (is_within && saved != now)
        .then(|| format!("is within an epoch in the order of `{saved}`, and takes `{now}` only where an epoch begins"))
}

fn listed(classes: &[String]) -> String {
    let more = if classes.len() > SHOWN { ", ..." } else { "" };
    let names: Vec<&str> = classes.iter().take(SHOWN).map(String::as_str).collect();
    format!("{} ({}{more})", counted(classes.len(), "class"), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TargetKind;

    #[test]
    fn changes_that_last_are_listed() {
        let check = |before: &[(&str, &str)], now: &[(&str, &str)], expected: &[&str]| {
            let config = |pairs: &[(&str, &str)]| {
                let mut config = RunConfig::default();
                pairs.iter().for_each(|(name, value)| config.set(name, value).unwrap());
                config
            };
            let saved = CheckpointMeta { configuration: config(before).to_toml(), ..CheckpointMeta::default() };
            let found = changes(&saved, &config(now));
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
        };
        check(&[], &[], &[]);
        check(&[("lr", "0.1")], &[("lr", "0.01"), ("epochs", "20")], &["epochs: 10 -> 20", "lr: 0.1 -> 0.01"]);
        check(&[("batch", "8")], &[("freeze", "a,b")], &["freeze: none -> a,b", "batch: 8 -> none"]);
        let betas = [("optimizer", "adamw"), ("opt_arg", "betas=0.9,0.95")];
        let epsilon = [("optimizer", "adamw"), ("opt_arg", "betas=0.9,0.95,epsilon=1e-6")];
        check(&betas, &epsilon, &["opt_arg: betas=0.9,0.95 -> betas=0.9,0.95,epsilon=1e-6"]);
        // They end with the invocation.
        check(&[("json", "true"), ("max_steps", "5")], &[("resume", "true"), ("out", "a")], &[]);
    }

    /// Regression test: nobody said that the rate rises again.
    #[test]
    fn a_cosine_over_more_epochs_is_told() {
        let check = |now: &[(&str, &str)], epoch: u64, samples: u64, expected: Option<&str>| {
            let saved = CheckpointMeta { configuration: RunConfig::default().to_toml(), ..CheckpointMeta::default() };
            let mut config = RunConfig::default();
            now.iter().for_each(|(name, value)| config.set(name, value).unwrap());
            let position = Position { epoch, samples, ..Position::default() };
            assert_eq!(
                rescheduled(&changes(&saved, &config), &config.train, 1, &position).as_deref(),
                expected,
                "{now:?}"
            );
        };
        let spans = "the cosine now spans 20 epochs, not 10: lr goes from 0.00103 to 0.0152";
        check(&[("epochs", "20")], 10, 0, Some(spans));
        let spans = "the cosine now spans 20 epochs, not 10: lr goes from 0.0152 to 0.0257";
        check(&[("epochs", "20")], 5, 9, Some(spans));
        let spans = "the cosine now spans 5 epochs, not 10: lr goes from 0.0239 to 2.09e-4";
        check(&[("epochs", "5"), ("lr", "0.002")], 4, 0, Some(spans));
        check(&[("lr", "0.002")], 5, 0, None);
        check(&[("epochs", "20"), ("schedule", "constant")], 5, 0, None);
        check(&[("epochs", "20"), ("schedule", "step")], 5, 0, None);
    }

    #[test]
    fn contradictions_name_both_sides() {
        let classes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let saved = CheckpointMeta { model: "mlp".into(), classes: classes(&["a", "b"]), ..CheckpointMeta::default() };
        let check = |now: CheckpointMeta, expected: Option<&str>| {
            assert_eq!(contradiction(&saved, &now).as_deref(), expected);
        };
        check(saved.clone(), None);
        let model = CheckpointMeta { model: "lenet".into(), ..saved.clone() };
        check(model, Some("trains the model mlp, not lenet"));
        let six = CheckpointMeta { classes: classes(&["a", "b", "c", "d", "e", "f"]), ..saved.clone() };
        check(six, Some("has 2 classes (a, b), and the data have 6 classes (a, b, c, d, e, ...)"));
        let values = CheckpointMeta { target: TargetKind::Values(2), ..saved.clone() };
        check(values, Some("learns classes of each image, not 2 values"));
        let taught = |teacher: &str| CheckpointMeta { teacher: Some(teacher.into()), ..saved.clone() };
        check(taught("a"), Some("began without a teacher"));
        assert_eq!(contradiction(&taught("a"), &taught("a")), None);
        assert_eq!(contradiction(&taught("a"), &saved), None, "with `distillation_alpha = 0`");
        let other = contradiction(&taught("a"), &taught("b"));
        assert_eq!(other.as_deref(), Some("learns from a teacher with other weights than `teacher` has now"));
        let split = CheckpointMeta { split: "x".into(), ..saved.clone() };
        check(split, Some("is a run with other images than its split.json or the data have now"));
    }

    /// Regression test: the rest of the epoch repeated some samples and left out others.
    #[test]
    fn another_seed_has_another_order_of_the_epoch() {
        let check = |samples_consumed: u64, seed: u64, expected: Option<&str>| {
            let saved = CheckpointMeta { seed: 3, samples_consumed, ..CheckpointMeta::default() };
            let now = CheckpointMeta { seed, ..CheckpointMeta::default() };
            assert_eq!(contradiction(&saved, &now).as_deref(), expected, "{samples_consumed} {seed}");
        };
        check(0, 3, None);
        check(0, 4, None);
        check(6, 3, None);
        check(
            6,
            4,
            Some("is within an epoch in the order of `seed = 3`, and takes `seed = 4` only where an epoch begins"),
        );
    }
}
