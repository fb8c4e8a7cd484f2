//! The ranks of a run in its last epoch: a table, and the figures by which Prometheus knows them.

use enmasse_wording::mebibytes;
use maud::{Markup, html};

use crate::commands::report::record::Ranks;
use crate::report::percent;

/// A figure that each rank has.
pub struct RankFigure {
    /// As in the record of an epoch.
    pub name: &'static str,
    /// What it is, for Prometheus.
    pub help: &'static str,
    /// The same as the head of a column.
    head: &'static str,
    pub values: fn(&Ranks) -> &[Option<f64>],
    shown: fn(f64) -> String,
}

/// All of them.
pub const RANK_FIGURES: [RankFigure; 6] = [
    RankFigure {
        name: "images_per_second",
        help: "images per second of a rank",
        head: "images/s",
        values: |ranks| &ranks.images_per_second,
        shown: |value| format!("{value:.1}"),
    },
    RankFigure {
        name: "data_wait",
        help: "share of the time of a rank spent waiting for images",
        head: "waits for images",
        values: |ranks| &ranks.data_wait,
        shown: percent,
    },
    RankFigure {
        name: "rank_wait",
        help: "share of the time of a rank spent waiting for others",
        head: "waits for ranks",
        values: |ranks| &ranks.rank_wait,
        shown: percent,
    },
    RankFigure {
        name: "resident_bytes",
        help: "resident memory of the process of a rank",
        head: "memory",
        values: |ranks| &ranks.resident_bytes,
        shown: in_bytes,
    },
    RankFigure {
        name: "device_bytes",
        help: "memory in use on the device of a rank, by all programs",
        head: "GPU memory",
        values: |ranks| &ranks.device_bytes,
        shown: in_bytes,
    },
    RankFigure {
        name: "device_utilization",
        help: "share of the last moments of an epoch in which the device of a rank computed",
        head: "GPU use",
        values: |ranks| &ranks.device_utilization,
        shown: percent,
    },
];

fn in_bytes(value: f64) -> String {
    mebibytes(value as usize)
}

/// The table, of the figures that are known.
pub fn table(ranks: &Ranks) -> Markup {
    let known: Vec<&RankFigure> = RANK_FIGURES.iter().filter(|figure| !(figure.values)(ranks).is_empty()).collect();
    let rows = known.iter().map(|figure| (figure.values)(ranks).len()).max().unwrap_or(0);
    let cell = |figure: &RankFigure, rank: usize| {
        let value = (figure.values)(ranks).get(rank).copied().flatten().filter(|value| value.is_finite());
        value.map_or("–".to_owned(), figure.shown)
    };
    html! {
        @if rows > 0 {
            h2 { "Ranks" }
            div.wide.ranks tabindex="0" aria-label="the ranks in the last epoch" {
                table {
                    thead { tr { th scope="col" { "rank" } @for figure in &known { th scope="col" { (figure.head) } } } }
                    tbody { @for rank in 0..rows { tr { td { (rank) } @for figure in &known { td { (cell(figure, rank)) } } } } }
                }
            }
        }
    }
}
