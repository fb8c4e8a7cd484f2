//! What ranks must agree on, and how they come to: the same plan, configuration, data and weights before the first step, the
//! state of rank 0 where a run is resumed, and the same parameters after every step.

use enmasse_comm::{Cause, CauseKind, Group};
use enmasse_device::Program;

use crate::{TrainConfig, TrainError, TrainingData};

/// Compares program version, configuration, plan, classes and files of all ranks. The error names the two ranks and the
/// first difference.
pub fn compare_setup(
    group: &Group,
    config: &TrainConfig,
    data: &TrainingData,
    program: &dyn Program,
) -> Result<(), TrainError> {
    let plan = program.plans().train.as_ref().map(ToString::to_string).unwrap_or_default();
    group.compare(&[
        ("program version", env!("CARGO_PKG_VERSION")),
        ("configuration", &config.to_toml()),
        ("plan", &plan),
        ("classes and files", &data.listing()),
    ])?;
    Ok(())
}

/// Compares the weights and buffers of all ranks before the first step: one line per tensor, so that the error names it.
pub fn compare_weights(group: &Group, program: &dyn Program) -> Result<(), TrainError> {
    let mut lines = String::new();
    for tensor in &program.plans().state {
        lines += &format!("{} {:016x}\n", tensor.name, fingerprint(&program.store(&tensor.name)?));
    }
    group.compare(&[("initial weights", &lines)])?;
    Ok(())
}

/// Checks that all ranks hold the same bits, optimiser state and buffers included; names the first tensor that differs.
pub fn check_ranks(group: &Group, program: &dyn Program, step: u64) -> Result<(), TrainError> {
    let state = &program.plans().state;
    let mut mine = Vec::with_capacity(state.len());
    for tensor in state {
        mine.push(fingerprint(&program.store(&tensor.name)?) as i64);
    }
    let mut all = vec![0; mine.len() * group.world_size()];
    group.all_gather(&mine, &mut all)?;
    for (index, tensor) in state.iter().enumerate() {
        let of_rank = |rank: usize| all[rank * state.len() + index];
        if let Some(rank) = (1..group.world_size()).find(|&rank| of_rank(rank) != of_rank(0)) {
            let message = format!("after step {step} the tensor {} differs from rank 0's", tensor.name);
            let cause = Cause::new(CauseKind::Desync, message).of_rank(rank);
            group.abort(cause.clone());
            return Err(TrainError::Cause(group.cause().unwrap_or_else(|| cause.into())));
        }
    }
    Ok(())
}

/// Copies every state tensor of rank 0 to the others.
pub fn broadcast_state(group: &Group, program: &mut dyn Program) -> Result<(), TrainError> {
    let names: Vec<String> = program.plans().state.iter().map(|tensor| tensor.name.clone()).collect();
    for name in names {
        let mut values = program.store(&name)?;
        group.broadcast(&mut values, 0)?;
        program.load(&name, &values)?;
    }
    Ok(())
}

/// 64 bits of BLAKE3 over the exact values.
fn fingerprint(values: &[f64]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = [0; 1024];
    for chunk in values.chunks(128) {
        for (place, value) in bytes.chunks_exact_mut(8).zip(chunk) {
            place.copy_from_slice(&value.to_bits().to_le_bytes());
        }
        hasher.update(&bytes[..chunk.len() * 8]);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}
