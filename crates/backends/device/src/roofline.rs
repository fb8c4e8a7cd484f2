//! The roofline of a plan: the least time of each instruction, by the bandwidth of memory and the peak rate of matmuls.
//!
//! An instruction takes at least as long as its operands and results need to cross the memory bus, each once, and at least as
//! long as its matmuls need at the peak rate. To start it costs nothing here, and a cache saves nothing.

use enmasse_graph::{Cost, Node, Op, Plan};

use crate::DeviceError;

/// What bounds an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The bandwidth of memory.
    Memory,
    /// The rate of matmuls.
    Matmuls,
}

/// The roofline of an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeastTime {
    /// What it moves and computes.
    pub work: Cost,
    /// The larger of its two times.
    pub bound: Bound,
    /// That time.
    pub seconds: f64,
}

impl LeastTime {
    /// The least time of work at a bandwidth in bytes a second, and at a rate in operations a second.
    pub fn new(work: Cost, bandwidth: f64, rate: f64) -> Self {
        let moving = work.bytes as f64 / bandwidth;
        let multiplying = work.flops as f64 / rate;
        let (bound, seconds) =
            if multiplying > moving { (Bound::Matmuls, multiplying) } else { (Bound::Memory, moving) };
        LeastTime { work, bound, seconds }
    }
}

/// The roofline of a plan on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// The device with its limits, such as `an h200 with 4800 GB/s`.
    pub device: String,
    /// What the times leave out.
    pub not_counted: &'static str,
    /// That of each instruction of the plan. `None` for those that do nothing on one device: sums over shards, and tokens in
    /// place of images.
    pub times: Vec<Option<LeastTime>>,
}

impl Roofline {
    /// The least times of the instructions of a plan that one device runs with one shard, by that of each.
    ///
    /// # Errors
    /// The plan has several shards, or an error of `time`.
    pub fn times(
        plan: &Plan,
        time: impl Fn(usize, &Node, Cost) -> Result<LeastTime, DeviceError>,
    ) -> Result<Vec<Option<LeastTime>>, DeviceError> {
        if plan.shards > 1 {
            let reason = "a roofline is that of one shard: leave `shards` and `accumulate` out";
            return Err(DeviceError::Unsupported(reason.into()));
        }
        let time = |(index, node): (usize, &Node)| {
            let is_sum = matches!(
                node.op,
                Op::AllReduceStart(_)
                    | Op::AllReduceWait(_)
                    | Op::ReduceStart(_)
                    | Op::ReduceWait(_)
                    | Op::ReduceScatterStart(_)
                    | Op::ReduceScatterWait(_)
                    | Op::AllGather(_)
                    | Op::Replicate(_)
                    | Op::SendTo(_)
                    | Op::ReceiveFrom(_)
                    | Op::SumStages(_)
                    | Op::SumOverRanks(_)
                    | Op::SumRequests(_)
            );
            let work = if is_sum { Cost::default() } else { plan.cost(node) };
            (work != Cost::default()).then(|| time(index, node, work)).transpose()
        };
        plan.instructions.iter().enumerate().map(time).collect()
    }
}
