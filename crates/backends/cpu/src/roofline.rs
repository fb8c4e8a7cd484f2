//! The roofline of a plan on this machine, by limits that are measured when it is asked for.
//!
//! Winograd's convolutions count the products of their tiles, all others those of direct sums, with padding. Additions and
//! functions count nothing, nor do the transforms of tiles.

use enmasse_device::{DeviceError, LeastTime, Roofline};
use enmasse_graph::{Cost, Node, Op, Plan};
use enmasse_tensor::DType;

use crate::algorithm::Algorithm;
use crate::conv::winograd;
use crate::isa::Isa;
use crate::peak::{Matmul, direct_gflops, memory_gigabytes, peak_gflops};

/// The limits of a number of threads at a level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of memory, in 10^9 bytes a second.
    gigabytes: f64,
    /// Of f32 values, in 10^9 operations a second.
    f32: f64,
    /// Of f32 values in direct matmuls, which may multiply their parts.
    direct: f64,
    /// Of bf16 values, if the level multiplies them.
    bf16: Option<f64>,
}

impl Limits {
    /// Measures them, in about half a second. `None` if this machine lacks the level.
    pub(crate) fn measure(isa: Isa, threads: usize) -> std::io::Result<Option<Self>> {
        let Some(f32) = peak_gflops(isa, Matmul::F32, threads)? else { return Ok(None) };
        let direct = direct_gflops(isa, threads)?.unwrap_or(f32);
        let bf16 = peak_gflops(isa, Matmul::Bf16, threads)?;
        Ok(Some(Limits { gigabytes: memory_gigabytes(threads)?, f32, direct, bf16 }))
    }

    /// The roofline of a plan on a device of that name, with the algorithm of each instruction.
    pub(crate) fn roofline(&self, plan: &Plan, device: &str, algorithms: &[String]) -> Result<Roofline, DeviceError> {
        let times = Roofline::times(plan, |index, node, work| Ok(self.time(plan, node, &algorithms[index], work)))?;
        let Limits { gigabytes, f32, direct, bf16 } = *self;
        let direct = if direct > f32 { format!(", {direct:.0} in three parts") } else { String::new() };
        let bf16 = bf16.map_or(String::new(), |rate| format!(", {rate:.0} in bf16"));
        Ok(Roofline {
            device: format!(
                "{device}, which now reached {gigabytes:.1} GB/s and {f32:.0} GFLOP/s in f32{direct}{bf16}"
            ),
            not_counted: "what caches save is not counted, nor arithmetic other than matmuls",
            times,
        })
    }

    fn time(&self, plan: &Plan, node: &Node, algorithm: &str, work: Cost) -> LeastTime {
        let by = |known: Algorithm| algorithm == known.name();
        // Loops over pixels multiply in f32.
        let widens = by(Algorithm::Depthwise) || by(Algorithm::Grouped);
        let is_narrow = node.inputs.iter().any(|&id| plan.value(id).dtype == DType::Bf16);
        let wide = if by(Algorithm::Direct) { self.direct } else { self.f32 };
        let rate = self.bf16.filter(|_| is_narrow && !widens).unwrap_or(wide);
        let flops = if by(Algorithm::Winograd) { winograd_flops(plan, node) } else { work.flops };
        LeastTime::new(Cost { flops, ..work }, self.gigabytes * 1e9, rate * 1e9)
    }
}

/// The operations between transformed tiles: those of the result, or of its gradient that the gradient of weights reads.
fn winograd_flops(plan: &Plan, node: &Node) -> u64 {
    let is_of_weights = matches!(node.op, Op::Conv2dBackwardWeights(_) | Op::BatchNormConv2dBackwardWeights(_));
    let tiled = plan.shape(if is_of_weights { node.inputs[1] } else { node.outputs[0] });
    let products = winograd::matmuls(plan.batch, [tiled[1], tiled[2], tiled[3]]);
    (2 * products * plan.shape(node.inputs[0]).last() * tiled.last()) as u64
}

#[cfg(test)]
mod tests {
    use enmasse_device::{Bound, Device};
    use enmasse_graph::{CompileOptions, Conv, Precision, Tensor};

    use super::*;
    use crate::{Cpu, CpuOptions};

    #[test]
    fn instructions_by_hand() {
        let limits = Limits { gigabytes: 10.0, f32: 100.0, direct: 200.0, bf16: Some(1000.0) };
        let cpu = |exact| Cpu::new(CpuOptions { threads: 1, exact, ..CpuOptions::default() }).unwrap();
        let model = |x: Tensor| {
            let x = x.conv2d("stem", Conv::new(64, 1).no_bias());
            let x = x.conv2d("wide", Conv::new(32, 3).padding(0).no_bias());
            let x = x.conv2d("deep", Conv::new(32, 3).padding(1).groups(32).no_bias());
            // ReLU keeps the layer before from giving statistics.
            let x = x.relu().batch_norm("bn").conv2d("normalized", Conv::new(32, 3).padding(1).no_bias());
            x.flatten().linear("fc", 10)
        };
        let check = |precision, exact, name: &str, layer: &str, (bytes, flops, rate): (u64, u64, f64)| {
            let cpu = cpu(exact);
            let options = CompileOptions { precision, ..CompileOptions::new("net", 2, 16, 10) };
            let plan = cpu.target().compile(&model, &options).unwrap().train.unwrap();
            let at = plan.instructions.iter().position(|node| node.op.name() == name && node.layer == layer).unwrap();
            let roofline = limits.roofline(&plan, "cpu", &cpu.algorithms(&plan).unwrap()).unwrap();
            let found = roofline.times[at].unwrap();
            let moving = bytes as f64 / 10e9;
            let multiplying = flops as f64 / (rate * 1e9);
            let bound = if multiplying > moving { Bound::Matmuls } else { Bound::Memory };
            let expected = LeastTime { work: Cost { bytes, flops }, bound, seconds: moving.max(multiplying) };
            assert_eq!(found, expected, "{precision:?} {name} {layer}");
        };
        // Two images of 16 x 16 pixels become ones of 14 x 14. Sides of 14 are 3 + 4 + 3 + 4 with 22 products, those of 16 have 24.
        let (before, after, filters) = (2 * 256 * 64, 2 * 196 * 32, 9 * 64 * 32);
        let direct = 2 * 2 * 196 * filters;
        let tiles = |side: u64| 2 * 2 * side * side * 64 * 32;
        let bytes = 4 * (before + after + filters);
        check(Precision::F32, false, "conv2d", "wide", (bytes, tiles(22), 100.0));
        check(Precision::F32, true, "conv2d", "wide", (bytes, direct, 200.0));
        check(Precision::F32, false, "conv2d_backward_data", "wide", (bytes, tiles(24), 100.0));
        check(Precision::F32, true, "conv2d_backward_data", "wide", (bytes, direct, 200.0));
        check(Precision::F32, false, "conv2d_backward_weights", "wide", (bytes, tiles(22), 100.0));
        let narrow = 2 * (before + after) + 4 * filters;
        check(Precision::Bf16, true, "conv2d", "wide", (narrow, direct, 1000.0));
        // The gradient of weights counts the tiles of dy, whether or not it normalises x.
        let of_norm = 4 * 32;
        let filters = 9 * 32 * 32;
        let normalized = (4 * (2 * after + of_norm + filters), 2 * 2 * 22 * 22 * 32 * 32, 100.0);
        check(Precision::F32, false, "batch_norm_conv2d_backward_weights", "normalized", normalized);
        // Loops over pixels are in f32.
        let deep = (2 * 2 * after + 4 * 9 * 32, 2 * after * 9, 100.0);
        check(Precision::Bf16, false, "conv2d", "deep", deep);
        // So are the last layer's products.
        let linear = (4 * (after + 10 * after / 2 + 10 + 20), 2 * after * 10, 200.0);
        check(Precision::Bf16, false, "linear", "fc", linear);
    }

    #[test]
    fn limits_of_this_machine() {
        let limits = Limits::measure(Isa::detect(), 2).unwrap().unwrap();
        assert!(limits.gigabytes > 0.0 && limits.f32 > 0.0, "{limits:?}");
        assert_eq!(limits.bf16.is_some(), Matmul::Bf16.available(Isa::detect()));
    }
}
