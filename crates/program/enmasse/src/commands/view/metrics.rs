//! The last figures of all runs as Prometheus reads them.

use std::sync::Arc;

use super::run::{Seen, State};

type Value = fn(&Seen) -> Option<f64>;

/// The values: name, what it is, and where it comes from.
const VALUES: [(&str, &str, Value); 13] = [
    ("running", "1 while the run trains", |run| Some(f64::from(u8::from(run.state == State::Running)))),
    ("epoch", "epochs that have ended", |run| Some(run.epochs as f64)),
    ("epochs", "epochs that were asked for", |run| run.asked().map(|asked| asked as f64)),
    ("train_loss", "mean loss in training", |run| run.last.as_ref()?.train_loss),
    ("val_loss", "mean loss in validation", |run| run.last.as_ref()?.val_loss),
    ("train_accuracy", "share of hits in training", |run| run.last.as_ref()?.train_accuracy),
    ("val_accuracy", "share of hits in validation", |run| run.last.as_ref()?.val_accuracy),
    ("learning_rate", "learning rate", |run| run.last.as_ref()?.learning_rate),
    ("images_per_second", "images per second over all ranks", |run| run.last.as_ref()?.images_per_second),
    ("data_wait", "share of the time spent waiting for images", |run| run.last.as_ref()?.data_wait),
    ("rank_wait", "share of the time spent waiting for ranks", |run| run.last.as_ref()?.rank_wait),
    ("epoch_seconds", "seconds of the last epoch", |run| run.last.as_ref().map(|epoch| epoch.seconds)),
    ("ranks", "ranks of the last epoch", |run| run.last.as_ref().map(|epoch| epoch.world_size as f64)),
];

/// The text of `/metrics`.
pub fn text(runs: &[Arc<Seen>]) -> String {
    let mut text = String::new();
    for (name, help, value) in VALUES {
        let values = runs.iter().filter_map(|run| Some((&run.name, value(run).filter(|value| value.is_finite())?)));
        let lines: String =
            values.map(|(run, value)| format!("enmasse_{name}{{run=\"{}\"}} {value}\n", escaped(run))).collect();
        if !lines.is_empty() {
            text += &format!("# HELP enmasse_{name} {help}\n# TYPE enmasse_{name} gauge\n{lines}");
        }
    }
    text
}

/// The value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_holds_any_name() {
        assert_eq!(escaped("a\"b\\c\nd{}"), "a\\\"b\\\\c\\nd{}");
    }
}
