//! What `GET /metrics` tells Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;

use crate::web::label_value;

/// Upper ends of the ranges of times, in seconds.
const SECONDS: [f64; 12] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];

/// Those of the numbers of images of batches.
const IMAGES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// Counts since the start.
pub struct Metrics {
    /// The names of the models, escaped.
    names: Vec<String>,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Requests by their models and statuses.
    requests: BTreeMap<(usize, u16), u64>,
    seconds: Vec<Histogram>,
    images: Vec<Histogram>,
}

/// How many values lie in each range, and their sum.
#[derive(Clone, Default)]
struct Histogram {
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn add(&mut self, value: f64, ends: &[f64]) {
        self.counts.resize(ends.len() + 1, 0);
        self.counts[ends.partition_point(|end| *end < value)] += 1;
        self.sum += value;
    }

    /// Its lines: each range counts all smaller values, too.
    fn write(&self, text: &mut String, name: &str, model: &str, ends: &[f64]) {
        let ends = ends.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (place, end) in ends.enumerate() {
            count += self.counts.get(place).copied().unwrap_or(0);
            let _ = writeln!(text, "{name}_bucket{{model=\"{model}\",le=\"{end}\"}} {count}");
        }
        let _ = writeln!(text, "{name}_sum{{model=\"{model}\"}} {}", self.sum);
        let _ = writeln!(text, "{name}_count{{model=\"{model}\"}} {count}");
    }
}

impl Metrics {
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let names: Vec<String> = names.map(label_value).collect();
        let none = vec![Histogram::default(); names.len()];
        let counts = Counts { seconds: none.clone(), images: none, ..Counts::default() };
        Metrics { names, counts: Mutex::new(counts) }
    }

    /// Counts a request that a model was asked, from its head to its answer.
    pub fn request(&self, model: usize, status: StatusCode, time: Duration) {
        let mut counts = self.counts();
        *counts.requests.entry((model, status.as_u16())).or_default() += 1;
        if status.is_success() {
            counts.seconds[model].add(time.as_secs_f64(), &SECONDS);
        }
    }

    /// Counts a batch that a model computes.
    pub fn batch(&self, model: usize, images: usize) {
        self.counts().images[model].add(images as f64, &IMAGES);
    }

    /// The text, with the number of images that are being prepared, wait or are computed.
    pub fn text(&self, queued: usize, is_ready: bool) -> String {
        let counts = self.counts();
        let mut text = String::new();
        let head = |text: &mut String, name: &str, kind: &str, help: &str| {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        };
        head(&mut text, "enmasse_serve_ready", "gauge", "1 while requests are taken, 0 while the server stops");
        let _ = writeln!(text, "enmasse_serve_ready {}", u8::from(is_ready));
        head(&mut text, "enmasse_serve_queue", "gauge", "images that are being prepared, wait or are computed");
        let _ = writeln!(text, "enmasse_serve_queue {queued}");
        head(&mut text, "enmasse_serve_requests_total", "counter", "requests by model and status");
        for (&(model, status), count) in &counts.requests {
            let name = &self.names[model];
            let _ = writeln!(text, "enmasse_serve_requests_total{{model=\"{name}\",status=\"{status}\"}} {count}");
        }
        for (name, help, histograms, ends) in [
            ("enmasse_serve_seconds", "time from a request to its predictions", &counts.seconds, &SECONDS[..]),
            ("enmasse_serve_batch_images", "images that were computed at once", &counts.images, &IMAGES[..]),
        ] {
            head(&mut text, name, "histogram", help);
            for (model, histogram) in self.names.iter().zip(histograms) {
                histogram.write(&mut text, name, model, ends);
            }
        }
        text
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
