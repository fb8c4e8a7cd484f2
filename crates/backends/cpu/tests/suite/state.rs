//! State that is set and read in place equals the state that is set and read by name.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::common::cpu_program;
use enmasse_cpu::Isa;
use enmasse_device::Program;
use enmasse_graph::{Arena, CompileOptions, Conv, StateTensor, Tensor, compile};
use enmasse_reference::ReferenceProgram;

/// The linear layer has more elements than one task processes, and their number is not a multiple of it.
fn model(x: Tensor) -> Tensor {
    let x = x.conv2d("conv", Conv::new(7, 3).padding(1)).batch_norm("bn").relu();
    x.flatten().linear("wide", 173).relu().linear("fc", 5)
}

/// A number that identifies its position; f32 holds it exactly.
fn value(tensor: &StateTensor, stored: usize) -> f32 {
    (stored * 8 + tensor.name.len() % 8) as f32
}

fn is_parameter(tensor: &StateTensor) -> bool {
    tensor.slot.arena == Arena::Parameters
}

/// Sets only parameters, in place.
fn fill(program: &mut dyn Program) {
    let set = |tensor: &StateTensor, first: usize, values: &mut [f32]| {
        values.iter_mut().enumerate().for_each(|(j, place)| *place = value(tensor, first + j));
    };
    program.fill_state(&is_parameter, &set).unwrap();
}

#[test]
fn filled_state_is_stored_and_read() {
    let plans = compile(&model, &CompileOptions::new("test", 2, 9, 5)).unwrap();
    let most = plans.state.iter().map(|tensor| tensor.shape.elements()).max().unwrap();
    assert!(most > 1 << 16 && !most.is_multiple_of(1 << 16), "{most}");
    let check = |program: &mut dyn Program, what: &str| {
        let others: BTreeMap<String, Vec<f64>> = (plans.state.iter().filter(|tensor| !is_parameter(tensor)))
            .map(|tensor| (tensor.name.clone(), program.store(&tensor.name).unwrap()))
            .collect();
        fill(program);
        for tensor in &plans.state {
            let mut expected = vec![f64::NAN; tensor.shape.elements()];
            tensor.layout.for_each(&tensor.shape, |stored, torch| expected[torch] = value(tensor, stored).into());
            let expected = others.get(&tensor.name).unwrap_or(&expected);
            assert!(program.store(&tensor.name).unwrap() == *expected, "{what}: {}", tensor.name);
        }
        let seen = Mutex::new(BTreeMap::new());
        let read = |number: usize, tensor: &StateTensor, values: &[f32]| {
            assert_eq!(plans.state[number].name, tensor.name);
            assert!(values.iter().enumerate().all(|(j, &found)| found == value(tensor, j)), "{what}: {}", tensor.name);
            *seen.lock().unwrap().entry(number).or_insert(0) += 1;
        };
        program.read_state(&is_parameter, &read).unwrap();
        let parameters = plans.state.iter().filter(|tensor| is_parameter(tensor)).count();
        let seen = seen.into_inner().unwrap();
        assert!(seen.len() == parameters && seen.values().all(|&times| times == 1), "{what}: {seen:?}");
    };
    check(&mut ReferenceProgram::new(plans.clone(), None).unwrap(), "reference");
    for threads in [1, 2, 5] {
        check(&mut *cpu_program(&plans, threads, Isa::detect(), None), &format!("{threads} threads"));
    }
}
