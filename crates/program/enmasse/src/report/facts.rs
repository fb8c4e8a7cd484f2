//! The facts of a run that people see before its first step.

use std::ffi::OsStr;

use enmasse_datasets::TaskKind;
use enmasse_graph::{Recomputed, TensorParallel};
use enmasse_train::{FineTune, RankMemory, Resumed, RunConfig, RunPaths, SETTINGS, Started, TrainConfig, Tuning};
use enmasse_wording::{counted, grouped, shell_word};

/// The facts known before the first step, one line each.
pub fn facts(started: &Started) -> Vec<String> {
    let Started { train_samples, validation_samples, test_samples, size, ref normalization, .. } = *started;
    let list = |numbers: &[f32]| numbers.iter().map(f32::to_string).collect::<Vec<_>>().join(" ");
    let mut lines = vec![
        format!(
            "model:    {}, {} parameters{}",
            started.model,
            grouped(started.parameters as u64),
            match started.trainable == started.parameters {
                true => String::new(),
                false => format!(", {} of them trained", grouped(started.trainable as u64)),
            }
        ),
        format!(
            "data:     {}, {} found {}: {} for training, {} for validation{}",
            started.data,
            counted(train_samples + validation_samples + test_samples, "image"),
            match started.task {
                TaskKind::Classification => format!("in {}", counted(started.classes.len(), "class")),
                TaskKind::MultiLabel => format!("with {}", counted(started.classes.len(), "label")),
                TaskKind::Regression => format!("with {} each", counted(started.classes.len(), "number")),
            },
            grouped(train_samples as u64),
            grouped(validation_samples as u64),
            match test_samples {
                0 => String::new(),
                samples => format!(", {} for test", grouped(samples as u64)),
            }
        ),
        format!(
            "input:    {size} x {size} pixels, mean {}, std {}",
            list(&normalization.mean),
            list(&normalization.std)
        ),
        format!("augment:  {}", started.augmentation),
        format!("loader:   {} in every process", counted(started.loader_threads, "thread")),
    ];
    let cut = started.cut.as_ref().and_then(|cut| cut_layers(cut, started.parameters));
    let of_memory = memory(&started.memory).into_iter().chain(started.recomputed.as_ref().map(recomputation));
    lines.splice(1..1, cut.into_iter().chain(of_memory));
    let batch = grouped(started.batch as u64);
    let global_batch = grouped(started.global_batch as u64);
    let mut batch = match started.shards == started.world_size {
        true => format!("batch:    {batch} per rank, {global_batch} in all"),
        false => format!(
            "batch:    {batch} per shard, {global_batch} in all, of {} on {}",
            counted(started.shards, "shard"),
            counted(started.world_size, "rank")
        ),
    };
    if started.dropped_samples > 0 {
        let dropped = counted(started.dropped_samples, "image");
        batch.push_str(&format!("; each epoch leaves out the {dropped} of the last incomplete one"));
    }
    lines.push(batch);
    let [steps, all] = started.epoch_steps;
    if steps < all {
        let (steps, all) = (grouped(steps as u64), grouped(all as u64));
        lines.push(format!("limit:    an epoch trains on {steps} of its {all} batches"));
    }
    if started.evaluated_samples < validation_samples {
        let taken = grouped(started.evaluated_samples as u64);
        let all = grouped(validation_samples as u64);
        lines.push(format!("limit:    validation evaluates {taken} of its {all} images, evenly spaced"));
    }
    if let Some(run) = &started.run {
        let paths = RunPaths::new(run);
        let drawings = [paths.class_distribution(), paths.augmented()];
        let names: Vec<_> = drawings.iter().filter_map(|path| path.file_name()).map(OsStr::to_string_lossy).collect();
        let folder = drawings[0].parent().unwrap_or(run);
        lines.push(format!("run:      {}", run.display()));
        lines.push(format!("charts:   {} in {}", names.join(" and "), folder.display()));
        lines.push(format!("curves:   tensorboard --logdir={}, then open http://localhost:6006/", shell_word(run)));
    }
    lines.extend(started.all_reduce.iter().map(|chosen| format!("sums:     {chosen}")));
    lines.extend(started.tuning.iter().flat_map(tuned));
    lines.extend(started.pretrained.iter().flat_map(|report| from_file(report)));
    if let Some(Resumed { epoch, samples }) = started.resumed {
        lines.push(format!("resume:   epoch {}, after {}", epoch + 1, counted(samples as usize, "image")));
        lines.extend(started.changes.iter().map(ToString::to_string));
        lines.extend(started.rescheduled.iter().map(|line| format!("schedule: {line}")));
        let lost = started.lost_best.iter();
        lines.extend(lost.map(|why| format!("best:     {why}; the best of the epochs to come replaces it")));
        lines.extend(started.lost_residuals.iter().map(|what| format!("sums:     {what}")));
        lines.extend(started.lost_states.iter().map(|(key, why)| format!("state:    {key}: {why}")));
        if started.lost_records > 0 {
            let lost = counted(started.lost_records as usize, "record");
            lines.push(format!(
                "metrics:  metrics.jsonl lacks {lost} of the {epoch} epochs before; the charts lack them too"
            ));
        }
    }
    lines
}

/// What was taken from a weights file, one line each, from the lines of the report.
pub fn from_file(report: &str) -> impl Iterator<Item = String> {
    report.lines().map(|line| format!("weights:  {line}"))
}

/// The result of tuning, and what was wrong with the record of earlier runs.
pub fn tuned(tuning: &Tuning) -> impl Iterator<Item = String> + use<> {
    let warning = tuning.warning.as_ref().map(|warning| format!("warning: {warning}"));
    std::iter::once(format!("tuned:    {tuning}")).chain(warning)
}

/// What a rank takes, and the parts of it, in one unit. "base" is the program with its data's index and buffers. A device with memory
/// of its own has a line before that of the process.
fn memory(memory: &RankMemory) -> Vec<String> {
    // Numbers of up to four digits fit 80 columns.
    const MIB: usize = 1 << 20;
    let RankMemory { activations, weights, libraries, batches, base, on_device } = *memory;
    let line = |label: &str, total: usize, owner: &str, parts: &[(usize, &str)]| {
        let (unit, name, decimals) = if total < 9999 * MIB { (MIB, "MiB", 0) } else { (1024 * MIB, "GiB", 1) };
        let number = |bytes: usize| format!("{:.decimals$}", bytes as f64 / unit as f64);
        let parts: Vec<String> = parts.iter().map(|(bytes, name)| format!("{} {name}", number(*bytes))).collect();
        format!("{label:<9} {} {name} {owner}: {}", number(total), parts.join(", "))
    };
    let program = [(activations, "activations"), (weights, "weights")];
    let process = [(batches, "batches"), (base, "base")];
    if on_device {
        let libraries = Some((libraries, "libraries")).filter(|(bytes, _)| *bytes > 0);
        let parts: Vec<_> = program.into_iter().chain(libraries).collect();
        let device = line("memory:", memory.on_device(), "on the device", &parts);
        return vec![device, line("host:", memory.total(), "a rank", &process)];
    }
    vec![line("memory:", memory.total(), "a rank", &[program, process].concat())]
}

/// The layers that are cut over ranks, and the share of the model's parameters that these have.
fn cut_layers(cut: &TensorParallel, all: usize) -> Option<String> {
    let ((first, _), (last, _)) = (cut.layers.first()?, cut.layers.last()?);
    let parameters: usize = cut.parameters.iter().map(|cut| cut.whole.elements()).sum();
    Some(format!(
        "cut:      {} from {first} to {last} over {}: {} of {} parameters",
        counted(cut.layers.len(), "layer"),
        counted(cut.ranks, "rank"),
        grouped(parameters as u64),
        grouped(all as u64)
    ))
}

/// What is computed again in backward, and what that saves and costs.
fn recomputation(recomputed: &Recomputed) -> String {
    let Recomputed { layers, blocks, bytes: [without, with], flops: [flops, more] } = recomputed;
    let mebibytes = |bytes: &usize| bytes.div_ceil(1 << 20);
    let percent = (*more as f64 / (*flops).max(1) as f64 - 1.0) * 100.0;
    format!(
        "memory:   recompute {} of {}: {} MiB -> {} MiB of the plan, {percent:.0} % more operations",
        layers.len(),
        counted(*blocks, "block"),
        mebibytes(without),
        mebibytes(with)
    )
}

/// What fine-tuning does, with the flags that change it.
pub fn fine_tuning(config: &TrainConfig) -> Vec<String> {
    let flag = "(--fine-tune head|all|last:N)";
    let layers = match config.fine_tune {
        None => return Vec::new(),
        Some(FineTune::Head) => {
            return vec![format!("tune:     the head alone, on features that are computed once {flag}")];
        }
        Some(FineTune::All) => "all layers".to_owned(),
        Some(FineTune::Last(count)) => format!("the head and the {} before it", counted(count, "layer")),
    };
    let TrainConfig { epochs, patience, lr, layer_decay, head_lr_mult, warmup_epochs, ema, label_smoothing, .. } =
        config;
    let patience = patience.map_or("never early".to_owned(), |epochs| {
        format!("earlier after {} without improvement", counted(epochs as usize, "epoch"))
    });
    let statistics = if config.freeze_bn { "keep" } else { "update" };
    let average = ema.map_or("no average of weights".to_owned(), |share| format!("an average of weights by {share}"));
    vec![
        format!("tune:     first the head alone, on features that are computed once; then {layers} {flag}"),
        format!("tune:     {} in all (--epochs), {patience} (--patience)", counted(*epochs, "epoch")),
        format!(
            "tune:     rate {lr} (--lr), times {head_lr_mult} for the head (--head-lr-mult), times {layer_decay} for each layer \
             towards the stem (--layer-decay), warm-up {warmup_epochs} (--warmup-epochs)"
        ),
        format!(
            "tune:     batch norms {statistics} their statistics (--freeze-bn), {average} (--ema), label smoothing \
             {label_smoothing} (--label-smoothing)"
        ),
    ]
}

/// The settings that differ from their defaults, in one line, and where all of them are. The run folder has a line of its own.
pub fn settings(config: &RunConfig) -> String {
    let changed = SETTINGS.iter().filter_map(|setting| {
        let value = config.get(setting.name).filter(|value| !value.is_empty())?;
        (setting.name != "out" && setting.default_text().as_ref() != Some(&value)).then_some((setting.name, value))
    });
    let pairs: String = changed.map(|(name, value)| format!("{name}={} ", shell_word(value))).collect();
    match &config.train.out {
        Some(out) => format!("settings: {pairs}(all of them: {})", RunPaths::new(out).config().display()),
        None => format!("settings: {pairs}").trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use enmasse_comm::Algorithm;
    use enmasse_graph::{CompileOptions, Tensor, compile};
    use enmasse_image::Normalization;
    use enmasse_train::{Change, ChosenAlgorithm, RunEvent};

    use super::*;

    #[test]
    fn facts_name_every_figure() {
        let started = Started {
            model: "resnet18".to_owned(),
            parameters: 11_181_642,
            trainable: 5130,
            data: "folder of class folders",
            normalization: Normalization { mean: vec![0.5; 3], std: vec![0.25; 3] },
            size: 64,
            augmentation: "random_crop size=64 padding=4".to_owned(),
            task: TaskKind::Classification,
            classes: vec!["a".to_owned(), "b".to_owned()],
            train_samples: 2400,
            dropped_samples: 32,
            validation_samples: 600,
            epoch_steps: [5, 75],
            evaluated_samples: 128,
            test_samples: 0,
            batch: 32,
            global_batch: 64,
            world_size: 2,
            shards: 2,
            device: "cpu (avx2, 1 thread)".to_owned(),
            loader_threads: 1,
            memory_bytes: 332 << 20,
            cut: None,
            recomputed: None,
            memory: RankMemory {
                on_device: false,
                activations: 180 << 20,
                weights: 170 << 20,
                libraries: 0,
                batches: 60 << 20,
                base: 102 << 20,
            },
            all_reduce: Some(ChosenAlgorithm { algorithm: Algorithm::Ring, bytes: 25 << 20, ranks: 4, nodes: 2 }),
            tuning: Some(Tuning {
                measured: 12,
                seconds: 2.0,
                reused: 0,
                changed: 5,
                warning: Some("a.txt: it is damaged".into()),
            }),
            pretrained: Some(
                "loaded 1 of 3 tensors from w.pth\nfc begins anew: 1000 classes in the file, 5 here".to_owned(),
            ),
            run: Some("runs/a".into()),
            resumed: Some(Resumed { epoch: 2, samples: 64 }),
            optimizer_step: 9,
            unreadable: Vec::new(),
            changes: vec![Change { name: "lr", from: Some("0.1".into()), to: Some("0.01".into()) }],
            rescheduled: Some("the cosine now spans 4 epochs".to_owned()),
            lost_best: Some("best.safetensors: it is gone".to_owned()),
            lost_records: 1,
            lost_residuals: Some("what was lost is dropped".to_owned()),
            lost_states: vec![("Best".to_owned(), "no callback of this run takes it".to_owned())],
        };
        let expected = "\
model:    resnet18, 11,181,642 parameters, 5,130 of them trained
memory:   512 MiB a rank: 180 activations, 170 weights, 60 batches, 102 base
data:     folder of class folders, 3,000 images found in 2 classes: 2,400 for training, 600 for validation
input:    64 x 64 pixels, mean 0.5 0.5 0.5, std 0.25 0.25 0.25
augment:  random_crop size=64 padding=4
loader:   1 thread in every process
batch:    32 per rank, 64 in all; each epoch leaves out the 32 images of the last incomplete one
limit:    an epoch trains on 5 of its 75 batches
limit:    validation evaluates 128 of its 600 images, evenly spaced
run:      runs/a
charts:   class_distribution.svg and augmented.svg in runs/a/charts
curves:   tensorboard --logdir=runs/a, then open http://localhost:6006/
sums:     all-reduce ring (auto: 25.0 MiB over 4 ranks on 2 nodes)
tuned:    12 operations measured in 2.0 s; another algorithm than untuned: 5 in a step
warning: a.txt: it is damaged
weights:  loaded 1 of 3 tensors from w.pth
weights:  fc begins anew: 1000 classes in the file, 5 here
resume:   epoch 3, after 64 images
lr: 0.1 -> 0.01
schedule: the cosine now spans 4 epochs
best:     best.safetensors: it is gone; the best of the epochs to come replaces it
sums:     what was lost is dropped
state:    Best: no callback of this run takes it
metrics:  metrics.jsonl lacks 1 record of the 2 epochs before; the charts lack them too";
        assert_eq!(facts(&started).join("\n"), expected);
        let line = r#"{"event":"start","model":"resnet18","parameters":11181642,"trainable":5130,"data":"folder of class folders",
            "classes":["a","b"],"size":64,"train_samples":2400,"dropped_samples":32,"validation_samples":600,"test_samples":0,
            "batch":32,"global_batch":64,"world_size":2,"shards":2,"device":"cpu (avx2, 1 thread)","memory_bytes":348127232,
            "memory":{"on_device":false,"activations":188743680,"weights":178257920,"libraries":0,"batches":62914560,
            "base":106954752},"run":"runs/a","resumed":{"epoch":2,"samples":64}}"#;
        let line: Vec<&str> = line.lines().map(str::trim).collect();
        assert_eq!(RunEvent::Start(&started).to_line(), line.concat(), "the keys and their order are a contract");
        let layers = vec!["layer1.0.conv1".to_owned(); 9];
        let bytes = [(868 << 20) - 1, 512 << 20];
        let recomputed = Some(Recomputed { layers, blocks: 16, bytes, flops: [1000, 1214] });
        let again = Started { recomputed, ..started.clone() };
        let expected = "memory:   recompute 9 of 16 blocks: 868 MiB -> 512 MiB of the plan, 21 % more operations";
        assert_eq!(facts(&again).iter().filter(|line| line.contains("recompute")).collect::<Vec<_>>(), [expected]);
        let model = |x: Tensor| x.flatten().linear("fc1", 8).relu().linear("fc2", 4).relu().linear("fc3", 2);
        let options = CompileOptions { tensor_parallel: Some(2), ..CompileOptions::new("mlp", 2, 4, 2) };
        let cut = compile(&model, &options).unwrap().evaluate.tensor_parallel;
        // The bias of the second one is whole.
        let expected = "cut:      2 layers from fc1 to fc2 over 2 ranks: 424 of 438 parameters";
        let lines = facts(&Started { cut, parameters: 438, ..started.clone() });
        assert_eq!(lines.iter().filter(|line| line.starts_with("cut:")).collect::<Vec<_>>(), [expected]);
        let several = Started { shards: 4, batch: 16, ..started };
        let lines = facts(&several);
        assert!(lines[6].starts_with("batch:    16 per shard, 64 in all, of 4 shards on 2 ranks; "), "{}", lines[6]);
    }

    /// Regression test: what libraries take was among the activations.
    #[test]
    fn memory_fits_a_line() {
        let check_on =
            |on_device: bool, [activations, weights, libraries, batches, base]: [usize; 5], expected: &[&str]| {
                let parts = RankMemory { on_device, activations, weights, libraries, batches, base };
                assert_eq!(memory(&parts), expected);
                assert!(expected.iter().all(|line| line.len() <= 80), "{expected:?}");
            };
        let check = |[activations, weights, batches, base]: [usize; 4], expected: &str| {
            check_on(false, [activations, weights, 0, batches, base], &[expected]);
        };
        let mib = |count: usize| count << 20;
        check_on(
            true,
            [mib(80_000), mib(15_000), mib(640), mib(600), mib(100)],
            &[
                "memory:   93.4 GiB on the device: 78.1 activations, 14.6 weights, 0.6 libraries",
                "host:     700 MiB a rank: 600 batches, 100 base",
            ],
        );
        check_on(
            true,
            [mib(9), mib(1), mib(256), mib(1), mib(100)],
            &[
                "memory:   266 MiB on the device: 9 activations, 1 weights, 256 libraries",
                "host:     101 MiB a rank: 1 batches, 100 base",
            ],
        );
        check([0, mib(1), mib(1) / 2, mib(9)], "memory:   10 MiB a rank: 0 activations, 1 weights, 0 batches, 9 base");
        check(
            [mib(7700), mib(1500), mib(600), mib(100)],
            "memory:   9900 MiB a rank: 7700 activations, 1500 weights, 600 batches, 100 base",
        );
        check(
            [mib(80_000), mib(15_000), mib(600), mib(100)],
            "memory:   93.5 GiB a rank: 78.1 activations, 14.6 weights, 0.6 batches, 0.1 base",
        );
    }

    #[test]
    fn fine_tuning_says_what_it_does() {
        let check = |settings: &[(&str, &str)], expected: &str| {
            let mut config =
                TrainConfig { patience: Some(3), ema: Some(0.98), freeze_bn: true, ..TrainConfig::default() };
            settings.iter().for_each(|(name, value)| config.set(name, value).unwrap());
            assert_eq!(fine_tuning(&config).join("\n"), expected);
        };
        check(&[], "");
        let flag = "(--fine-tune head|all|last:N)";
        let alone = format!("tune:     the head alone, on features that are computed once {flag}");
        check(&[("fine_tune", "head")], &alone);
        let all = "\
tune:     first the head alone, on features that are computed once; then all layers (--fine-tune head|all|last:N)
tune:     10 epochs in all (--epochs), earlier after 3 epochs without improvement (--patience)
tune:     rate 0.03 (--lr), times 1 for the head (--head-lr-mult), times 0.5 for each layer towards the stem (--layer-decay), \
          warm-up 0 (--warmup-epochs)
tune:     batch norms keep their statistics (--freeze-bn), an average of weights by 0.98 (--ema), label smoothing 0 \
          (--label-smoothing)";
        check(&[("fine_tune", "all"), ("layer_decay", "0.5")], all);
        let last = all.replace("all layers", "the head and the 2 layers before it").replace("times 0.5", "times 1");
        check(&[("fine_tune", "last:2")], &last);
    }

    #[test]
    fn settings_are_those_that_differ() {
        let check = |settings: &[(&str, &str)], expected: &str| {
            let mut config = RunConfig::default();
            settings.iter().for_each(|(name, value)| config.set(name, value).unwrap());
            assert_eq!(super::settings(&config), expected);
        };
        check(&[], "settings:");
        check(&[("epochs", "10"), ("out", "runs/a")], "settings: (all of them: runs/a/config.toml)");
        check(
            &[("data", "my photos"), ("lr", "0.1"), ("freeze", "a.*,b"), ("sync_bn", "true"), ("out", "runs/a")],
            "settings: data='my photos' freeze='a.*,b' lr=0.1 sync_bn=true (all of them: runs/a/config.toml)",
        );
    }
}
