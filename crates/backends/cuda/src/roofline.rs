//! The roofline of a plan on a GPU: the least time of each instruction by the GPU's public figures. It needs no GPU.

use enmasse_device::{DeviceError, LeastTime, Roofline};
use enmasse_graph::{FilterOrder, Node, Plan, Precision, Target};
use enmasse_tensor::DType;

use crate::kernels::rows::PACKET_BYTES;
use crate::ops::conv2d::may_take_relu;
use crate::ops::normalize::IMAGE_CHANNELS;

/// The public figures of a GPU.
///
/// Sources: NVIDIA's data sheets of H200, H100, A100 80GB and T4; "NVIDIA Ada GPU architecture" for the RTX 4090; "NVIDIA
/// Blackwell architecture technical brief" for the B200. Rates are those without sparsity: half of what the sheets with an
/// asterisk say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// The name in commands.
    pub name: &'static str,
    /// The driver's name for it.
    pub device: &'static str,
    /// Of its memory, in 10^9 bytes a second.
    pub gigabytes: f64,
    /// Matmuls in f32, in 10^12 operations a second. A product that is added to a sum is two operations.
    pub f32: f64,
    /// Matmuls of operands rounded to tf32, if it has them.
    pub tf32: Option<f64>,
    /// Products of bf16 that are summed in f32, if it has them.
    pub bf16: Option<f64>,
    /// Matmuls of f16 that are summed in f32.
    pub f16: f64,
}

/// The GPUs with figures. Those with several forms are SXM modules.
pub static GPUS: [Gpu; 6] = [
    Gpu {
        name: "h200",
        device: "NVIDIA H200",
        gigabytes: 4800.0,
        f32: 67.0,
        tf32: Some(494.5),
        bf16: Some(989.5),
        f16: 989.5,
    },
    Gpu {
        name: "h100",
        device: "NVIDIA H100 80GB HBM3",
        gigabytes: 3350.0,
        f32: 67.0,
        tf32: Some(494.5),
        bf16: Some(989.5),
        f16: 989.5,
    },
    Gpu {
        name: "a100",
        device: "NVIDIA A100-SXM4-80GB",
        gigabytes: 2039.0,
        f32: 19.5,
        tf32: Some(156.0),
        bf16: Some(312.0),
        f16: 312.0,
    },
    Gpu {
        name: "rtx4090",
        device: "NVIDIA GeForce RTX 4090",
        gigabytes: 1008.0,
        f32: 82.6,
        tf32: Some(82.6),
        bf16: Some(165.2),
        f16: 165.2,
    },
    Gpu { name: "t4", device: "Tesla T4", gigabytes: 320.0, f32: 8.1, tf32: None, bf16: None, f16: 65.0 },
    Gpu {
        name: "b200",
        device: "NVIDIA B200",
        gigabytes: 8000.0,
        f32: 80.0,
        tf32: Some(1100.0),
        bf16: Some(2250.0),
        f16: 2250.0,
    },
];

/// What a plan must be compiled for, as a GPU's `Device::target` says without a GPU.
pub fn target() -> Target<'static> {
    let filters = FilterOrder::Ohwi;
    let gate_bytes = Some(PACKET_BYTES);
    let image_channels = Some(IMAGE_CHANNELS);
    Target { filters, gate_bytes, image_channels, narrow_features: true, ..Target::default() }
}

impl Gpu {
    /// The GPU of that name.
    pub fn find(name: &str) -> Option<&'static Gpu> {
        GPUS.iter().find(|gpu| gpu.name == name)
    }

    /// The GPU of the driver's name for it. Other forms of a GPU, such as PCIe cards, have other figures.
    pub fn of_device(name: &str) -> Option<&'static Gpu> {
        GPUS.iter().find(|gpu| gpu.device == name)
    }

    /// The rate of an instruction's matmuls, in operations a second. Where none of its activations has 16 bits, it multiplies in
    /// f32 under any precision but tf32.
    fn rate(&self, plan: &Plan, node: &Node) -> Option<f64> {
        let mut operands = node.inputs.iter().chain(&node.outputs);
        let is_narrow = operands.any(|&id| matches!(plan.value(id).dtype, DType::Bf16 | DType::F16));
        let rate = match plan.precision {
            Precision::Tf32 => self.tf32,
            Precision::Bf16 if is_narrow => self.bf16,
            Precision::F16 if is_narrow => Some(self.f16),
            Precision::F32 | Precision::Bf16 | Precision::F16 => Some(self.f32),
        };
        rate.map(|rate| rate * 1e12)
    }

    /// The roofline of a plan that this GPU alone runs with one shard.
    ///
    /// # Errors
    /// The GPU has no matmuls in the plan's precision, or the plan has several shards.
    pub fn roofline(&self, plan: &Plan) -> Result<Roofline, DeviceError> {
        let mut times = Roofline::times(plan, |_, node, work| {
            let rate = self.rate(plan, node).ok_or_else(|| {
                let name = self.name;
                let precision = plan.precision.name();
                DeviceError::Unsupported(format!("{name} has no {precision}: use `precision = f16` or f32"))
            })?;
            Ok(LeastTime::new(work, self.gigabytes * 1e9, rate))
        })?;
        for (pair, time) in plan.instructions.windows(2).zip(times.iter_mut().skip(1)) {
            if may_take_relu(plan, &pair[0], &pair[1]) {
                *time = None;
            }
        }
        let device = format!("an {} with {} GB/s", self.name, self.gigabytes);
        Ok(Roofline { device, not_counted: "the cost of launches is not counted", times })
    }
}

#[cfg(test)]
mod tests {
    use enmasse_device::Bound;
    use enmasse_graph::{CompileOptions, Conv, Cost, Plans, Tensor};

    use super::*;

    /// A convolution, batch norm and activation of ResNet's first stage, after a cheap stem.
    fn plans(precision: Precision, shards: usize) -> Plans {
        let model = |x: Tensor| {
            let x = x.conv2d("stem", Conv::new(64, 1).no_bias());
            let x = x.conv2d("conv", Conv::new(64, 3).padding(1).no_bias()).batch_norm("bn").relu();
            x.tokens().linear("tokens", 64).mean_tokens().linear("fc", 1000)
        };
        let options = CompileOptions { precision, shards, ..CompileOptions::new("net", 256, 56, 1000) };
        target().compile(&model, &options).unwrap()
    }

    #[test]
    fn instructions_by_hand() {
        let check = |precision,
                     name: &str,
                     layer: &str,
                     gpu: &str,
                     (bytes, flops, bound, seconds): (u64, u64, Bound, f64)| {
            let plan = plans(precision, 1).train.unwrap();
            let at = |node: &Node| node.op.name() == name && node.layer == layer;
            let at = plan.instructions.iter().position(at).unwrap();
            let time = Gpu::find(gpu).unwrap().roofline(&plan).unwrap().times[at].unwrap();
            assert_eq!((time.work, time.bound), (Cost { bytes, flops }, bound), "{precision:?} {name} {layer} {gpu}");
            assert!((time.seconds / seconds - 1.0).abs() < 1e-12, "{precision:?} {name} {layer} {gpu}: {time:?}");
        };
        // A feature map of 56 x 56 pixels of 64 channels for each of 256 images.
        let map = 256 * 56 * 56 * 64;
        let filters = 64 * 9 * 64;
        let matmuls = 2 * map * 9 * 64;
        let (bf16, f32) = (2 * 2 * map + 4 * filters, 2 * 4 * map + 4 * filters);
        let seconds = |matmuls: u64, rate: f64| matmuls as f64 / (rate * 1e12);
        let conv = |bytes, rate| (bytes, matmuls, Bound::Matmuls, seconds(matmuls, rate));
        check(Precision::Bf16, "conv2d", "conv", "h200", conv(bf16, 989.5));
        check(
            Precision::Bf16,
            "conv2d_backward_weights",
            "conv",
            "h100",
            (bf16, matmuls, Bound::Memory, bf16 as f64 / 3350e9),
        );
        check(Precision::Tf32, "conv2d_backward_data", "conv", "a100", conv(f32, 156.0));
        check(Precision::F16, "conv2d", "conv", "t4", conv(bf16, 65.0));
        check(Precision::F32, "conv2d", "conv", "h200", conv(f32, 67.0));
        check(Precision::F32, "conv2d", "conv", "t4", conv(f32, 8.1));
        // A pass reads and writes the feature map, and a bit for each element; statistics only read it. Each channel has two
        // statistics and two parameters.
        let pass = |bytes: u64| (bytes, 0, Bound::Memory, bytes as f64 / 4800e9);
        check(Precision::Bf16, "batch_norm_statistics", "bn", "h200", pass(2 * map + 2 * 4 * 64));
        check(Precision::Bf16, "batch_norm_normalize", "bn", "h200", pass(2 * 2 * map + map / 8 + 4 * 4 * 64));
        // Gradients are read; weights and momentum are read and written.
        let parameters = 3 * 64 + filters + 2 * 64 + 64 * 64 + 64 + 64 * 1000 + 1000;
        check(Precision::Bf16, "update", "step", "h200", pass(5 * 4 * parameters));
        // Tokens and features have 16 bits, with which memory bounds what matmuls bound in f32. Logits stay f32.
        let weights = 4 * (64 * 64 + 64);
        let matmuls = 2 * map * 64;
        let tokens = |bytes: u64| bytes * 2 * map + weights;
        check(
            Precision::Bf16,
            "linear",
            "tokens",
            "h200",
            (tokens(2), matmuls, Bound::Memory, tokens(2) as f64 / 4800e9),
        );
        let f32 = (tokens(4), matmuls, Bound::Matmuls, seconds(matmuls, 67.0));
        check(Precision::F32, "linear", "tokens", "h200", f32);
        let linear = |bytes: u64| bytes * 256 * 64 + 4 * (64 * 1000 + 256 * 1000 + 1000);
        let matmuls = 2 * 256 * 64 * 1000;
        check(Precision::Bf16, "linear", "fc", "h200", (linear(2), matmuls, Bound::Memory, linear(2) as f64 / 4800e9));
        check(Precision::F32, "linear", "fc", "h200", (linear(4), matmuls, Bound::Matmuls, seconds(matmuls, 67.0)));
    }

    /// One that nothing else reads comes with the convolution.
    #[test]
    fn relus_after_a_bias_take_no_time() {
        let model = |x: Tensor| {
            let x = x.conv2d("fused", Conv::new(8, 3)).relu().conv2d("grouped", Conv::new(8, 3).groups(2)).relu();
            let y = x.conv2d("read_twice", Conv::new(8, 3));
            (y.clone().relu() + y).conv2d("no_bias", Conv::new(8, 3).no_bias()).relu().flatten().linear("fc", 3)
        };
        let options = CompileOptions { precision: Precision::Bf16, ..CompileOptions::new("net", 4, 20, 3) };
        let plan = target().compile(&model, &options).unwrap().train.unwrap();
        let times = Gpu::find("h200").unwrap().roofline(&plan).unwrap().times;
        let relus = plan.instructions.iter().zip(times).filter(|(node, _)| node.op.name() == "relu");
        let found: Vec<(&str, bool)> = relus.map(|(node, time)| (&*node.layer, time.is_some())).collect();
        assert_eq!(found, [("fused", false), ("grouped", true), ("read_twice", true), ("no_bias", true)]);
    }

    #[test]
    fn gpus_by_the_drivers_names() {
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(Gpu::of_device(name).map(|gpu| gpu.name), expected, "{name}");
        };
        check("NVIDIA H200", Some("h200"));
        check("NVIDIA H100 80GB HBM3", Some("h100"));
        check("NVIDIA H100 PCIe", None);
        check("NVIDIA T400", None);
        check("Emulated GPU 0", None);
    }

    #[test]
    fn what_has_no_roofline() {
        let check = |precision, shards, gpu: &str, expected: &str| {
            let plan = plans(precision, shards).train.unwrap();
            let found = Gpu::find(gpu).unwrap().roofline(&plan).unwrap_err().to_string();
            assert!(found.contains(expected), "{found}");
        };
        check(Precision::Bf16, 1, "t4", "t4 has no bf16: use `precision = f16` or f32");
        check(Precision::Tf32, 1, "t4", "t4 has no tf32: use `precision = f16` or f32");
        check(Precision::F32, 2, "h200", "a roofline is that of one shard");
        assert_eq!(Gpu::find("h300"), None);
    }
}
