//! What ranks must agree on, and how they reach agreement. Before the first step they compare plan, configuration, data
//! and weights. A resumed run takes the state of rank 0. Parameters must be the same after every step.

use std::collections::HashSet;

use enmasse_comm::{Cause, CauseKind, Group};
use enmasse_data::Dataset;
use enmasse_device::{Device, DeviceError, Program, Which};
use enmasse_graph::{Arena, Plans, StateTensor};

use crate::checkpoint::CallbackStates;
use crate::training_data::Listing;
use crate::weights::{is_optimizer, map_state};
use crate::{Preparation, RunConfig, TrainError, TrainingData};

/// Compares the devices of all ranks: their instruction-set levels and, unless ranks `may_share` them, that each is a
/// different one.
///
/// # Errors
/// Two ranks differ in their levels, or have the same device: the error names them and what to do. Or the group fails.
pub fn compare_devices(group: &Group, device: &dyn Device, may_share: bool) -> Result<(), TrainError> {
    compare_levels(group, device)?;
    if may_share {
        return Ok(());
    }
    let units = group.all_gather_bytes(device.unit().unwrap_or_default().as_bytes())?;
    let own: Vec<&Vec<u8>> = units.iter().collect();
    let Some((first, second)) = same_unit(&own) else { return Ok(()) };
    let message = format!(
        "ranks {first} and {second} would both compute on {}: give each rank a GPU of its own (`devices = gpu:N` with a GPU for each, \
         Slurm's --gpus-per-task=1, or another CUDA_VISIBLE_DEVICES for each), or let them take turns with `share_devices`",
        String::from_utf8_lossy(&units[second])
    );
    fail(group, Cause::new(CauseKind::Error, message).of_rank(second))
}

/// The first two ranks with the same unit.
fn same_unit(units: &[&Vec<u8>]) -> Option<(usize, usize)> {
    (0..units.len()).filter(|&rank| !units[rank].is_empty()).find_map(|rank| {
        let first = units[..rank].iter().position(|other| *other == units[rank])?;
        Some((first, rank))
    })
}

/// Ends the group with a cause, and returns the one that all ranks report.
fn fail(group: &Group, cause: Cause) -> Result<(), TrainError> {
    group.abort(cause.clone());
    Err(TrainError::Cause(group.cause().unwrap_or_else(|| cause.into())))
}

/// Compares the instruction-set levels of all ranks. Different levels round differently, so ranks would drift apart.
/// The error names two ranks, their levels, and the option that brings all ranks to a common level.
fn compare_levels(group: &Group, device: &dyn Device) -> Result<(), TrainError> {
    let texts = group.all_gather_bytes(device.levels().join(" ").as_bytes())?;
    let texts: Vec<_> = texts.iter().map(|text| String::from_utf8_lossy(text)).collect();
    let levels: Vec<Vec<&str>> = texts.iter().map(|text| text.split_whitespace().collect()).collect();
    let Some((rank, message)) = different_levels(&levels) else { return Ok(()) };
    fail(group, Cause::new(CauseKind::Desync, message).of_rank(rank))
}

/// The first rank that computes at another level than rank 0, and the message.
fn different_levels(levels: &[Vec<&str>]) -> Option<(usize, String)> {
    let first = levels.first()?;
    let rank = levels.iter().position(|own| own.last() != first.last())?;
    let common =
        (0..).take_while(|&at| levels.iter().all(|own| own.get(at).is_some_and(|level| first.get(at) == Some(level))));
    let advice = match common.last() {
        Some(last) => format!("start all ranks with `isa = {}`", first[last]),
        None => "run all ranks on devices of one kind".to_owned(),
    };
    let name = |rank: usize| levels[rank].last().copied().unwrap_or("no level");
    Some((rank, format!("rank 0 computes at {} and rank {rank} at {}: {advice}", name(0), name(rank))))
}

/// Compares program version, configuration, plan, transforms, classes and files of all ranks. The error names the two ranks and the
/// first difference.
pub fn compare_setup(group: &Group, config: &RunConfig, data: &TrainingData, plans: &Plans) -> Result<(), TrainError> {
    let plan = plans.train.as_ref().map(ToString::to_string).unwrap_or_default();
    group.compare(&[
        ("program version", &env!("CARGO_PKG_VERSION")),
        ("configuration", &config.to_toml()),
        ("plan", &plan),
        ("transforms", &Preparation::of(&config.train, data).train.to_string()),
        ("classes and files", &Listing::of(data)),
    ])?;
    Ok(())
}

/// Compares the weights and buffers of all ranks, and those of a teacher, before the first step: one line per tensor, so that the error names
/// it. In a resumed run this includes the optimiser's state, which is otherwise still zero.
pub fn compare_weights(group: &Group, program: &mut dyn Program, resumed: bool) -> Result<(), TrainError> {
    let held = held_by_all(program);
    let compared = |tensor: &StateTensor| {
        tensor.slot.arena == Arena::Teacher || ((resumed || !is_optimizer(&tensor.name)) && held(tensor))
    };
    let lines = lines(fingerprints(program, &compared)?);
    group.compare(&[("initial weights", &lines)])?;
    Ok(())
}

/// Compares what the ranks of an evaluation evaluate, and by which weights. Otherwise ranks with another copy of the data or of the
/// weights would add up to a number that is true of none.
///
/// # Errors
/// Two ranks differ: the error names them and the first difference. Or the device or the group fails.
pub fn compare_evaluated(
    group: &Group,
    program: &mut dyn Program,
    classes: &[String],
    dataset: &dyn Dataset,
) -> Result<(), TrainError> {
    let weights = lines(fingerprints(program, &|tensor| !is_optimizer(&tensor.name))?);
    group.compare(&[
        ("program version", &env!("CARGO_PKG_VERSION")),
        ("classes and files", &Listing::evaluated(classes, dataset)),
        ("weights", &weights),
    ])?;
    Ok(())
}

fn lines(fingerprints: Vec<(String, u64)>) -> String {
    fingerprints.into_iter().map(|(name, fingerprint)| format!("{name} {fingerprint:016x}\n")).collect()
}

/// Checks that all ranks hold the same bits, including optimiser state and buffers. The error names the first
/// tensor that differs.
pub fn check_ranks(group: &Group, program: &mut dyn Program, step: u64) -> Result<(), TrainError> {
    let held = held_by_all(program);
    let (names, mine): (Vec<String>, Vec<i64>) =
        (fingerprints(program, &held)?.into_iter()).map(|(name, fingerprint)| (name, fingerprint as i64)).unzip();
    let mut all = vec![0; mine.len() * group.world_size()];
    group.all_gather(&mine, &mut all)?;
    for (index, name) in names.iter().enumerate() {
        let of_rank = |rank: usize| all[rank * names.len() + index];
        if let Some(rank) = (1..group.world_size()).find(|&rank| of_rank(rank) != of_rank(0)) {
            let message = format!("after step {step} the tensor {name} differs from rank {}'s", group.job_rank(0));
            return fail(group, Cause::new(CauseKind::Desync, message).of_rank(group.job_rank(rank)));
        }
    }
    Ok(())
}

/// Checks that the callbacks of all ranks have set the same tensors to the same values. The error names the first difference.
pub fn compare_written(group: &Group, written: Vec<(String, u64)>) -> Result<(), TrainError> {
    let text = lines(written);
    let mut hashes = vec![0; 32 * group.world_size()];
    group.all_gather(blake3::hash(text.as_bytes()).as_bytes(), &mut hashes)?;
    let (hashes, _) = hashes.as_chunks::<32>();
    let Some(rank) = hashes.iter().position(|hash| *hash != hashes[0]) else { return Ok(()) };
    let texts = group.all_gather_bytes(text.as_bytes())?;
    let [first, other] = [0, rank].map(|rank| String::from_utf8_lossy(&texts[rank]).into_owned());
    let place = first.lines().zip(other.lines()).take_while(|(own, other)| own == other).count();
    let line = other.lines().nth(place).or(first.lines().nth(place)).unwrap_or_default();
    let name = line.split(' ').next().unwrap_or_default();
    let message = format!(
        "the tensor {name} was set otherwise on rank {rank} than on rank 0: what sets weights must do so on every rank"
    );
    fail(group, Cause::new(CauseKind::Desync, message).of_rank(rank))
}

/// Rank 0's states of callbacks, on every rank.
pub fn broadcast_states(group: &Group, own: &CallbackStates) -> Result<CallbackStates, TrainError> {
    let texts = group.all_gather_bytes(serde_json::json!(own).to_string().as_bytes())?;
    Ok(texts.first().and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default())
}

/// Copies every state tensor of rank 0 to the others that hold it.
pub fn broadcast_state(group: &Group, program: &mut dyn Program) -> Result<(), TrainError> {
    let held = held_by_all(program);
    let shared = program.plans().state.iter().filter(|tensor| held(tensor) || !program.holds(tensor));
    let named: Vec<(String, usize)> = shared.map(|tensor| (tensor.name.clone(), tensor.shape.elements())).collect();
    // One at a time: a large model is not in memory twice.
    for (name, elements) in named {
        let which = |tensor: &StateTensor| tensor.name == name;
        let mut tensor = map_state(program, &which, &|_, values| values.to_vec())?.concat();
        // Another stage of the model holds it.
        tensor.resize(elements, 0.0);
        group.broadcast(&mut tensor, 0)?;
        program.fill_state(&which, &|_, first, values| values.copy_from_slice(&tensor[first..first + values.len()]))?;
    }
    Ok(())
}

/// Chooses the state tensors of the run that every rank of the program's group holds.
pub(crate) fn held_by_all(program: &dyn Program) -> impl Fn(&StateTensor) -> bool + use<> {
    let elsewhere: HashSet<String> = program
        .plans()
        .state
        .iter()
        .filter(|tensor| !program.holds(tensor))
        .map(|tensor| tensor.name.clone())
        .collect();
    let differs = program.plans().train.as_ref().is_some_and(|train| train.is_replicated() || train.is_partitioned());
    move |tensor| match tensor.slot.arena {
        _ if elsewhere.contains(&tensor.name) => false,
        Arena::Optimizer(_) => !differs,
        // Each rank has its own, or has read it from its file.
        Arena::Residuals | Arena::Teacher => false,
        _ => true,
    }
}

/// 64 bits of BLAKE3 over the exact bits of each chosen state tensor, with its name.
fn fingerprints(program: &mut dyn Program, which: &Which) -> Result<Vec<(String, u64)>, DeviceError> {
    map_state(program, which, &|tensor, values| (tensor.name.clone(), fingerprint(values)))
}

pub(crate) fn fingerprint(values: &[f32]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hash_values(&mut hasher, values);
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

pub(crate) fn hash_values(hasher: &mut blake3::Hasher, values: &[f32]) {
    // This many bytes keep the hash's vectors full.
    const PIECE: usize = 1 << 14;
    let mut bytes = [0; PIECE];
    for piece in values.chunks(PIECE / 4) {
        for (place, value) in bytes.chunks_exact_mut(4).zip(piece) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        hasher.update(&bytes[..piece.len() * 4]);
    }
}

#[cfg(test)]
mod tests;
