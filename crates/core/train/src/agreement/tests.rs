//! Two ranks with the same state, and one that differs; levels that ranks have in common.

use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::{DataError, Locality};
use enmasse_device::Device;
use enmasse_graph::{CompileOptions, Conv, Tensor, compile};
use enmasse_image::Image;

use super::*;
use crate::initialize;

/// Runs `job` on two ranks with different seeds whose state was made equal, and returns their errors.
fn on_two_ranks(job: impl Fn(&Group, &mut dyn Program) -> Result<(), TrainError> + Sync) -> [Option<String>; 2] {
    let net = |x: Tensor| x.conv2d("conv", Conv::new(4, 3)).batch_norm("bn").relu().flatten().linear("fc", 3);
    let plans = compile(&net, &CompileOptions { shards: 2, ..CompileOptions::new("net", 2, 8, 3) }).unwrap();
    let groups = Group::threads(2).unwrap();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (groups.into_iter())
            .map(|group| {
                let job = &job;
                let plans = plans.clone();
                scope.spawn(move || {
                    let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
                    let mut program = cpu.compile(plans, Some(group.clone())).unwrap();
                    initialize(program.as_mut(), group.rank() as u64).unwrap();
                    let other = program.store("fc.weight").unwrap();
                    broadcast_state(&group, program.as_mut()).unwrap();
                    assert_eq!(program.store("fc.weight").unwrap() == other, group.rank() == 0, "rank 0's weights");
                    job(&group, program.as_mut()).err().map(|error| error.to_string())
                })
            })
            .collect();
        let mut errors = ranks.into_iter().map(|rank| rank.join().unwrap());
        [errors.next().unwrap(), errors.next().unwrap()]
    })
}

/// Adds the smallest possible amount to the last element of a tensor on rank 1.
fn change(group: &Group, program: &mut dyn Program, name: &str) {
    let mut values = program.store(name).unwrap();
    if let Some(last) = values.last_mut().filter(|_| group.rank() == 1) {
        *last = f64::from((*last as f32).next_up());
    }
    program.load(name, &values).unwrap();
}

#[test]
fn the_first_tensor_that_differs_is_named() {
    let check = |changed: Option<&str>, resumed: bool, expected: [Option<&str>; 2]| {
        let changes = |group: &Group, program: &mut dyn Program| {
            changed.into_iter().for_each(|name| change(group, program, name));
        };
        let before = on_two_ranks(|group, program| {
            changes(group, program);
            compare_weights(group, program, resumed)
        });
        let between = on_two_ranks(|group, program| {
            changes(group, program);
            check_ranks(group, program, 7)
        });
        for (errors, expected) in [before, between].iter().zip(expected) {
            for error in errors {
                let found = error.as_deref();
                let named = expected.is_none_or(|name| found.is_some_and(|error| error.contains(name)));
                assert!(found.is_some() == expected.is_some() && named, "{changed:?}, {expected:?}: {found:?}");
            }
        }
    };
    let momentum = "optimizer.momentum_buffer.conv.weight";
    check(None, false, [None; 2]);
    check(None, true, [None; 2]);
    check(Some("conv.weight"), false, [Some("conv.weight"); 2]);
    check(Some("fc.bias"), true, [Some("fc.bias"); 2]);
    check(Some("bn.running_var"), false, [Some("bn.running_var"); 2]);
    check(Some(momentum), true, [Some(momentum); 2]);
    // In a new run the optimiser's state is zero; only steps can make it differ.
    check(Some(momentum), false, [None, Some(momentum)]);
}

/// Images that have only names.
struct Names(Vec<&'static str>);

impl Dataset for Names {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn label(&self, _: usize) -> usize {
        0
    }
    fn read(&self, _: usize) -> Result<Image, DataError> {
        Ok(Image::default())
    }
    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Names {
    fn name(&self, index: usize) -> String {
        self.0[index].to_owned()
    }
}

/// Regression test: `eval` added up the sums of ranks with other images or weights.
#[test]
fn what_ranks_evaluate_is_compared() {
    let check = |of_rank_1: &[&'static str], changed: Option<&str>, expected: Option<&str>| {
        let errors = on_two_ranks(|group, program| {
            changed.into_iter().for_each(|name| change(group, program, name));
            let names = if group.rank() == 0 { vec!["a", "b"] } else { of_rank_1.to_vec() };
            compare_evaluated(group, program, &["0".to_owned()], &Names(names))
        });
        for error in errors {
            let named = |error: &String| expected.is_some_and(|name| error.contains(name));
            assert!(error.as_ref().map_or(expected.is_none(), named), "{of_rank_1:?}, {changed:?}: {error:?}");
        }
    };
    check(&["a", "b"], None, None);
    check(&["a"], None, Some("evaluated 0 b"));
    check(&["a", "c"], None, Some("evaluated 0 c"));
    check(&["a", "b"], Some("fc.bias"), Some("fc.bias"));
    check(&["a", "b"], Some("optimizer.momentum_buffer.conv.weight"), None);
}

#[test]
fn ranks_on_one_gpu() {
    let check = |units: &[&str], expected: Option<(usize, usize)>| {
        let units: Vec<Vec<u8>> = units.iter().map(|unit| unit.as_bytes().to_vec()).collect();
        assert_eq!(same_unit(&units.iter().collect::<Vec<_>>()), expected, "{units:?}");
    };
    check(&["", "", ""], None);
    check(&["a", "b", "c"], None);
    check(&["a", "b", "b", "a"], Some((1, 2)));
    check(&["", "a", "", "a"], Some((1, 3)));
}

#[test]
fn levels_in_common() {
    let check = |levels: &[&str], expected: Option<(usize, &str)>| {
        let levels: Vec<Vec<&str>> = levels.iter().map(|text| text.split_whitespace().collect()).collect();
        let found = different_levels(&levels);
        assert_eq!(found.as_ref().map(|(rank, message)| (*rank, message.as_str())), expected, "{levels:?}");
    };
    check(&["a"], None);
    check(&["", ""], None);
    check(&["a b", "a b", "a b"], None);
    check(&["a b c", "a b"], Some((1, "rank 0 computes at c and rank 1 at b: start all ranks with `isa = b`")));
    check(&["a b", "a b", "a"], Some((2, "rank 0 computes at b and rank 2 at a: start all ranks with `isa = a`")));
    // The first difference is named, and the advice is the level that suits all three.
    check(&["a b c", "a b", "a"], Some((1, "rank 0 computes at c and rank 1 at b: start all ranks with `isa = a`")));
    check(&["a n", "a x y"], Some((1, "rank 0 computes at n and rank 1 at y: start all ranks with `isa = a`")));
    let apart = "rank 0 computes at b and rank 1 at no level: run all ranks on devices of one kind";
    check(&["a b", ""], Some((1, apart)));
}
