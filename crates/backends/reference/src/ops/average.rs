//! Moving averages of weights and running statistics.

use enmasse_graph::ops::{Average, Operation};

use super::loss_scale::applied;

/// The moving average after the update numbered `step`, from 1. The first update copies the values.
pub fn average(decay: f32, step: u64, values: &[f64], average: &[f64]) -> Vec<f64> {
    let share = if step == 1 { 1.0 } else { 1.0 - f64::from(decay) };
    values.iter().zip(average).map(|(value, average)| average + share * (value - average)).collect()
}

each_shard!(Average, |op, call, []| {
    let averages = &call.rest[op.changes(call.rest.len())];
    let moved = |(values, old): (&&[f64], &&[f64])| match applied(call, op.scaled) {
        Some((_, step)) => average(op.decay, step, values, old),
        None => old.to_vec(),
    };
    call.rest.iter().zip(averages).map(moved).collect()
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_by_hand() {
        assert_eq!(average(0.75, 1, &[3.0, 1.0], &[0.0, 0.0]), [3.0, 1.0]);
        assert_eq!(average(0.75, 2, &[7.0, 1.0], &[3.0, 1.0]), [4.0, 1.0]);
        assert_eq!(average(0.0, 2, &[7.0], &[3.0]), [7.0]);
    }
}
