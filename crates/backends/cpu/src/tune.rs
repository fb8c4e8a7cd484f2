//! Finds the fastest algorithm for each convolution by running every operation once, on its own, with made-up data.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use enmasse_device::{DeviceError, HostBatch, ProgramGroups, ShardSchedule, StepInputs};
use enmasse_graph::{Arena, Choices, Node, Plan, Plans, Slot, ValueId};
use enmasse_tensor::{AlignedBuffer, Bf16, RandomStream};

use crate::algorithm::Algorithm;
use crate::instruction::{Instruction, Machine};
use crate::pool::Threads;
use crate::prepare::{KernelOptions, Preparation};
use crate::workspace::{Context, Workspace};

/// Minimum number of runs of each algorithm. The first has cold caches and untouched memory.
const MIN_ROUNDS: usize = 5;
/// Total time for all algorithms of an operation, if they are fast enough for more than the minimum number of runs.
const ENOUGH: Duration = Duration::from_millis(100);
/// The default algorithm stays unless another takes less than this fraction of its time, so that runs on the same machine
/// choose alike.
const CLEARLY: f64 = 0.95;

/// An operation that can be computed in several ways.
struct Candidate {
    signature: String,
    /// For each algorithm, a plan of the single instruction.
    ways: Vec<(Algorithm, Plan)>,
    /// The algorithm that is chosen without measuring.
    default: &'static str,
}

/// Measures the convolutions of the plans that have several algorithms, except those in `known`.
pub(crate) fn tune(
    plans: &Plans,
    known: &Choices,
    threads: Threads,
    options: KernelOptions,
) -> Result<Choices, DeviceError> {
    // Includes choices made for other plans, since a run keeps all its choices.
    known.iter().try_for_each(|(signature, name)| Algorithm::named(name, signature).map(|_| ()))?;
    let candidates = candidates(plans, known, options)?;
    let mut choices = Choices::default();
    if candidates.is_empty() {
        return Ok(choices);
    }
    let mut workspace = Workspace::default();
    let mut bytes = [0; 2];
    for (_, plan) in candidates.iter().flat_map(|candidate| &candidate.ways) {
        workspace = workspace.max(prepare(plan, None, options)?.workspace);
        bytes = [0, 1].map(|side| plan.arena_bytes(SIDES[side]).max(bytes[side]));
    }
    let bytes_in_all = bytes[0] + bytes[1] + workspace.bytes(threads.count);
    let refused = |_| DeviceError::Memory { arena: "operands to measure with".into(), bytes: bytes_in_all };
    let mut operands = AlignedBuffer::zeroed(bytes[0]).map_err(refused)?;
    let results = AlignedBuffer::zeroed(bytes[1]).map_err(refused)?;
    make_up(operands.as_f32_mut());
    let context = Context::new(threads, options.isa, workspace).map_err(refused)?;
    let mut machine = Machine { context, groups: ProgramGroups::default(), handles: Vec::new(), sent: Vec::new() };
    let _pinned = machine.context.pool.pin_caller();
    for candidate in candidates {
        let prepare = |(algorithm, plan): &(Algorithm, Plan)| {
            Ok((*algorithm, prepare(plan, Some([&operands, &results]), options)?, Duration::MAX))
        };
        let mut ways = candidate.ways.iter().map(prepare).collect::<Result<Vec<_>, DeviceError>>()?;
        measure(&mut ways, &mut machine)?;
        let least = |(algorithm, _, time): &(Algorithm, Instruction, Duration)| (*algorithm, time.as_secs_f64());
        if let Some(algorithm) = fastest(ways.iter().map(least), candidate.default) {
            choices.insert(candidate.signature, algorithm.name());
        }
    }
    Ok(choices)
}

/// The operations to measure, each once.
fn candidates(plans: &Plans, known: &Choices, options: KernelOptions) -> Result<Vec<Candidate>, DeviceError> {
    let (mut seen, mut candidates) = (HashSet::new(), Vec::new());
    let schedule = ShardSchedule::sample();
    for plan in plans.train.iter().chain([&plans.evaluate]) {
        let whole = Preparation::sample(plan, &|_| std::ptr::null_mut(), options, &schedule)?.run()?;
        for (node, prepared) in plan.instructions.iter().zip(whole.shards.iter().flatten()) {
            let signature = plan.signature(node);
            let default = prepared.algorithm;
            // An instruction names its algorithm only if there are alternatives.
            if default.is_empty() || known.get(&signature).is_some() || !seen.insert(signature.clone()) {
                continue;
            }
            let ways = Algorithm::ALL.map(|algorithm| (algorithm, alone(plan, node, Some(algorithm)))).into_iter();
            // Preparing refuses algorithms that cannot compute the operation.
            let ways: Vec<_> = ways.filter(|(_, plan)| prepare(plan, None, options).is_ok()).collect();
            if ways.len() > 1 {
                candidates.push(Candidate { signature, ways, default });
            }
        }
    }
    Ok(candidates)
}

/// Where the operands and the results of a single instruction are: in separate arenas, so that results overwrite no
/// operand.
const SIDES: [Arena; 2] = [Arena::Input, Arena::Activations];

/// A plan that consists of one of `plan`'s instructions, with a given algorithm.
fn alone(plan: &Plan, node: &Node, algorithm: Option<Algorithm>) -> Plan {
    let (mut values, mut slots, mut arenas) = (Vec::new(), Vec::new(), Vec::new());
    let mut place = |ids: &[ValueId], arena: Arena| {
        let mut offset = 0;
        let mut renumbered = Vec::new();
        for &id in ids {
            let value = plan.value(id).clone();
            renumbered.push(ValueId(values.len()));
            slots.push(Slot { arena, offset });
            offset += (value.shape.elements() * value.dtype.size()).next_multiple_of(Plan::ALIGNMENT);
            values.push(value);
        }
        arenas.push((arena, offset));
        renumbered
    };
    let inputs = place(&node.inputs, SIDES[0]);
    let outputs = place(&node.outputs, SIDES[1]);
    let instructions = vec![Node { inputs, outputs, ..node.clone() }];
    let algorithms: BTreeMap<_, _> = algorithm.into_iter().map(|algorithm| (0, algorithm.name().into())).collect();
    Plan { values, slots, instructions, algorithms, arenas, ..plan.clone() }
}

/// Prepares a plan's single instruction on memory for its operands and results. Without memory it can only be
/// inspected.
fn prepare(
    plan: &Plan,
    memory: Option<[&AlignedBuffer; 2]>,
    options: KernelOptions,
) -> Result<Instruction, DeviceError> {
    let place = |arena: Arena| {
        let side = SIDES.iter().position(|&side| side == arena);
        side.zip(memory).map_or(std::ptr::null_mut(), |(side, memory)| memory[side].as_ptr())
    };
    let schedule = ShardSchedule::sample();
    let prepared = Preparation::sample(plan, &place, options, &schedule)?.run()?;
    let none = || DeviceError::Unsupported("a plan without instructions has nothing to measure".into());
    prepared.shards.into_iter().flatten().next().ok_or_else(none)
}

/// Numbers that suit both element types: a pair of equal bf16 numbers reads as an f32 of nearly their value.
fn make_up(values: &mut [f32]) {
    let mut random = RandomStream::new(0, "tune", 0, 0);
    let mut number = || {
        let bits = u32::from(Bf16::from_f32(random.uniform(-1.0, 1.0) as f32).to_bits());
        f32::from_bits(bits << 16 | bits)
    };
    // A prime, so that rows of a feature map do not repeat each other.
    const PERIOD: usize = 4099;
    let period: Vec<f32> = (0..PERIOD).map(|_| number()).collect();
    values.chunks_mut(PERIOD).for_each(|chunk| chunk.copy_from_slice(&period[..chunk.len()]));
}

/// Runs the algorithms in turn, so that other load on the machine affects all of them, and keeps the shortest time of
/// each.
fn measure(ways: &mut [(Algorithm, Instruction, Duration)], machine: &mut Machine) -> Result<(), DeviceError> {
    let began = Instant::now();
    let inputs = StepInputs::evaluation(HostBatch::default().into());
    for round in 0.. {
        if round >= MIN_ROUNDS && began.elapsed() >= ENOUGH {
            break;
        }
        for (_, instruction, least) in &mut *ways {
            let began = Instant::now();
            // SAFETY: operands and results are in buffers that no other code uses and that outlive the run.
            unsafe { instruction.execute(machine, &inputs) }?;
            *least = began.elapsed().min(*least);
        }
    }
    Ok(())
}

/// The fastest of the algorithms that are clearly faster than the default one, or the default one if there are none.
fn fastest(seconds: impl Iterator<Item = (Algorithm, f64)>, default: &str) -> Option<Algorithm> {
    let weighed = seconds.map(|(algorithm, seconds)| {
        let part = if algorithm.name() == default { CLEARLY } else { 1.0 };
        (algorithm, part * seconds)
    });
    weighed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(algorithm, _)| algorithm)
}

#[cfg(test)]
mod tests {
    use enmasse_graph::{CompileOptions, Conv, Op, Precision, Tensor, compile};

    use super::*;
    use crate::isa::Isa;

    #[test]
    fn the_usual_algorithm_yields_to_a_clearly_faster_one() {
        let check = |direct: f64, winograd: f64, default: &str, expected: Algorithm| {
            let seconds = [(Algorithm::Direct, direct), (Algorithm::Winograd, winograd)];
            assert_eq!(fastest(seconds.into_iter(), default), Some(expected), "{direct} {winograd} {default}");
        };
        check(1.0, 2.0, "direct", Algorithm::Direct);
        check(1.0, 2.0, "winograd", Algorithm::Direct);
        check(2.0, 1.0, "direct", Algorithm::Winograd);
        check(1.0, 0.98, "direct", Algorithm::Direct);
        check(0.98, 1.0, "winograd", Algorithm::Winograd);
        check(1.0, 1.0, "winograd", Algorithm::Winograd);
        assert_eq!(fastest(std::iter::empty(), "direct"), None);
    }

    #[test]
    fn made_up_data_are_numbers_of_both_types() {
        let mut values = vec![f32::NAN; 10_000];
        make_up(&mut values);
        for value in values {
            let bits = value.to_bits();
            let halves = [bits as u16, (bits >> 16) as u16].map(|bits| Bf16::from_bits(bits).to_f32());
            assert!(value.abs() <= 1.01 && halves.iter().all(|half| half.abs() <= 1.0), "{value}");
        }
    }

    /// Two layers that compute the same, one that suits no transform, and one with a kernel per channel.
    fn net(x: Tensor) -> Tensor {
        let x = x.conv2d("first", Conv::new(16, 3).padding(1).no_bias()).relu();
        let y = x.clone().conv2d("a", Conv::new(16, 3).padding(1).no_bias()).relu();
        let y = y.conv2d("b", Conv::new(16, 3).padding(1).no_bias()) + x;
        let y = y.conv2d("depthwise", Conv::new(16, 3).padding(1).groups(16).no_bias());
        y.conv2d("strided", Conv::new(8, 3).stride(2).no_bias()).flatten().linear("fc", 3)
    }

    #[test]
    fn every_operation_with_a_choice_gets_one() {
        for precision in [Precision::F32, Precision::Bf16] {
            let options = CompileOptions { precision, ..CompileOptions::new("net", 2, 9, 3) };
            let plans = compile(&net, &options).unwrap();
            let tune = |known: &Choices, exact| {
                let kernels = KernelOptions { isa: Isa::detect(), exact };
                tune(&plans, known, Threads { count: 2, cores: None }, kernels).unwrap()
            };
            let choices = tune(&Choices::default(), false);
            // The signatures of `first` are forward and the weights' gradient. `a` and `b` share those of forward and
            // of the weights' gradient. Those of the input's gradient differ, because one is added to the gradient that
            // came through the shortcut.
            // shortcut.
            let train = plans.train.as_ref().unwrap();
            let signatures: HashSet<String> = (train.instructions.iter())
                .filter(|node| ["first", "a", "b"].contains(&node.layer.as_str()))
                .filter(|node| {
                    matches!(node.op, Op::Conv2d(_) | Op::Conv2dBackwardData(_) | Op::Conv2dBackwardWeights(_))
                })
                .map(|node| train.signature(node))
                .collect();
            assert_eq!(choices.len(), signatures.len(), "{choices}");
            let chosen = |signature: &String| choices.get(signature);
            assert!(signatures.iter().all(|s| matches!(chosen(s), Some("direct" | "winograd"))));

            // Known choices are not measured again.
            let mut known = choices.clone();
            assert_eq!(tune(&known, false), Choices::default());
            let forgotten = signatures.iter().next().unwrap();
            known = Choices::default();
            for signature in signatures.iter().filter(|signature| *signature != forgotten) {
                known.insert(signature.clone(), "direct");
            }
            let again = tune(&known, false);
            assert!(again.len() == 1 && again.get(forgotten).is_some(), "{again}");
            // Nothing is measured either if a choice, even one for another plan, is unknown to this device.
            known.insert("conv2d of another batch", "fft");
            let refused = super::tune(
                &plans,
                &known,
                Threads { count: 1, cores: None },
                KernelOptions { isa: Isa::Portable, exact: false },
            );
            let expected = "the cpu has no algorithm \"fft\" for conv2d of another batch: it has direct, depthwise, grouped, winograd; a run that was tuned on another device continues with `tune = false`";
            assert_eq!(refused.unwrap_err().to_string(), expected);
            // With direct sums only, there is nothing to choose.
            assert_eq!(tune(&Choices::default(), true), Choices::default());
        }
    }
}
