//! What a stage of a model exchanges with the stages beside it, and with all of them at the end of a step.

use std::ops::Range;

use super::Operation;

/// Sends a value of one micro-batch to the stage beside: an activation to the next one, a gradient to the one before. The value is
/// copied, so its memory is free afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendTo {
    /// The stage, from 0.
    pub stage: usize,
    /// Bytes of each micro-batch.
    pub bytes: usize,
}

impl Operation for SendTo {
    const NAME: &'static str = "send";
    const SIGNATURE: &'static str = "(x) -> ()";
    const PYTORCH: Option<&'static str> = Some("torch.distributed.isend");

    fn attributes(&self) -> String {
        format!("to stage {} bytes {}", self.stage, self.bytes)
    }
}

/// Waits for the value of one micro-batch that the stage beside sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveFrom {
    /// The stage, from 0.
    pub stage: usize,
    /// Bytes of each micro-batch.
    pub bytes: usize,
}

impl Operation for ReceiveFrom {
    const NAME: &'static str = "receive";
    const SIGNATURE: &'static str = "() -> (x)";
    const PYTORCH: Option<&'static str> = Some("torch.distributed.recv");

    fn attributes(&self) -> String {
        format!("from stage {} bytes {}", self.stage, self.bytes)
    }
}

/// Zeros in place of what only the last stage computes: logits, loss, hits and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Zeros;

impl Operation for Zeros {
    const NAME: &'static str = "zeros";
    const SIGNATURE: &'static str = "() -> (values..)";
    const PYTORCH: Option<&'static str> = Some("torch.zeros");
}

/// The sum of a value over all stages, on each of them: the losses and metrics, which are zero but on the last one, and the requests
/// to stop and to save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumStages;

impl Operation for SumStages {
    const NAME: &'static str = "sum_stages";
    const SIGNATURE: &'static str = "(metrics [shards + n + 2]) -> ()";
    const PYTORCH: Option<&'static str> = Some("torch.distributed.all_reduce");

    fn changes(&self, _: usize) -> Range<usize> {
        0..1
    }
}
