//! The cost of a start: no second copy of the weights, little processor time, and the memory of a step.

use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_datasets::DataKind;
use enmasse_device::{Device, Hosting};
use enmasse_train::{Compilation, Objective, Preparation, TrainConfig, initialize};
use rustix::time::{ClockId, clock_gettime};

/// Processor time of the process in milliseconds.
fn computed() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// One test, because other tests in the process would be counted too.
#[test]
fn a_start_is_cheap() {
    let config =
        TrainConfig { model: "resnet34".to_owned(), size: Some(224), batch: Some(16), ..TrainConfig::default() };
    let model = enmasse_models::find(&config.model).unwrap();
    let preparation = Preparation::new(&config, DataKind::Folder);
    let forward = |x, classes| model.forward(x, classes);
    let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
    let compilation = Compilation {
        config: &config,
        preparation: &preparation,
        model: &forward,
        objective: &Objective::default(),
        outputs: 1000,
        target: &cpu.target(),
    };
    let plans = compilation.plans(1).unwrap();

    // 0.6 of PyTorch's memory for the same step, without the 30 MB of the program itself.
    let memory = cpu.memory(&plans, &Hosting::new(&plans, None).unwrap()).unwrap();
    assert!(memory.total() <= 820_000_000, "{memory:?}");
    let mut program = cpu.compile(plans, None).unwrap();
    let before = computed();
    let (initialized, bytes) = test_support::heap::peak_of_all_threads(|| initialize(program.as_mut(), 0));
    initialized.unwrap();
    let milliseconds = computed() - before;
    // The weights are 87 MB.
    assert!(bytes < 100_000, "{bytes} bytes are held to set the weights");
    // Ten times the usual time; the machine's own logarithm and cosine would take twice the limit.
    assert!(milliseconds < 600.0, "{milliseconds:.0} ms are computed to set the weights");
}
