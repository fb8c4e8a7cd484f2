//! Tuned runs: choices are kept, reused and the same on every rank. A device with fixed preferences replaces the clock.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use enmasse_comm::Group;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::{DataError, Dataset};
use enmasse_datasets::DataKind;
use enmasse_device::{Device, DeviceError, Hosting, Memory, Program};
use enmasse_graph::{Choices, Conv, Plan, Plans, Tensor};
use enmasse_image::Image;
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Classifier, Control, Preparation, RunPaths, Started, TrainConfig, TrainError,
    Trainer, TrainingData, Tuning,
};

/// The CPU device, which "measures" that one algorithm is the fastest for every operation of layer `b`.
struct Opinionated {
    cpu: Cpu,
    favourite: &'static str,
    asked: AtomicUsize,
}

fn device(favourite: &'static str) -> Arc<Opinionated> {
    let cpu = Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
    Arc::new(Opinionated { cpu, favourite, asked: AtomicUsize::new(0) })
}

impl Device for Opinionated {
    fn name(&self) -> String {
        self.cpu.name()
    }
    fn levels(&self) -> Vec<&'static str> {
        self.cpu.levels()
    }
    fn algorithms(&self, plan: &Plan) -> Result<Vec<String>, DeviceError> {
        self.cpu.algorithms(plan)
    }
    fn tune(&self, plans: &Plans, known: &Choices) -> Result<enmasse_device::Tuned, DeviceError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut choices = Choices::default();
        for plan in plans.train.iter().chain([&plans.evaluate]) {
            let nodes = plan.instructions.iter().filter(|node| node.layer == "b" && node.op.name().contains("conv2d"));
            let signatures = nodes.map(|node| plan.signature(node)).filter(|signature| known.get(signature).is_none());
            signatures.for_each(|signature| choices.insert(signature, self.favourite));
        }
        Ok(enmasse_device::Tuned { choices, ..Default::default() })
    }
    fn memory(&self, plans: &Plans, hosting: &Hosting) -> Result<Memory, DeviceError> {
        self.cpu.memory(plans, hosting)
    }
    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        self.cpu.compile(plans, group)
    }
}

/// Two classes of noise.
struct Noise(usize);

impl Dataset for Noise {
    fn len(&self) -> usize {
        self.0
    }
    fn label(&self, index: usize) -> usize {
        index % 2
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        let pixel = |i: usize| (index % 2 * 80 + (index * 7919 + i * 104_729) % 97) as u8;
        Ok(Image::new(8, 8, (0..192).map(pixel).collect())?)
    }
}

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Noise(40)), Arc::new(Noise(8)))
}

/// Layer `b` uses Winograd unless another algorithm is chosen.
fn net(x: Tensor, classes: usize) -> Tensor {
    let x = x.conv2d("a", Conv::new(16, 3).padding(1).no_bias()).batch_norm("bn_a").relu();
    let x = x.conv2d("b", Conv::new(16, 3).padding(1).no_bias()).batch_norm("bn_b").relu();
    x.adaptive_avg_pool([1, 1]).flatten().linear("fc", classes)
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        batch: Some(8),
        size: Some(8),
        tune: true,
        save_every: 1,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

struct Tuned<'a>(&'a mut Option<Tuning>);

impl Callback for Tuned<'_> {
    fn on_fit_start(&mut self, started: &Started, _: &mut Control) -> CallbackResult {
        *self.0 = started.tuning.clone();
        Ok(())
    }
}

fn fit(config: TrainConfig, device: &Arc<Opinionated>) -> Result<Option<Tuning>, TrainError> {
    let mut tuning = None;
    Trainer::new(config, device.clone()).callback(Tuned(&mut tuning)).fit("net", &net, &data())?;
    Ok(tuning)
}

fn last(out: &Path) -> Checkpoint {
    Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap()
}

#[test]
fn a_resumed_run_reuses_its_choices_and_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, cut, untuned, late] = ["whole", "cut", "untuned", "late"].map(|name| folder.path().join(name));
    let direct = device("direct");
    // Forward, which evaluation shares, and two gradients.
    let Tuning { measured, reused, changed, .. } = fit(config(&whole), &direct).unwrap().unwrap();
    assert_eq!((measured, reused, changed), (3, 0, 3));
    let without = TrainConfig { tune: false, ..config(&untuned) };
    assert_eq!(fit(without, &direct).unwrap(), None);
    assert_ne!(last(&whole).tensors, last(&untuned).tensors, "choices change nothing");
    assert!(!RunPaths::new(&untuned).algorithms().exists());

    fit(TrainConfig { max_steps: Some(7), ..config(&cut) }, &direct).unwrap();
    let chosen = std::fs::read_to_string(RunPaths::new(&cut).algorithms()).unwrap();
    assert_eq!(chosen.lines().filter(|line| line.starts_with("direct conv2d")).count(), 3, "{chosen}");
    // A device that would now measure other results has no effect.
    let winograd = device("winograd");
    let tuning = fit(TrainConfig { resume: true.into(), ..config(&cut) }, &winograd).unwrap().unwrap();
    assert_eq!((tuning.measured, tuning.reused, tuning.changed), (0, 3, 3));
    assert_eq!(last(&cut).tensors, last(&whole).tensors);
    assert_eq!(std::fs::read_to_string(RunPaths::new(&cut).algorithms()).unwrap(), chosen);

    // A run may be tuned from its second part on.
    fit(TrainConfig { max_steps: Some(7), tune: false, ..config(&late) }, &direct).unwrap();
    let tuning = fit(TrainConfig { resume: true.into(), ..config(&late) }, &direct).unwrap().unwrap();
    assert_eq!((tuning.measured, tuning.reused), (3, 0));
}

#[test]
fn a_classifier_uses_the_choices_of_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let direct = device("direct");
    let check = |name: &str, tune: bool, exact: bool, batch: usize, expected: &str| {
        let out = folder.path().join(name);
        if !out.exists() {
            fit(TrainConfig { tune, ..config(&out) }, &direct).unwrap();
        }
        let preparation = Preparation::new(&config(&out), DataKind::Folder);
        let mut classifier = Classifier::open(&out, None, &preparation, &[]).unwrap();
        assert_eq!(classifier.is_tuned(), tune, "{name}");
        classifier.configuration.train.exact = exact;
        let program = classifier.program(&net, direct.as_ref(), batch).unwrap();
        let plan = &program.plans().evaluate;
        let layer = plan.instructions.iter().position(|node| node.layer == "b").unwrap();
        assert_eq!(plan.algorithms.contains_key(&layer), expected == "chosen", "{name} {exact} {batch}");
    };
    check("untuned", false, false, 8, "by shape");
    check("tuned", true, false, 8, "chosen");
    // The choices were measured for batches of 8, and direct sums leave nothing to choose.
    check("tuned", true, false, 4, "by shape");
    check("tuned", true, true, 8, "by shape");
}

#[test]
fn choices_that_are_missing_or_damaged_end_a_resumed_run() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let direct = device("direct");
    fit(TrainConfig { max_steps: Some(2), ..config(&out) }, &direct).unwrap();
    let file = RunPaths::new(&out).algorithms();
    let whole = std::fs::read_to_string(&file).unwrap();
    let resume = || {
        let error = fit(TrainConfig { resume: true.into(), max_steps: Some(3), ..config(&out) }, &direct).unwrap_err();
        let text = error.to_string();
        assert_eq!(text.lines().count(), 1, "{text}");
        text.replace(&file.display().to_string(), "FILE")
    };
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert!(resume().starts_with("FILE: is malformed: line 1 counts 3 operations, but"), "{}", resume());
    std::fs::write(&file, whole.replace("direct", "fastest")).unwrap();
    let unknown = "the cpu has no algorithm \"fastest\" for conv2d {kernel 3x3 padding 1x1} (";
    assert!(resume().starts_with(unknown), "{}", resume());
    std::fs::write(&file, [0xff, 0xfe, b'\n']).unwrap();
    assert_eq!(resume(), "cannot read FILE: it is not text in UTF-8");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        resume(),
        "FILE: is missing, but holds the algorithms of the run: restore it, or continue with `tune = false`"
    );
    assert_eq!(last(&out).meta.optimizer_step, 2, "nothing was trained in the meantime");
    let without = TrainConfig { resume: true.into(), max_steps: Some(3), tune: false, ..config(&out) };
    assert_eq!(fit(without, &direct).unwrap(), None);
}

#[test]
fn all_ranks_use_the_choices_of_rank_0() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, favourites: [&'static str; 2], tune: [bool; 2]| {
        let out = folder.path().join(name);
        enmasse_launch::spawn(2, |group| {
            let rank = group.rank();
            let device = device(favourites[rank]);
            let config = TrainConfig { batch: Some(4), check_ranks: true, tune: tune[rank], ..config(&out) };
            Trainer::new(config, device.clone()).group(group).fit("net", &net, &data())?;
            Ok::<_, TrainError>(device.asked.load(Ordering::Relaxed))
        })
        .map(|asked| (asked, last(&out).tensors))
    };
    let (direct, winograd) = ("direct", "winograd");
    let (asked, tensors) = run("mixed", [direct, winograd], [true; 2]).unwrap();
    assert_eq!(asked, [1, 0], "rank 0 measures for all");
    assert_eq!(tensors, run("direct", [direct; 2], [true; 2]).unwrap().1);
    assert_ne!(tensors, run("winograd", [winograd; 2], [true; 2]).unwrap().1);
    for (name, tune) in [("first", [true, false]), ("second", [false, true])] {
        let error = run(name, [direct; 2], tune).unwrap_err().to_string();
        assert!(error.contains("configuration") && error.contains("tune = "), "{error}");
    }
}
