//! The timeline of some steps: one file for all ranks, on one clock.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::{Conv, Tensor};
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, Overlap, RunPaths, Traced, TrainConfig, Trainer, TrainingData,
};
use serde_json::Value;

/// Two layers of weights, of which one is larger than a bucket, so that there are two buckets.
fn net(x: Tensor, classes: usize) -> Tensor {
    let x = x.conv2d("conv", Conv::new(16, 3).padding(1)).relu();
    x.flatten().linear("hidden", 300).relu().linear("fc", classes)
}

#[derive(Default)]
struct Told(Vec<Traced>);

impl Callback for Told {
    fn on_trace(&mut self, traced: &Traced, _: &mut Control) -> CallbackResult {
        self.0.push(traced.clone());
        Ok(())
    }
}

/// Eight steps an epoch. What each rank was told.
fn run(out: &Path, ranks: usize, trace_steps: Option<u64>, steps: u64) -> Vec<Traced> {
    let config = TrainConfig {
        epochs: 9,
        batch: Some(2),
        shards: Some(3),
        size: Some(8),
        lr: 3e-5,
        out: Some(out.to_owned()),
        trace_steps,
        max_steps: Some(steps),
        ..TrainConfig::default()
    };
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(9)));
    let told = enmasse_launch::spawn(ranks, |group| {
        let mut told = Told::default();
        let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
        let result = Trainer::new(config.clone(), device).group(group).callback(&mut told).fit("net", &net, &data);
        result.map(|_| told)
    });
    told.unwrap().into_iter().flat_map(|told| told.0).collect()
}

/// A span: its name, from when to when in nanoseconds, and its arguments.
struct Span<'a>(&'a str, [i64; 2], &'a Value);

/// The spans of a lane, from 0, of a rank.
fn lane(trace: &Value, rank: usize, lane: usize) -> Vec<Span<'_>> {
    let spans = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    let of_rank = spans.filter(|event| event["pid"] == rank + 1);
    let of_lane: Vec<&Value> = of_rank.filter(|event| event["tid"] == rank * 3 + lane + 1).collect();
    let nanoseconds = |event: &Value, key: &str| (event[key].as_f64().unwrap() * 1e3).round() as i64;
    let span = |event: &&'_ Value| {
        let began = nanoseconds(event, "ts");
        [began, began + nanoseconds(event, "dur")]
    };
    of_lane.iter().map(|event| Span(event["name"].as_str().unwrap(), span(event), &event["args"])).collect()
}

/// The spans of all lanes of a rank are in order, and those of the training thread nest.
fn check_rank(trace: &Value, rank: usize, steps: u64) {
    let [training, instructions, communication] = [0, 1, 2].map(|place| lane(trace, rank, place));
    for spans in [&instructions, &communication] {
        assert!(spans.iter().flat_map(|Span(_, times, _)| times).is_sorted(), "rank {rank}");
    }
    let mut open: Vec<[i64; 2]> = Vec::new();
    for Span(name, [began, ended], _) in &training {
        open.retain(|[_, end]| end > began);
        assert!(open.last().is_none_or(|[from, to]| from <= began && ended <= to), "rank {rank}, {name}");
        open.push([*began, *ended]);
    }
    let of_steps: Vec<[i64; 2]> = training.iter().filter(|span| span.0 == "computing a step").map(|s| s.1).collect();
    assert_eq!(of_steps.len() as u64, steps, "rank {rank}");
    for Span(name, [began, ended], _) in instructions.iter().chain(&communication) {
        assert!(of_steps.iter().any(|[from, to]| from <= began && ended <= to), "rank {rank}, {name}");
    }
    for name in ["conv2d conv", "linear fc", "conv2d_backward_weights conv"] {
        let found = instructions.iter().filter(|span| span.0 == name).count() as u64;
        assert!(found >= steps && found.is_multiple_of(steps), "rank {rank}, {name}: {found}");
    }
}

#[test]
fn all_ranks_are_in_one_file_on_one_clock() {
    let folder = tempfile::tempdir().unwrap();
    // Ranks, steps of the run, steps to trace, and steps that are traced.
    for (ranks, steps, wanted, expected) in [(1, 21, 10, 10), (2, 21, 10, 10), (3, 13, 10, 3)] {
        let out = folder.path().join(ranks.to_string());
        let told = run(&out, ranks, Some(wanted), steps);
        assert_eq!(told.len(), ranks, "each rank is told once");
        let Traced { first_step, steps, accuracy, sums, .. } = told[0].clone();
        assert_eq!((told[0].path.as_deref(), first_step, steps), (Some(&*RunPaths::new(&out).trace()), 11, expected));
        for other in &told[1..] {
            assert_eq!(*other, Traced { path: None, ..told[0].clone() });
        }
        let trace: Value = serde_json::from_str(&fs::read_to_string(out.join("logs/trace.json")).unwrap()).unwrap();
        let about = &trace["otherData"];
        let numbers = ["ranks", "first_step", "steps", "operations_left_out"].map(|key| about[key].as_u64().unwrap());
        assert_eq!(numbers, [ranks as u64, 11, expected, 0]);
        let names = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == "process_name");
        let names: Vec<&str> = names.map(|event| event["args"]["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), ranks);
        for (rank, name) in names.iter().enumerate() {
            assert!(name.starts_with(&format!("rank {rank}, ")) && name.contains(", cpu (") || ranks == 1, "{name}");
            check_rank(&trace, rank, expected);
        }
        let operations: Vec<_> = (0..ranks).map(|rank| lane(&trace, rank, 2)).collect();
        let Some(Overlap { seconds, hidden, hideable }) = sums else {
            assert!(ranks == 1 && about["sums_of_gradients"].is_null() && operations[0].is_empty());
            continue;
        };
        assert!(ranks > 1 && 0.0 <= hidden && hidden <= hideable + 1e-9 && hideable <= seconds, "{sums:?}");
        assert_eq!(about["sums_of_gradients"]["hideable_seconds"], hideable);
        // No rank's operation ends before each has begun it.
        for place in 0..operations[0].len() {
            let same: Vec<&Span> = operations.iter().map(|rank| &rank[place]).collect();
            assert!(same.iter().all(|span| (span.0, &span.2["number"]) == (same[0].0, &same[0].2["number"])));
            let latest = same.iter().map(|span| span.1[0]).max().unwrap();
            let first = same.iter().map(|span| span.1[1]).min().unwrap();
            assert!(
                latest <= first + accuracy.as_nanos() as i64 + 1,
                "operation {place}: {latest} {first} {accuracy:?}"
            );
        }
        let buckets: Vec<&str> = operations[0].iter().map(|span| span.0).collect();
        assert!(buckets.len() > expected as usize && buckets.starts_with(&["bucket 0", "bucket 1"]), "{buckets:?}");
    }
}

#[test]
fn a_trace_changes_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let [plain, traced, short] = ["plain", "traced", "short"].map(|name| folder.path().join(name));
    assert_eq!(run(&plain, 2, None, 14), []);
    assert_eq!(run(&traced, 2, Some(2), 14).len(), 2);
    let weights = |out: &Path| {
        let tensors = Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap().tensors.into_iter();
        tensors
            .map(|tensor| (tensor.name, tensor.values.into_iter().map(f32::to_bits).collect()))
            .collect::<Vec<(_, Vec<_>)>>()
    };
    assert!(weights(&plain) == weights(&traced));
    assert!(!RunPaths::new(&plain).trace().exists());
    // The run ends before the first step to trace, and says so.
    let told = run(&short, 2, Some(2), 10);
    assert!(told.len() == 2 && told.iter().all(|traced| traced.steps == 0 && traced.path.is_none()), "{told:?}");
    assert!(!RunPaths::new(&short).trace().exists());
}
