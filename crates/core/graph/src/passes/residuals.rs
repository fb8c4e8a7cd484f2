//! Error feedback: for each gradient whose sum is compressed, what a rank has lost of it so far (`--reduce-precision`).
//!
//! A residual lies at the offset of its gradient and its parameter, in an arena that outlives the step. The sum of a bucket reads and
//! changes it, so it is no operand of an instruction. It differs between ranks, alone of all that outlives a step.

use enmasse_tensor::DType;

use crate::{Graph, Role, ValueId};

/// What the names of residuals begin with, before that of the parameter.
pub const RESIDUAL_PREFIX: &str = "optimizer.reduce_residual.";

/// Adds a residual for each `(parameter, gradient)`.
pub(crate) fn add_residuals(graph: &mut Graph, gradients: &[(ValueId, ValueId)]) {
    for &(parameter, _) in gradients {
        let name = &graph.value(parameter).name;
        let shape = graph.shape(parameter).clone();
        graph.add_value(format!("{RESIDUAL_PREFIX}{name}"), shape, DType::F32, Role::Residual { parameter });
    }
}

#[cfg(test)]
mod tests {
    use enmasse_tensor::DType;

    use super::RESIDUAL_PREFIX;
    use crate::{Arena, CompileOptions, Plans, Strategy, Target, Tensor};

    fn plans(change: impl Fn(CompileOptions) -> CompileOptions, compresses_sums: bool) -> Result<Plans, String> {
        let net = |x: Tensor| x.flatten().linear("fc1", 30).relu().linear("fc2", 10);
        let options = CompileOptions { shards: 2, compress: Some(DType::Bf16), ..CompileOptions::new("net", 2, 4, 10) };
        let target = Target { compresses_sums, ..Target::default() };
        target.compile(&net, &change(options)).map_err(|error| error.to_string())
    }

    #[test]
    fn residuals_lie_at_the_offsets_of_parameters_and_metrics_stay_as_they_are() {
        let plans = plans(|options| options, true).unwrap();
        let train = plans.train.as_ref().unwrap();
        for parameter in plans.state.iter().filter(|tensor| tensor.slot.arena == Arena::Parameters) {
            let residual = plans.find(&format!("{RESIDUAL_PREFIX}{}", parameter.name)).unwrap();
            assert_eq!((residual.slot.arena, residual.slot.offset), (Arena::Residuals, parameter.slot.offset));
            assert_eq!(residual.shape, parameter.shape);
        }
        assert_eq!(plans.arena_bytes(Arena::Residuals), plans.arena_bytes(Arena::Parameters));
        let [gradients, carried] = &train.buckets[..] else { panic!("{:?}", train.buckets) };
        assert_eq!((gradients.sent, gradients.end()), (DType::Bf16, train.trainable));
        assert_eq!((carried.sent, carried.start), (DType::F32, train.trainable));
        assert!(train.to_string().contains(&format!("gradients[0..{}] in bf16 between nodes\n", train.trainable)));
    }

    #[test]
    fn nothing_is_compressed_where_there_is_nothing_to_sum_or_the_device_does_it() {
        let check = |plans: Plans| {
            assert_eq!(plans.arena_bytes(Arena::Residuals), 0);
            assert!(plans.train.unwrap().buckets.iter().all(|bucket| !bucket.is_compressed()));
        };
        check(plans(|options| CompileOptions { shards: 1, ..options }, true).unwrap());
        check(plans(|options| options, false).unwrap());
        for strategy in [Strategy::Replicated, Strategy::Partitioned { ranks: 2 }] {
            let error = plans(|options| CompileOptions { strategy, ..options }, true).unwrap_err();
            assert_eq!(error, "compressed sums need gradients of a whole model whose sums all ranks get");
        }
    }
}
