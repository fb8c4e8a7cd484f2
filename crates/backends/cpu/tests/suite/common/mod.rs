//! Programs on the CPU, for all tests.
#![allow(dead_code, reason = "each test file compiles this module for itself and uses a part of it")]

pub mod models;
mod program;

use std::ops::Range;

use enmasse_comm::{Group, ShardMap};
use enmasse_cpu::{Cpu, CpuOptions, Isa};
use enmasse_device::{Device, Program};
use enmasse_graph::Plans;
use enmasse_graph::optimizers::{CustomOptimizer, UpdateStep};

pub use program::*;

/// An optimiser of a program's own: momentum whose factor is 1 / the number of the update.
#[derive(Debug)]
pub struct Fading;

impl CustomOptimizer for Fading {
    fn name(&self) -> &'static str {
        "fading"
    }

    fn state_names(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn update(&self, step: &UpdateStep, weights: &mut [f64], gradients: &[f64], state: &mut [&mut [f64]]) {
        for (i, w) in weights.iter_mut().enumerate() {
            state[0][i] = state[0][i] / step.number as f64 + gradients[i];
            *w -= step.learning_rate * (state[0][i] + step.weight_decay * *w);
        }
    }
}

/// A program of the CPU with random parameters, which are functions of their names.
pub fn cpu_program(plans: &Plans, threads: usize, isa: Isa, group: Option<Group>) -> Box<dyn Program> {
    program_with(plans, CpuOptions { threads, isa: Some(isa), ..CpuOptions::default() }, group)
}

/// The same, for any options.
pub fn program_with(plans: &Plans, options: CpuOptions, group: Option<Group>) -> Box<dyn Program> {
    let mut program = Cpu::new(options).unwrap().compile(plans.clone(), group).unwrap();
    fill(&mut *program);
    program
}

/// The levels of this machine.
pub fn levels() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available())
}

/// The results of `ranks` thread ranks, each of which receives its program and the shards that it hosts.
pub fn on_some_ranks<T: Send>(
    plans: &Plans,
    ranks: usize,
    job: impl Fn(Box<dyn Program>, Range<usize>) -> T + Sync,
) -> Vec<T> {
    let map = ShardMap::new(plans.evaluate.shards, ranks).unwrap();
    std::thread::scope(|scope| {
        let groups = Group::threads(ranks).unwrap().into_iter();
        let rank = |group: Group| {
            let job = &job;
            let local = map.local(group.rank());
            scope.spawn(move || job(cpu_program(plans, 2, Isa::detect(), Some(group)), local))
        };
        let ranks: Vec<_> = groups.map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
