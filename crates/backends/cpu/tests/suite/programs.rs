//! Properties of every program: bits that do not depend on threads or on how phases are submitted, shards, errors.

use crate::common::{Batch, assert_agree, cpu_program, fill, gradients, history, on_some_ranks, program_with, state};
use std::sync::Mutex;
use std::time::Duration;

use enmasse_comm::{Group, GroupOptions, ShardMap};
use enmasse_cpu::{Cpu, CpuOptions, Isa};
use enmasse_device::{Device, DeviceError, Program};
use enmasse_graph::optimizers::Lars;
use enmasse_graph::{
    Averaging, BucketSizes, Choices, CompileOptions, Conv, Mode, Optimizer, ParameterGroups, Phase, Plans, Pool,
    Tensor, compile,
};
use enmasse_reference::ReferenceProgram;

fn model(x: Tensor) -> Tensor {
    let x = x.conv2d("conv1", Conv::new(18, 3).padding(1).no_bias()).batch_norm("bn1").relu();
    let y = x.clone().conv2d("conv2", Conv::new(18, 3).padding(1).no_bias()).batch_norm("bn2");
    let x = (x + y).relu().max_pool(Pool::new(2));
    x.conv2d("conv3", Conv::new(33, 3).stride(2)).relu().flatten().dropout("drop", 0.3).linear("fc", 5)
}

fn options(shards: usize, sync_batch_norm: bool) -> CompileOptions {
    let buckets = BucketSizes { first: 1024, other: 4096 };
    CompileOptions { shards, sync_batch_norm, buckets, ..CompileOptions::new("test", 4, 11, 5) }
}

/// Bits of all state after three steps.
fn bits(program: &mut dyn Program, submit: impl Fn(&mut dyn Program, &Batch, u64)) -> Vec<Vec<u64>> {
    for step in 1..=3 {
        let batch = Batch::random(program.plans(), step);
        submit(program, &batch, step);
    }
    let names = state(program.plans());
    names.iter().map(|name| program.store(name).unwrap().iter().map(|v| v.to_bits()).collect()).collect()
}

fn at_once(program: &mut dyn Program, batch: &Batch, step: u64) {
    program.submit(Mode::Train, &Phase::ALL, &batch.inputs(step)).unwrap();
}

#[test]
fn bits_depend_neither_on_threads_nor_on_how_phases_are_submitted() {
    // Norms are sums too, so their order matters.
    let optimizer = Optimizer::Lars(Lars { momentum: 0.9, trust_coefficient: 0.1, epsilon: 1e-8 });
    let options =
        CompileOptions { optimizer, clip_norm: Some(0.5), average: Some(Averaging::Ema(0.75)), ..options(1, false) };
    let plans = compile(&model, &options).unwrap();
    for isa in crate::common::levels() {
        let with = |threads, exact| {
            let options = CpuOptions { threads, isa: Some(isa), exact, ..CpuOptions::default() };
            bits(&mut *program_with(&plans, options, None), at_once)
        };
        let (expected, direct) = (with(1, false), with(1, true));
        assert!(expected != direct, "{isa}: no convolution uses Winograd");
        for threads in [2, 3, 5] {
            assert!(with(threads, false) == expected, "{isa} {threads} threads");
            assert!(with(threads, true) == direct, "{isa} {threads} threads, exact");
        }
        let one_by_one = bits(&mut *cpu_program(&plans, 2, isa, None), |program, batch, step| {
            for phase in Phase::ALL {
                program.submit(Mode::Train, &[phase], &batch.inputs(step)).unwrap();
            }
        });
        assert!(one_by_one == expected, "{isa} phase by phase");
        // An evaluation between steps changes nothing.
        let between = bits(&mut *cpu_program(&plans, 2, isa, None), |program, batch, step| {
            program.submit(Mode::Evaluate, &Phase::ALL, &batch.inputs(step)).unwrap();
            at_once(program, batch, step);
        });
        assert!(between == expected, "{isa} with evaluations");
    }
}

/// Plans in which every operation of some layers uses one algorithm.
fn chosen(plans: &Plans, layers: &[&str], algorithm: &str) -> Plans {
    let mut choices = Choices::default();
    for plan in plans.train.iter().chain([&plans.evaluate]) {
        let nodes = plan.instructions.iter().filter(|node| layers.contains(&node.layer.as_str()));
        nodes.for_each(|node| choices.insert(plan.signature(node), algorithm));
    }
    let mut plans = plans.clone();
    plans.choose(&choices);
    plans
}

#[test]
fn choices_in_a_plan_are_obeyed_or_refused() {
    let plans = compile(&model, &options(1, false)).unwrap();
    let direct = chosen(&plans, &["conv1", "conv2"], "direct");
    for isa in crate::common::levels() {
        let cpu = |exact| Cpu::new(CpuOptions { threads: 2, isa: Some(isa), exact, ..CpuOptions::default() }).unwrap();
        let bits = |plans: &Plans, exact| {
            let options = CpuOptions { threads: 2, isa: Some(isa), exact, ..CpuOptions::default() };
            bits(&mut *program_with(plans, options, None), at_once)
        };
        assert!(bits(&direct, false) == bits(&plans, true), "{isa}: the bits differ from those of direct sums");
        assert!(bits(&direct, false) != bits(&plans, false), "{isa}: choices change nothing");
        let count = |plans: &Plans, name| {
            let algorithms = cpu(false).algorithms(plans.train.as_ref().unwrap()).unwrap();
            algorithms.into_iter().filter(|algorithm| *algorithm == name).count()
        };
        // Three convolutions and a linear layer, forward and two gradients, except the gradient of the images.
        assert_eq!((count(&direct, "winograd"), count(&direct, "direct")), (0, 11));
        assert_eq!((count(&plans, "winograd"), count(&plans, "direct")), (3, 8));

        let refused = |plans: &Plans, exact, expected: &str| {
            let mut errors = vec![cpu(exact).algorithms(plans.train.as_ref().unwrap()).unwrap_err()];
            errors.extend(cpu(exact).compile(plans.clone(), None).err());
            assert_eq!(errors.len(), 2);
            for error in errors {
                assert!(matches!(error, DeviceError::Unsupported(_)), "{error:?}");
                assert!(error.to_string().starts_with(expected), "{error}");
            }
        };
        let layer = |layer: &str, algorithm| chosen(&plans, &[layer], algorithm);
        let conv3 = "layer conv3: the cpu cannot run conv2d {kernel 3x3 stride 2x2} (";
        refused(&layer("conv3", "winograd"), false, conv3);
        refused(&layer("conv2", "depthwise"), false, "layer conv2: the cpu cannot run conv2d {");
        refused(&layer("bn1", "direct"), false, "layer bn1: the cpu cannot run batch_norm");
        let unknown = "the cpu has no algorithm \"fft\" for conv2d {kernel 3x3 padding 1x1} (";
        refused(&layer("conv2", "fft"), false, unknown);
        refused(&layer("conv2", "winograd"), true, "layer conv2: the cpu cannot run conv2d {");
    }
}

/// Runs `job` on one thread rank per shard of the plans.
fn on_ranks<T: Send>(plans: &Plans, job: impl Fn(Box<dyn Program>, usize) -> T + Sync) -> Vec<T> {
    let groups = Group::threads(plans.train.as_ref().unwrap().shards).unwrap();
    std::thread::scope(|scope| {
        let rank = |group: Group| {
            let rank = group.rank();
            let job = &job;
            scope.spawn(move || job(cpu_program(plans, 2, Isa::detect(), Some(group)), rank))
        };
        let ranks: Vec<_> = groups.into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_agree_with_each_other_and_with_the_reference() {
    let optimizer = Optimizer::Lars(Lars { momentum: 0.9, trust_coefficient: 0.1, epsilon: 1e-8 });
    let groups = ParameterGroups { no_decay_norm_bias: true, ..ParameterGroups::one(0.01) };
    let lars = CompileOptions {
        optimizer,
        groups,
        clip_norm: Some(0.5),
        average: Some(Averaging::Ema(0.75)),
        ..options(3, true)
    };
    for options in [options(2, false), options(3, false), options(3, true), lars] {
        let (shards, sync) = (options.shards, options.sync_batch_norm);
        let plans = compile(&model, &options).unwrap();
        let mut reference = ReferenceProgram::new(plans.clone(), None).unwrap();
        fill(&mut reference);
        let mut losses = Vec::new();
        for step in 1..=3 {
            let inputs = Batch::random(&plans, step);
            let ticket = reference.submit(Mode::Train, &Phase::ALL, &inputs.inputs(step)).unwrap();
            losses.push(reference.metrics(ticket).unwrap().loss);
        }
        let names = [gradients(&plans), state(&plans)].concat();
        let reference = std::sync::Mutex::new(reference);
        let ranks = on_ranks(&plans, |mut program, rank| {
            for step in 1..=3 {
                let batch = Batch::random(&plans, step).shard(rank, shards);
                let ticket = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(step)).unwrap();
                let found = program.metrics(ticket).unwrap().loss;
                let expected = losses[step as usize - 1];
                assert!((found - expected).abs() < 1e-4 * expected, "rank {rank} step {step}: {found} {expected}");
            }
            let what = format!("{shards} shards, sync {sync}, rank {rank}");
            assert_agree(&what, &names, &mut *program, &mut *reference.lock().unwrap(), 1e-3);
            let stored = names.iter().map(|name| program.store(name).unwrap());
            stored.map(|v| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>()).collect::<Vec<_>>()
        });
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{shards} shards: ranks differ");
    }
}

#[test]
fn a_loss_that_is_not_finite_stops_the_step_on_all_ranks() {
    let plans = compile(&model, &options(2, false)).unwrap();
    on_ranks(&plans, |mut program, rank| {
        let names = state(&plans);
        let batch = Batch::random(&plans, 1).shard(rank, 2);
        if rank == 1 {
            let poisoned = vec![f64::NAN; program.store("fc.bias").unwrap().len()];
            program.load("fc.bias", &poisoned).unwrap();
        }
        let before: Vec<_> = names.iter().map(|name| format!("{:?}", program.store(name).unwrap())).collect();
        let ticket = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(1)).unwrap();
        // The failure has not been read: the next step is void too, though its own loss would be finite.
        let later = Batch::random(&plans, 2).shard(rank, 2);
        let later = program.submit(Mode::Train, &Phase::ALL, &later.inputs(2)).unwrap();
        for ticket in [ticket, later] {
            let error = program.metrics(ticket).unwrap_err();
            assert!(matches!(error, DeviceError::NonFinite { shard: 1, .. }), "rank {rank}: {error}");
        }
        let after: Vec<_> = names.iter().map(|name| format!("{:?}", program.store(name).unwrap())).collect();
        assert!(before == after, "rank {rank}: the step changed state");
    });
}

/// Makes the sum of a bucket take long enough that any code that does not wait for it runs too early.
fn slow() -> GroupOptions {
    GroupOptions { delay_per_operation: Duration::from_millis(100), ..GroupOptions::default() }
}

#[test]
fn memory_is_not_touched_while_gradients_are_being_summed() {
    let plans = compile(&model, &options(2, false)).unwrap();
    let mut expected = ReferenceProgram::new(plans.clone(), None).unwrap();
    fill(&mut expected);
    let to_gradients = [Phase::Forward, Phase::Loss, Phase::Backward];
    let batch = Batch::random(&plans, 1);
    let with_sums = [&to_gradients[..], &[Phase::Reduce]].concat();
    expected.submit(Mode::Train, &with_sums, &batch.inputs(1)).unwrap();
    let expected = std::sync::Mutex::new(expected);
    let groups = Group::threads_with(2, slow()).unwrap();
    std::thread::scope(|scope| {
        for group in groups {
            let (plans, batch, expected) = (&plans, &batch, &expected);
            scope.spawn(move || {
                let rank = group.rank();
                let mut program = cpu_program(plans, 2, Isa::detect(), Some(group));
                let inputs = batch.shard(rank, 2).inputs(1);
                program.submit(Mode::Train, &to_gradients, &inputs).unwrap();
                let names = gradients(plans);
                assert_agree("gradients after backward", &names, &mut *program, &mut *expected.lock().unwrap(), 1e-3);
                // A step that is abandoned in the middle, and begun again: its sums must not end in the
                // sums of the new step.
                for _ in 0..2 {
                    program.submit(Mode::Train, &to_gradients, &inputs).unwrap();
                }
                program.submit(Mode::Train, &[Phase::Reduce], &inputs).unwrap();
                assert_agree("begun anew", &names, &mut *program, &mut *expected.lock().unwrap(), 1e-3);
                program.submit(Mode::Train, &to_gradients, &inputs).unwrap();
                program.load("fc.bias", &[0.0; 5]).unwrap();
            });
        }
    });
}

#[test]
fn bits_depend_on_the_shards_and_not_on_the_ranks_that_host_them() {
    let check = |shards: usize, sync: bool, most_ranks: usize| {
        let plans = compile(&model, &options(shards, sync)).unwrap();
        let alone = history(&mut *cpu_program(&plans, 2, Isa::detect(), None), 0..shards, 1..=3);
        for ranks in 1..=most_ranks {
            for found in on_some_ranks(&plans, ranks, |mut program, local| history(&mut *program, local, 1..=3)) {
                assert!(found == alone, "{shards} shards on {ranks} ranks, SyncBatchNorm {sync}");
            }
        }
    };
    for sync in [false, true] {
        check(4, sync, 4);
        check(3, sync, 3);
        check(6, sync, 4);
    }
}

#[test]
fn evaluation_of_several_shards_gives_all_logits_and_the_sum_of_losses() {
    for sync in [false, true] {
        let plans = compile(&model, &options(3, sync)).unwrap();
        let mut cpu = cpu_program(&plans, 2, Isa::detect(), None);
        let mut reference = ReferenceProgram::new(plans.clone(), None).unwrap();
        fill(&mut reference);
        let inputs = Batch::random(&plans, 1).inputs(1);
        let phases = [Phase::Forward, Phase::Loss];
        let [a, b] = [&mut *cpu as &mut dyn Program, &mut reference].map(|program| {
            let ticket = program.submit(Mode::Evaluate, &phases, &inputs).unwrap();
            program.metrics(ticket).unwrap()
        });
        assert!((a.loss - b.loss).abs() < 1e-4 * b.loss && a.correct == b.correct, "{a:?} {b:?}");
        let names = ["logits".to_owned(), "loss".to_owned(), "correct".to_owned()];
        assert_agree("evaluation", &names, &mut *cpu, &mut reference, 1e-4);
        let error = cpu.submit(Mode::Train, &[Phase::Forward], &inputs).err().map(|error| error.to_string());
        // Shards that exchange statistics run together, so that a single phase can be run.
        assert_eq!(error.is_some_and(|error| error.contains("one after another")), !sync);
    }
}

#[test]
fn a_program_continues_with_fewer_ranks_without_a_file() {
    let plans = compile(&model, &options(4, true)).unwrap();
    let expected = history(&mut *cpu_program(&plans, 2, Isa::detect(), None), 0..4, 1..=4)[1..].to_vec();
    let smaller = Mutex::new(Group::threads(2).unwrap().into_iter().map(Some).collect::<Vec<_>>());
    let map = ShardMap::new(4, 2).unwrap();
    let found = on_some_ranks(&plans, 4, |mut program, local| {
        history(&mut *program, local.clone(), 1..=2);
        // Ranks 0 and 1 continue as a group of two; the others leave.
        let group = smaller.lock().unwrap().get_mut(local.start)?.take()?;
        let local = map.local(group.rank());
        program.rejoin(plans.clone(), Some(group)).unwrap();
        Some(history(&mut *program, local, 3..=4)[1..].to_vec())
    });
    assert_eq!(found.iter().flatten().count(), 2);
    assert!(found.into_iter().flatten().all(|bits| bits == expected));
    let other = compile(&|x: Tensor| x.flatten().linear("fc", 5), &options(1, false)).unwrap();
    let error = cpu_program(&plans, 1, Isa::detect(), None).rejoin(other, None).unwrap_err();
    assert!(error.to_string().contains("plans of the same model"), "{error}");
}

#[test]
fn a_failed_group_is_the_error_of_the_step() {
    let plans = compile(&model, &options(2, false)).unwrap();
    let mut groups = Group::threads(2).unwrap();
    let (other, group) = (groups.pop().unwrap(), groups.pop().unwrap());
    let mut program = cpu_program(&plans, 1, Isa::detect(), Some(group));
    other.abort(other.own_cause(enmasse_comm::CauseKind::Error, "told to"));
    let batch = Batch::random(&plans, 1).shard(0, 2);
    let error = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(1)).unwrap_err();
    assert!(error.to_string().contains("told to"), "{error}");
}

/// Regression test: the parameters were those after the step, and the running statistics and averages those before it.
#[test]
fn a_group_that_fails_interrupted_an_update() {
    let plans = CompileOptions { average: Some(Averaging::Ema(0.5)), ..options(2, false) };
    let plans = compile(&model, &plans).unwrap();
    // The first one to fail the group must not interrupt the sums of the other.
    let states = |fails: bool| {
        let summed = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let rank = |group: Group| {
                let (plans, summed) = (&plans, &summed);
                scope.spawn(move || {
                    let rank = group.rank();
                    let mut program = cpu_program(plans, 1, Isa::detect(), Some(group.clone()));
                    let inputs = Batch::random(plans, 1).shard(rank, 2).inputs(1);
                    let (before, update) = Phase::ALL.split_at(Phase::ALL.len() - 1);
                    program.submit(Mode::Train, before, &inputs).unwrap();
                    summed.wait();
                    if fails {
                        group.abort(group.own_cause(enmasse_comm::CauseKind::Exited, "gone"));
                    }
                    let ticket = program.submit(Mode::Train, update, &inputs).unwrap();
                    program.metrics(ticket).unwrap();
                    let names = state(plans);
                    names.iter().map(|name| program.store(name).unwrap()).collect::<Vec<_>>()
                })
            };
            let ranks: Vec<_> = Group::threads(2).unwrap().into_iter().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        })
    };
    assert_eq!(states(true), states(false));
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let plans = compile(&model, &options(1, false)).unwrap();
    let mut program = cpu_program(&plans, 1, Isa::detect(), None);
    let good = Batch::random(&plans, 1);
    let mut check = |batch: &Batch, expected: &str| {
        let error = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(1)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&Batch { labels: vec![0, 1, 5, 0], ..good.clone() }, "has the label 5, which is not one of the 5 classes");
    check(&Batch { labels: vec![0], ..good.clone() }, "1 labels, but 4 samples take 4");
    check(&Batch { images: vec![0], ..good.clone() }, "1 image bytes");
    check(&Batch { sample_indices: vec![], ..good.clone() }, "0 sample indices");
    let mut check = |name: &str, values: &[f64], expected: &str| {
        let error = program.load(name, values).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("fc.weights", &[], "no tensor named fc.weights");
    check("fc.bias", &[1.0], "fc.bias has 5 elements, got 1");
    assert!(matches!(program.store("logits"), Err(DeviceError::Name(_))), "no step has run");
    let backward = program.submit(Mode::Train, &[Phase::Backward], &good.inputs(1)).unwrap_err().to_string();
    assert!(backward.contains("phase backward needs a forward phase"), "{backward}");
    program.submit(Mode::Train, &Phase::ALL, &good.inputs(1)).unwrap();

    let cpu = Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
    let group = Group::threads(3).unwrap().pop();
    let error = cpu.compile(compile(&model, &options(2, false)).unwrap(), group).err().unwrap().to_string();
    assert!(error.contains("2 shards cannot be divided among 3 ranks"), "{error}");
    assert!(Cpu::new(CpuOptions { threads: 0, ..CpuOptions::default() }).is_err());
}

#[test]
fn tickets_name_the_last_two_steps() {
    let plans = compile(&model, &options(1, false)).unwrap();
    let mut program = cpu_program(&plans, 1, Isa::detect(), None);
    let tickets: Vec<_> = (1..=3)
        .map(|step| {
            let batch = Batch::random(&plans, step);
            let ticket = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(step)).unwrap();
            (ticket, program.metrics(ticket).unwrap())
        })
        .collect();
    assert!(program.metrics(tickets[0].0).is_err());
    assert_eq!(program.metrics(tickets[1].0).unwrap(), tickets[1].1);
    assert_eq!(program.metrics(tickets[2].0).unwrap(), tickets[2].1);
}
