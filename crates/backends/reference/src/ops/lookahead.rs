//! The slow weights of Lookahead.

use enmasse_graph::ops::Lookahead;

/// What a value and its slow weight both become.
pub fn lookahead(alpha: f32, values: &[f64], slow: &[f64]) -> Vec<f64> {
    values.iter().zip(slow).map(|(value, slow)| value + (1.0 - f64::from(alpha)) * (slow - value)).collect()
}

each_shard!(Lookahead, |_, call, []| {
    let (values, slow) = call.rest.split_at(call.rest.len() / 2);
    let Some(alpha) = call.step.inputs.lookahead else {
        return Ok(call.rest.iter().map(|old| old.to_vec()).collect());
    };
    let joined: Vec<Vec<f64>> = values.iter().zip(slow).map(|(values, slow)| lookahead(alpha, values, slow)).collect();
    [joined.clone(), joined].concat()
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_weights_by_hand() {
        assert_eq!(lookahead(0.25, &[3.0, 1.0], &[-1.0, 1.0]), [0.0, 1.0]);
        assert_eq!(lookahead(1.0, &[3.0], &[-1.0]), [3.0]);
    }
}
