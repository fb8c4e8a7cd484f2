//! The last figures of all runs as Prometheus reads them.

use std::sync::Arc;

use super::ranks::RANK_FIGURES;
use super::run::{Seen, State};
use crate::web::label_value;

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
            values.map(|(run, value)| format!("enmasse_{name}{{run=\"{}\"}} {value}\n", label_value(run))).collect();
        if !lines.is_empty() {
            text += &format!("# HELP enmasse_{name} {help}\n# TYPE enmasse_{name} gauge\n{lines}");
        }
    }
    for figure in RANK_FIGURES {
        let of_run = |run: &Arc<Seen>| -> String {
            let values = run.last.iter().flat_map(|epoch| (figure.values)(&epoch.ranks).iter().enumerate());
            let values = values.filter_map(|(rank, value)| Some((rank, value.filter(|value| value.is_finite())?)));
            let name = figure.name;
            let run = label_value(&run.name);
            values
                .map(|(rank, value)| format!("enmasse_rank_{name}{{run=\"{run}\",rank=\"{rank}\"}} {value}\n"))
                .collect()
        };
        let lines: String = runs.iter().map(of_run).collect();
        if !lines.is_empty() {
            let (name, help) = (figure.name, figure.help);
            text += &format!("# HELP enmasse_rank_{name} {help}\n# TYPE enmasse_rank_{name} gauge\n{lines}");
        }
    }
    text
}
