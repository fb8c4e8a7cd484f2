//! Which of ONNX's nodes each operation is, in the order of graph's `ops/`.

mod attention;
mod elements;
mod images;
mod linear;
mod norms;
mod shapes;

use enmasse_graph::ops::*;

use crate::ExportError;
use crate::translation::Translation;

/// What an operation is in ONNX.
pub(crate) trait ToOnnx {
    /// Adds its nodes, and gives its results.
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError>;
}

/// Operations that ONNX has no nodes for.
macro_rules! not_exported {
    ($($operation:ident)*) => {$(
        impl ToOnnx for $operation {
            fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
                node.refuse()
            }
        }
    )*};
}

// What a program computes by its own code.
not_exported! { Custom }

// Of training: the builder records none of them for evaluation.
not_exported! {
    Dropout BatchNormStatistics RunningShare RunningUpdate
    Conv2dBackwardData Conv2dBackwardWeights LinearBackwardData LinearBackwardWeights BiasBackward
    BatchNormReduce BatchNormBackward BatchNormConv2dBackwardWeights ActivationBackward
    LayerNormBackward LayerNormReduce MaxPoolBackward AvgPoolBackward AdaptiveAvgPoolBackward
    MultiplyReduce FunctionBackward FlattenBackward AttentionBackward SumTokens SelectTokensBackward
    CrossEntropyBackward LogSoftmaxBackward SumClassesBackward SampleSumBackward
    SyncStatistics SyncSum AllReduceStart AllReduceWait ReduceStart ReduceWait Replicate
    SendTo ReceiveFrom Zeros SumStages CopyToRanks SumOverRanks SumRequests
    ReduceScatterStart ReduceScatterWait AllGather
    CheckFinite GradientNorm Scale Unscale UpdateScale Update Average Lookahead
}

// Of the loss and the metrics, which follow the model.
not_exported! { CrossEntropy Targets TopKCorrect SampleSum MaskSamples ShareMetrics }

// What passes make of others.
not_exported! { Conv2dBatchNorm BatchNormConv2d }
