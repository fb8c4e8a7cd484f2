//! The metrics that all shards share.

use enmasse_graph::ops::ShareMetrics;

/// `[shards + n + 2]` for the n numbers `counts`: zeros for the shards, except for this shard's loss at its own index; then
/// its counts, and for each of the two requests 1 if the shard has it, else 0.
pub fn share_metrics(loss: f64, counts: &[f64], requests: [bool; 2], shard: usize, shards: usize) -> Vec<f64> {
    let mut metrics = vec![0.0; shards];
    metrics[shard] = loss;
    metrics.extend(counts);
    metrics.extend(requests.map(|request| f64::from(u8::from(request))));
    metrics
}

each_shard!(ShareMetrics, |&ShareMetrics { shards }, call, [loss]| {
    let requests = [call.step.inputs.stop, call.step.inputs.save];
    vec![share_metrics(loss[0], &call.rest.concat(), requests, call.index, shards)]
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_a_place_per_shard() {
        assert_eq!(share_metrics(0.5, &[3.0], [false, true], 1, 3), [0.0, 0.5, 0.0, 3.0, 0.0, 1.0]);
        assert_eq!(share_metrics(0.5, &[3.0, 7.0], [true, false], 0, 1), [0.5, 3.0, 7.0, 1.0, 0.0]);
    }
}
