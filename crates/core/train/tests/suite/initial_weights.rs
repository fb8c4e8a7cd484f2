//! The initial weights of a model are a function of the seed. No release may change them by a bit, so that a seed
//! repeats a run.

use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, Program};
use enmasse_graph::{CompileOptions, compile};
use enmasse_train::initialize;

fn program(model: &str, threads: usize, seed: u64) -> Box<dyn Program> {
    let model = enmasse_models::find(model).unwrap();
    let plans = compile(&|x| model.forward(x, 10), &CompileOptions::new(model.name(), 1, 64, 10)).unwrap();
    let cpu = Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap();
    let mut program = cpu.compile(plans, None).unwrap();
    initialize(program.as_mut(), seed).unwrap();
    program
}

/// BLAKE3 over every state tensor: its name, then its f32 values in PyTorch's order.
fn hash(program: &mut dyn Program) -> String {
    let mut hasher = blake3::Hasher::new();
    for tensor in program.plans().state.clone() {
        hasher.update(tensor.name.as_bytes());
        for value in program.store(&tensor.name).unwrap() {
            hasher.update(&(value as f32).to_le_bytes());
        }
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

#[test]
fn initial_weights_of_a_seed_do_not_change() {
    let check = |model: &str, seed: u64, expected: &str| {
        for threads in [1, 3] {
            assert_eq!(
                hash(program(model, threads, seed).as_mut()),
                expected,
                "{model}, seed {seed}, {threads} threads"
            );
        }
    };
    check("resnet18", 0, "6b5aa3a9bddf8937");
    check("mobilenet_v2", 1 << 40, "f690586a80e1fc69");
    check("mlp", 7, "1f3a21ebe65e42a4");
}
