//! What this process has written to the `log` facade.

use std::sync::{Mutex, PoisonError};

use log::{LevelFilter, Log, Metadata, Record};

static KEPT: Kept = Kept(Mutex::new(Vec::new()));

/// Keeps every line.
struct Kept(Mutex<Vec<String>>);

impl Log for Kept {
    fn enabled(&self, _: &Metadata) -> bool {
        true
    }

    fn log(&self, record: &Record) {
        let line = format!("{} {}: {}", record.level(), record.target(), record.args());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn flush(&self) {}
}

/// The lines that contain `part`, such as `WARN enmasse_comm::failure: rank 1 ...`, of all threads since the first call. That one
/// makes this process keep them.
pub fn logged(part: &str) -> Vec<String> {
    if log::set_logger(&KEPT).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
    let kept = KEPT.0.lock().unwrap_or_else(PoisonError::into_inner);
    kept.iter().filter(|line| line.contains(part)).cloned().collect()
}
