//! The rows of `bench scaling` as JSON, as text, and as bars.

use std::fmt;

use enmasse_charts::ScalingRow;
use enmasse_train::StrategyKind;
use enmasse_wording::{counted, mebibytes};
use serde_json::{Value, json};

use super::measure::RowMeasurement;
use super::simulate::Step;

/// How a row trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingSetup {
    pub devices: usize,
    /// Of several devices.
    pub strategy: StrategyKind,
    pub sync_bn: bool,
}

/// A row: how many devices train, how, and how fast.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub kind: TrainingSetup,
    /// Whether the figures are arithmetic.
    simulated: bool,
    pub measured: RowMeasurement,
    /// How many times the speed of one device.
    speed_up: f64,
}

impl Row {
    /// A row that is to be measured.
    pub fn begin(kind: TrainingSetup) -> Self {
        Row { kind, simulated: false, measured: RowMeasurement::default(), speed_up: 1.0 }
    }

    /// The same with what was measured, next to the row of one device, unless that is this row.
    pub fn end(self, measured: RowMeasurement, single: Option<&Row>) -> Self {
        let one = single.map_or(measured.images_per_second, |row| row.measured.images_per_second);
        Row { measured, speed_up: measured.images_per_second / one, ..self }
    }

    /// The same with what a step over `batch` samples would take. What one device does alone stays as in its row.
    pub fn predict(self, step: &Step, batch: usize, single: &Row) -> Self {
        let measured = RowMeasurement {
            images_per_second: batch as f64 / step.total,
            rank_wait: step.waited / step.total,
            ..single.measured
        };
        Row { simulated: true, ..self.end(measured, Some(single)) }
    }

    fn strategy(&self) -> &'static str {
        if self.kind.devices == 1 { "single" } else { self.kind.strategy.word() }
    }

    fn efficiency(&self) -> f64 {
        self.speed_up / self.kind.devices as f64
    }

    /// One line of JSON. Its keys, in this order, are a contract with scripts.
    pub fn json(&self) -> Value {
        let mut row = json!({
            "strategy": self.strategy(),
            "devices": self.kind.devices,
            "sync_bn": self.kind.sync_bn,
            "images_per_second": self.measured.images_per_second,
            "speed_up": self.speed_up,
            "efficiency": self.efficiency(),
            "waiting_for_gradients": self.measured.rank_wait,
            "waiting_for_data": self.measured.data_wait,
            "peak_memory_bytes": self.measured.peak_memory_bytes,
        });
        if self.simulated {
            row["simulated"] = true.into();
        }
        row
    }

    pub fn bar<'a>(&self, name: &'a str) -> ScalingRow<'a> {
        let RowMeasurement { images_per_second, .. } = self.measured;
        ScalingRow { name, devices: self.kind.devices, images_per_second, speed_up: self.speed_up }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrainingSetup { devices, strategy, sync_bn } = self.kind;
        let count = counted(devices, "device");
        if devices == 1 {
            return f.write_str(&count);
        }
        let sync_bn = if sync_bn { ", SyncBatchNorm" } else { "" };
        let simulated = if self.simulated { ", predicted" } else { "" };
        write!(f, "{strategy}, {count}{sync_bn}{simulated}")
    }
}

/// The rows under their headings, up to 80 columns wide.
pub fn text(rows: &[Row]) -> String {
    let mut text = "                                                  waiting for\n\
        strategy devices sync_bn  images/s speed-up effic. gradients    data   memory"
        .to_owned();
    for row in rows {
        let RowMeasurement { images_per_second, data_wait, rank_wait, peak_memory_bytes, .. } = row.measured;
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        text += &format!(
            "\n{:<8} {:>7} {:>7} {images_per_second:>9.1} {:>8.2} {:>6} {:>9} {:>7} {:>8}",
            row.strategy(),
            row.kind.devices,
            if row.kind.sync_bn { "yes" } else { "no" },
            row.speed_up,
            percent(row.efficiency()),
            percent(rank_wait),
            percent(data_wait),
            mebibytes(peak_memory_bytes),
        );
    }
    let dp = rows.iter().rfind(|row| row.kind.devices > 1 && row.kind.strategy == StrategyKind::Dp);
    if let Some(Row { measured, .. }) = dp {
        let [first, others] = [measured.peak_memory_bytes, measured.last_memory_bytes].map(mebibytes);
        text += &format!("\nUnder dp the first device needs {first}, and every other one {others}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let measured = |images_per_second, rank_wait| RowMeasurement {
            images_per_second,
            data_wait: 0.015,
            rank_wait,
            peak_memory_bytes: 300 << 20,
            last_memory_bytes: 200 << 20,
        };
        let row = |devices, strategy, sync_bn| Row::begin(TrainingSetup { devices, strategy, sync_bn });
        let single = row(1, StrategyKind::Ddp, false).end(measured(100.0, 0.0), None);
        let two = row(2, StrategyKind::Ddp, true).end(measured(150.0, 0.2), Some(&single));
        let four = row(4, StrategyKind::Ddp, true).predict(&Step { total: 0.5, waited: 0.125 }, 128, &single);
        let dp = row(2, StrategyKind::Dp, false).end(measured(120.0, 0.3), Some(&single));
        vec![single, two, four, dp]
    }

    #[test]
    fn lines_for_scripts() {
        let check = |row: &Row, expected: &str| assert_eq!(row.json().to_string(), expected);
        let rows = rows();
        check(
            &rows[0],
            r#"{"strategy":"single","devices":1,"sync_bn":false,"images_per_second":100.0,"speed_up":1.0,"efficiency":1.0,"waiting_for_gradients":0.0,"waiting_for_data":0.015,"peak_memory_bytes":314572800}"#,
        );
        check(
            &rows[1],
            r#"{"strategy":"ddp","devices":2,"sync_bn":true,"images_per_second":150.0,"speed_up":1.5,"efficiency":0.75,"waiting_for_gradients":0.2,"waiting_for_data":0.015,"peak_memory_bytes":314572800}"#,
        );
        check(
            &rows[3],
            r#"{"strategy":"dp","devices":2,"sync_bn":false,"images_per_second":120.0,"speed_up":1.2,"efficiency":0.6,"waiting_for_gradients":0.3,"waiting_for_data":0.015,"peak_memory_bytes":314572800}"#,
        );
    }

    #[test]
    fn predictions_are_marked() {
        let row = &rows()[2];
        assert_eq!(row.to_string(), "ddp, 4 devices, SyncBatchNorm, predicted");
        let json = row.json();
        let figures =
            ["images_per_second", "speed_up", "efficiency", "waiting_for_gradients"].map(|key| json[key].as_f64());
        assert_eq!(figures, [Some(256.0), Some(2.56), Some(0.64), Some(0.25)]);
        assert_eq!(json["simulated"], true);
    }

    #[test]
    fn a_table_fits_into_80_columns() {
        let text = text(&rows());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], "single         1      no     100.0     1.00  100 %       0 %     2 % 300.0 MiB");
        assert_eq!(lines[3], "ddp            2     yes     150.0     1.50   75 %      20 %     2 % 300.0 MiB");
        assert_eq!(lines[5], "dp             2      no     120.0     1.20   60 %      30 %     2 % 300.0 MiB");
        assert_eq!(lines[6], "Under dp the first device needs 300.0 MiB, and every other one 200.0 MiB.");
        assert!(lines.iter().all(|line| line.len() <= 80), "{text}");
    }
}
