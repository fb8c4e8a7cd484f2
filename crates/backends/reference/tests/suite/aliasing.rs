//! The check of places in memory accepts the compiler's plans, and notices plans that were spoiled in various ways.

use enmasse_graph::ops::{AllReduceStart, AllReduceWait};
use enmasse_graph::optimizers::AdamW;
use enmasse_graph::{
    Arena, Averaging, Bucket, BucketSizes, CompileOptions, Conv, Freeze, Graph, Op, Optimizer, Plan, Pool, Precision,
    Role, Target, Tensor, Update, UpdateRange, ValueId, chain, compile, fuse_convolutions,
};
use enmasse_reference::{Problem, aliasing_is_safe};
use enmasse_tensor::DType;

fn block(x: Tensor, name: &str, channels: usize, stride: usize) -> Tensor {
    let conv = |x: Tensor, part: &str, stride| {
        let layer = Conv::new(channels, 3).stride(stride).padding(1).no_bias();
        x.conv2d(&format!("{name}.conv{part}"), layer).batch_norm(&format!("{name}.bn{part}"))
    };
    let y = conv(conv(x.clone(), "1", stride).relu(), "2", 1);
    let side = match stride {
        1 => x,
        _ => {
            let layer = Conv::new(channels, 1).stride(stride).no_bias();
            x.conv2d(&format!("{name}.down"), layer).batch_norm(&format!("{name}.down_bn"))
        }
    };
    (y + side).relu()
}

fn resnet(x: Tensor) -> Tensor {
    let x = x.conv2d("stem", Conv::new(8, 7).stride(2).padding(3).no_bias()).batch_norm("bn").relu();
    let mut x = x.max_pool(Pool::new(3).stride(2).padding(1));
    for (index, (channels, stride)) in [(8, 1), (8, 1), (16, 2), (16, 1), (32, 2), (32, 1)].into_iter().enumerate() {
        x = block(x, &format!("block{index}"), channels, stride);
    }
    x.adaptive_avg_pool([1, 1]).dropout("drop", 0.5).flatten().linear("fc", 10)
}

fn options(shards: usize) -> CompileOptions {
    CompileOptions {
        shards,
        buckets: BucketSizes { first: 1024, other: 16384 },
        ..CompileOptions::new("resnet", 4, 32, 10)
    }
}

#[test]
fn the_compilers_plans_are_safe() {
    let adamw = Optimizer::AdamW(AdamW { betas: [0.9, 0.999], epsilon: 1e-8 });
    for shards in [1, 2, 5] {
        for sync_batch_norm in [false, true] {
            for freeze in [vec![], vec!["stem".to_string(), "bn".into(), "block0".into()], vec!["*bn*".into()]] {
                let freeze = Freeze::Patterns(freeze);
                for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
                    let freeze = freeze.clone();
                    let options = CompileOptions {
                        sync_batch_norm,
                        freeze,
                        optimizer: adamw.clone(),
                        clip_norm: Some(1.0),
                        average: Some(Averaging::Ema(0.5)),
                        precision,
                        ..options(shards)
                    };
                    let plans = compile(&resnet, &options).unwrap();
                    let train = plans.train.unwrap();
                    assert_eq!(aliasing_is_safe(&train).map_err(|error| format!("{error}\n{train}")), Ok(()));
                    assert_eq!(aliasing_is_safe(&plans.evaluate).map_err(|error| error.to_string()), Ok(()));
                    assert!(train.arena_bytes(Arena::Activations) * 10 < train.unshared_activations * 7);
                }
            }
        }
    }
}

fn plan() -> Plan {
    compile(&resnet, &options(2)).unwrap().train.unwrap()
}

/// The first instruction named `op`.
fn find(plan: &Plan, op: &str) -> usize {
    plan.instructions.iter().position(|node| node.op.name() == op).unwrap()
}

/// Spoils a plan and expects a problem that `expected` accepts, at a place whose text contains `place`.
fn check(spoil: impl FnOnce(&mut Plan), place: &str, expected: impl FnOnce(Problem) -> bool) {
    let mut plan = plan();
    spoil(&mut plan);
    let error = aliasing_is_safe(&plan).unwrap_err();
    assert!(error.place.contains(place), "{error}");
    assert!(expected(error.problem), "{error}");
    assert_eq!(error.to_string().lines().count(), 1);
}

#[test]
fn a_value_destroyed_before_its_last_use_is_noticed() {
    // A later result overwrites the convolution's, which backward still needs.
    check(
        |plan| {
            let convolved = plan.instructions[find(plan, "batch_norm_normalize")].inputs[0];
            let later = plan.instructions[find(plan, "batch_norm_normalize") + 3].outputs[0];
            plan.slots[later.0] = plan.slots[convolved.0];
        },
        "",
        |problem| matches!(problem, Problem::Overwritten(_)),
    );
    // The logits must outlive the step.
    check(
        |plan| {
            let backward = plan.instructions[find(plan, "linear_backward_data")].outputs[0];
            plan.slots[plan.logits.0] = plan.slots[backward.0];
        },
        "after the step",
        |problem| matches!(problem, Problem::Overwritten(_)),
    );
}

#[test]
fn a_result_over_an_operand_is_noticed() {
    check(
        |plan| {
            let pool = &plan.instructions[find(plan, "max_pool")];
            plan.slots[pool.outputs[0].0] = plan.slots[pool.inputs[0].0];
        },
        "max_pool",
        |problem| matches!(problem, Problem::OverOperand(_)),
    );
    check(
        |plan| {
            let pool = &plan.instructions[find(plan, "max_pool")];
            plan.slots[pool.outputs[1].0] = plan.slots[pool.outputs[0].0];
        },
        "max_pool",
        |problem| matches!(problem, Problem::Shared(_)),
    );
}

#[test]
fn operands_of_what_is_in_cache_are_those_of_its_reader() {
    let block = |x: Tensor| {
        let conv = |x: Tensor, name: &str, conv: Conv| x.conv2d(name, conv.no_bias()).batch_norm(&format!("{name}.bn"));
        let y = conv(conv(x, "stem", Conv::new(8, 3)), "expand", Conv::new(16, 1));
        let y = conv(conv(y, "deep", Conv::new(16, 3).padding(1).groups(16)), "project", Conv::new(8, 1));
        y.adaptive_avg_pool([1, 1]).flatten().linear("fc", 10)
    };
    let fuse = |graph: &mut Graph, keep: &[ValueId], mode| {
        fuse_convolutions(graph, keep, mode);
        chain(graph, keep, |_, _| true);
    };
    let target = Target { fuse: Box::new(fuse), ..Target::default() };
    let mut plan = target.compile_evaluation(&block, &options(1)).unwrap().evaluate;
    assert_eq!(aliasing_is_safe(&plan), Ok(()));
    let of = |layer: &str| plan.instructions.iter().find(|node| node.layer == layer).unwrap();
    let x = of("expand").inputs[0];
    let between = of("deep").inputs[0];
    let y = of("project").outputs[0];
    assert_eq!(plan.slot(between).arena, Arena::Cache);
    plan.slots[y.0] = plan.slot(x);
    assert_eq!(aliasing_is_safe(&plan).unwrap_err().problem, Problem::OverOperand(x));
}

#[test]
fn in_place_means_the_same_bytes_and_only_where_it_is_allowed() {
    let dropped = |plan: &Plan| {
        let node = &plan.instructions[find(plan, "dropout")];
        (node.outputs[0], node.inputs[0])
    };
    let mut plan = plan();
    let (output, input) = dropped(&plan);
    assert_eq!(plan.slot(output), plan.slot(input), "dropout runs in place");
    plan.slots[output.0].offset += Plan::ALIGNMENT;
    let error = aliasing_is_safe(&plan).unwrap_err();
    assert_eq!(error.problem, Problem::OverOperand(input));
}

#[test]
fn values_out_of_place_are_noticed() {
    let misplaced = |problem| matches!(problem, Problem::Misplaced { .. });
    check(|plan| plan.slots[plan.loss.0].offset += 4, "cross_entropy", misplaced);
    check(|plan| plan.slots[plan.loss.0].offset = plan.arena_bytes(Arena::Activations), "cross_entropy", misplaced);
    // Two buffers at the same place.
    check(
        |plan| {
            let buffers: Vec<usize> =
                (0..plan.values.len()).filter(|&i| matches!(plan.values[i].role, Role::Buffer { .. })).collect();
            plan.slots[buffers[1]] = plan.slots[buffers[0]];
        },
        "before the step",
        |problem| matches!(problem, Problem::Shared(_)),
    );
    check(
        |plan| {
            let gradient = plan.values.iter().position(|v| matches!(v.role, Role::Gradient { .. })).unwrap();
            plan.slots[gradient].offset += Plan::ALIGNMENT;
        },
        "before the step",
        |problem| matches!(problem, Problem::Displaced(_)),
    );
}

#[test]
fn values_missing_or_written_twice_are_noticed() {
    check(
        |plan| {
            let at = find(plan, "max_pool");
            plan.instructions.remove(at);
        },
        "conv2d",
        |problem| problem == Problem::Unwritten,
    );
    check(
        |plan| {
            let at = find(plan, "max_pool");
            let again = plan.instructions[at].clone();
            plan.instructions.insert(at, again);
        },
        "max_pool",
        |problem| problem == Problem::Rewritten,
    );
}

#[test]
fn buckets_in_flight_are_left_alone() {
    // The sum of bucket 0 starts before the last of its gradients is written.
    check(
        |plan| {
            let start = find(plan, "all_reduce_start");
            let node = plan.instructions.remove(start);
            plan.instructions.insert(start - 1, node);
        },
        "all_reduce_start",
        |problem| problem == Problem::Unwritten,
    );
    // The same for a bucket with several values, with an operand list that hides the error.
    check(
        |plan| {
            let op: Op = AllReduceStart { bucket: 1 }.into();
            let start = plan.instructions.iter().position(|node| node.op == op).unwrap();
            let mut node = plan.instructions.remove(start);
            node.inputs.truncate(1);
            plan.instructions.insert(start - 1, node);
        },
        "backward",
        |problem| problem == Problem::InFlight(1),
    );
    // The losses are read before the sum that carries them is complete.
    check(
        |plan| {
            let last = plan.buckets.len() - 1;
            plan.instructions.retain(|node| node.op != AllReduceWait { bucket: last }.into());
        },
        "check_finite",
        |problem| matches!(problem, Problem::InFlight(_)),
    );
    check(
        |plan| plan.buckets[0] = Bucket { dtype: DType::F32, sent: DType::F32, start: 0, len: 1 },
        "all_reduce_start",
        |problem| problem == Problem::OutsideBucket(0),
    );
}

/// Spoils the update of a plan.
fn check_update(spoil: impl FnOnce(&mut Update, &mut Vec<ValueId>), expected: impl FnOnce(Problem) -> bool) {
    let spoil = |plan: &mut Plan| {
        let node = plan.instructions.iter_mut().find(|node| node.op.name() == "update").unwrap();
        let Op::Update(update) = &mut node.op else { unreachable!("it is an update") };
        spoil(update, &mut node.inputs);
    };
    check(spoil, "update", expected);
}

#[test]
fn an_update_changes_only_its_operands() {
    let outside = |problem| matches!(problem, Problem::OutsideUpdate { .. });
    check_update(|update, _| update.ranges[0].len += 16, outside);
    check_update(|update, _| update.ranges.push(UpdateRange { start: 16, ..update.ranges[0] }), outside);
    // One parameter is missing, with its gradient and its state.
    check_update(
        |_, inputs| {
            let count = inputs.len() / 3;
            *inputs = inputs.chunks(count).flat_map(|ids| &ids[1..]).copied().collect();
        },
        outside,
    );
    check_update(|update, _| update.clip_norm = Some(1.0), |problem| problem == Problem::Operands);
    check_update(|_, inputs| inputs.truncate(2), |problem| problem == Problem::Operands);
    // Gradients must not be read before their sums are complete.
    check(
        |plan| plan.instructions.retain(|node| node.op != AllReduceWait { bucket: 0 }.into()),
        "update",
        |problem| problem == Problem::InFlight(0),
    );
    check(
        |plan| {
            let state = plan.values.iter().rposition(|value| matches!(value.role, Role::Optimizer { .. })).unwrap();
            plan.slots[state].offset += Plan::ALIGNMENT;
        },
        "before the step",
        |problem| matches!(problem, Problem::Displaced(_) | Problem::Shared(_)),
    );
}

#[test]
fn errors_name_instruction_and_values() {
    let mut plan = plan();
    let at = find(&plan, "max_pool");
    let y = plan.instructions[at].outputs[0];
    let x = plan.instructions[at].inputs[0];
    plan.slots[y.0] = plan.slots[x.0];
    let expected =
        format!("instruction {at} (max_pool of bn): %{} bn.max_pool is written over the operand %{}", y.0, x.0);
    assert_eq!(aliasing_is_safe(&plan).unwrap_err().to_string(), expected);
    assert_ne!(y, ValueId(0));
}
