//! A rank's part of a trace: the events of one process in the Trace Event Format, which chrome://tracing and Perfetto open.
//!
//! Source: "Trace Event Format", Google, 2016. Times are microseconds; `ph` is `M` for names and `X` for a span.

use serde_json::{Value, json};

/// The lanes of a rank, from the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Track {
    /// What the thread that trains does.
    Training,
    /// The instructions of a step.
    Instructions,
    /// The operations that the ranks carry out together.
    Communication,
}

impl Track {
    const ALL: [Track; 3] = [Track::Training, Track::Instructions, Track::Communication];

    fn name(self) -> &'static str {
        match self {
            Track::Training => "training",
            Track::Instructions => "instructions",
            Track::Communication => "communication",
        }
    }
}

/// From when to when, in nanoseconds on the clock of all ranks.
pub(super) type SpanTimes = [i64; 2];

/// The events of a rank: objects separated by commas.
pub(super) struct TraceProcess {
    rank: usize,
    events: Vec<String>,
}

impl TraceProcess {
    /// The process of a rank, with a name for people.
    pub fn new(rank: usize, name: &str) -> Self {
        let mut process = TraceProcess { rank, events: Vec::new() };
        let id = process.id();
        process.push(&json!({"name": "process_name", "ph": "M", "pid": id, "args": {"name": name}}));
        process.push(&json!({"name": "process_sort_index", "ph": "M", "pid": id, "args": {"sort_index": rank}}));
        for lane in Track::ALL {
            let thread = process.thread(lane);
            let place = lane as usize;
            let args = json!({"name": lane.name()});
            process.push(&json!({"name": "thread_name", "ph": "M", "pid": id, "tid": thread, "args": args}));
            let args = json!({"sort_index": place});
            process.push(&json!({"name": "thread_sort_index", "ph": "M", "pid": id, "tid": thread, "args": args}));
        }
        process
    }

    /// Adds a span.
    pub fn span(&mut self, lane: Track, name: &str, [began, ended]: SpanTimes, args: &Value) {
        let id = self.id();
        let thread = self.thread(lane);
        let start = microseconds(began);
        let duration = microseconds((ended - began).max(0));
        self.push(&json!({
            "name": name, "ph": "X", "ts": start, "dur": duration, "pid": id, "tid": thread, "args": args,
        }));
    }

    /// The events as text.
    pub fn text(&self) -> String {
        self.events.join(",\n")
    }

    fn push(&mut self, event: &Value) {
        self.events.push(event.to_string());
    }

    /// Viewers take process 0 for the kernel's idle one.
    fn id(&self) -> usize {
        self.rank + 1
    }

    /// Some viewers tell threads of different processes apart by their numbers alone.
    fn thread(&self, lane: Track) -> usize {
        self.rank * Track::ALL.len() + lane as usize + 1
    }
}

fn microseconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_json_with_microseconds() {
        let mut process = TraceProcess::new(3, "rank 3, \"node\"\n7, cpu");
        process.span(Track::Communication, "bucket 0", [1_234_567, 2_000_000], &json!({"bytes": 8}));
        process.span(Track::Instructions, "late", [5, 4], &Value::Null);
        let events: Vec<Value> = serde_json::from_str(&format!("[{}]", process.text())).unwrap();
        let names: Vec<&str> = events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
        assert_eq!(names, ["rank 3, \"node\"\n7, cpu", "training", "instructions", "communication"]);
        assert!(events.iter().all(|event| event["pid"] == 4), "{events:?}");
        let sum = r#"{"name":"bucket 0","ph":"X","ts":1234.567,"dur":765.433,"pid":4,"tid":12,"args":{"bytes":8}}"#;
        assert_eq!(events[events.len() - 2].to_string(), sum);
        let late = r#"{"name":"late","ph":"X","ts":0.005,"dur":0.0,"pid":4,"tid":11,"args":null}"#;
        assert_eq!(events[events.len() - 1].to_string(), late);
    }
}
