//! `metrics.csv`: a row for each epoch, for spreadsheets. It is written anew from `metrics.jsonl` after each epoch, so a resumed run
//! needs nothing else.

use std::io::Write;
use std::path::PathBuf;

use enmasse_system::files::{FileError, Staging, read_text};
use serde_json::Value;

use crate::{CallbackResult, EpochRecord, LogPoint, Logger, RunError, RunPaths, TrainError};

/// The table of a run. It comes after the log of its records.
pub struct CsvLog {
    staging: Staging,
    records: PathBuf,
    table: PathBuf,
}

impl CsvLog {
    /// The table of the run with these paths.
    pub fn new(staging: &Staging, paths: &RunPaths) -> Self {
        CsvLog { staging: staging.clone(), records: paths.metrics(), table: paths.metrics_table() }
    }

    fn write(&self) -> Result<(), RunError> {
        let text = read_text(&self.records).map_err(FileError::of("read", &self.records))?;
        Ok(self.staging.write_whole(&self.table, |file| file.write_all(table(&text).as_bytes()))?)
    }
}

impl Logger for CsvLog {
    /// Epochs alone have rows.
    fn scalars(&mut self, _: LogPoint, _: &[(&str, f64)]) -> CallbackResult {
        Ok(())
    }

    fn epoch(&mut self, _: &EpochRecord) -> CallbackResult {
        Ok(self.write().map_err(TrainError::from)?)
    }
}

/// Records as a table: `epoch`, and every other value that is a number in any of them, in the order in which they come first. A record
/// that lacks one has an empty field.
fn table(records: &str) -> String {
    let records: Vec<Value> = records.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let mut columns = vec!["epoch".to_owned()];
    for (name, _) in records.iter().filter_map(Value::as_object).flatten().filter(|(_, value)| value.is_number()) {
        if !columns.contains(name) {
            columns.push(name.clone());
        }
    }
    let field = |record: &Value, name: &String| {
        let value = &record[name];
        if value.is_number() { value.to_string() } else { String::new() }
    };
    let rows =
        records.iter().map(|record| columns.iter().map(|name| field(record, name)).collect::<Vec<_>>().join(","));
    std::iter::once(columns.join(",")).chain(rows).map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_column() {
        let check = |records: &str, expected: &str| assert_eq!(table(records), expected);
        check("", "epoch\n");
        check(
            "{\"event\":\"epoch\",\"epoch\":0,\"val_loss\":null,\"seconds\":1.5}\n{\"epoch\":1,\"val_loss\":0.25,\"seconds\":2.0,\"partial\":true}\n",
            "epoch,seconds,val_loss\n0,1.5,\n1,2.0,0.25\n",
        );
    }
}
