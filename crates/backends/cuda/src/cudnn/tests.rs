//! Convolutions through the emulated cuDNN against the reference's loops, and what is refused.

use enmasse_graph::ops::Conv2d;
use enmasse_graph::{FilterOrder, Precision, Window};
use enmasse_reference::ops::conv2d::{self, Shapes};
use enmasse_tensor::{DType, RandomStream};

use super::*;
use crate::driver::{Buffer, Graph};
use crate::test_support::{EmulatedGpu, decode, encode, unit};

/// The emulated GPU, with a handle that submits to its stream.
struct Gpu {
    emulated: EmulatedGpu,
    handle: Handle,
    cudnn: Cudnn,
}

impl Gpu {
    /// `None` without a compiler: the test is then in the table.
    fn open() -> Option<Self> {
        let emulated = EmulatedGpu::open()?;
        let cudnn = Cudnn::load(&emulated.libraries, 12).unwrap();
        let mut handle = cudnn.handle().unwrap();
        // SAFETY: the stream is of the handle's context, and lives as long.
        unsafe { handle.set_stream(emulated.stream.raw()) }.unwrap();
        Some(Gpu { emulated, handle, cudnn })
    }

    fn plans(&self, problem: &Problem, options: &Options) -> Result<Vec<ConvolutionPlan>, CudaError> {
        self.cudnn.plans(&Target::Handle(&self.handle), problem, options)
    }

    /// The operand that the plan computes, when the others have these values.
    fn run(&self, plan: &ConvolutionPlan, [x, w, y, bias]: [&[f64]; 4]) -> Vec<f64> {
        let problem = plan.problem();
        let activations = problem.arithmetic.activations();
        let [x, w, y] = [encode(x, activations), encode(w, plan.weights), encode(y, activations)];
        let [x, w, y, bias] = [&x, &w, &y, &encode(bias, activations)].map(|bytes| self.emulated.buffer(bytes));
        let workspace = Buffer::new(&self.emulated.context, "workspace", plan.workspace.max(1) as usize).unwrap();
        let operands = Operands {
            x: x.address(),
            w: w.address(),
            y: y.address(),
            bias: bias.address(),
            workspace: workspace.address(),
        };
        // SAFETY: the buffers are as large as the problem's shapes, and are read below, after the stream's work.
        unsafe { plan.execute(&self.handle, &operands) }.unwrap();
        let (result, shape, dtype) = match problem.direction {
            Direction::Forward(_) => (y, problem.y, activations),
            Direction::BackwardData { .. } => (x, problem.x, activations),
            Direction::BackwardWeights => (w, problem.w, plan.weights),
        };
        let mut bytes = vec![0; shape.iter().product::<usize>() * dtype.size()];
        result.read(&self.emulated.stream, 0, &mut bytes).unwrap();
        decode(&bytes, dtype)
    }
}

/// Multiples of 1/64 between -2 and 2, which every type represents.
fn values(key: u64, shape: [usize; 4]) -> Vec<f64> {
    let mut stream = RandomStream::new(0, "test", 0, key);
    (0..shape.iter().product()).map(|_| (stream.uniform(-128.0, 128.0) as i64 / 2) as f64 / 32.0).collect()
}

fn problem(x: [usize; 4], outputs: usize, groups: usize, window: Window, arithmetic: Precision) -> Problem {
    let [height, width] = [0, 1].map(|axis| window.output(axis, x[1 + axis]).unwrap());
    Problem {
        direction: Direction::Forward(Epilogue::None),
        x,
        w: [outputs, window.kernel[0], window.kernel[1], x[3] / groups],
        y: [x[0], height, width, outputs],
        conv: Conv2d { window, groups },
        arithmetic,
    }
}

const ARITHMETICS: [Precision; 4] = [Precision::F32, Precision::Tf32, Precision::Bf16, Precision::F16];
const DIRECTIONS: [Direction; 6] = [
    Direction::Forward(Epilogue::None),
    Direction::Forward(Epilogue::Bias),
    Direction::Forward(Epilogue::BiasRelu),
    Direction::BackwardData { accumulate: false },
    Direction::BackwardData { accumulate: true },
    Direction::BackwardWeights,
];
const ANY: Options = Options { deterministic: false, exact: false, workspace: u64::MAX, candidates: 100 };

fn window(kernel: [usize; 2], stride: [usize; 2], padding: [[usize; 2]; 2], dilation: [usize; 2]) -> Window {
    Window { kernel, stride, padding, dilation }
}

/// Odd sizes, groups of one and of several channels, windows that leave pixels out, and ones larger than the image.
fn shapes() -> [([usize; 4], usize, usize, Window); 11] {
    [
        ([1, 1, 1, 1], 1, 1, window([1; 2], [1; 2], [[0; 2]; 2], [1; 2])),
        ([2, 5, 7, 3], 4, 1, window([3; 2], [1; 2], [[1; 2]; 2], [1; 2])),
        ([3, 9, 6, 8], 16, 1, window([3, 1], [2, 3], [[1; 2], [0; 2]], [1; 2])),
        ([2, 8, 8, 6], 9, 3, window([3; 2], [1; 2], [[1; 2]; 2], [2, 1])),
        ([2, 6, 5, 16], 16, 16, window([3; 2], [2; 2], [[1; 2]; 2], [1; 2])),
        ([1, 2, 2, 5], 2, 1, window([5, 4], [1, 2], [[2; 2]; 2], [1; 2])),
        ([2, 7, 7, 40], 33, 1, window([1; 2], [2; 2], [[0; 2]; 2], [1; 2])),
        ([1, 13, 11, 3], 8, 1, window([7; 2], [2; 2], [[3; 2]; 2], [1; 2])),
        // Sides that differ, as of TensorFlow.
        ([2, 8, 6, 3], 8, 1, window([3; 2], [2; 2], [[0, 1]; 2], [1; 2])),
        ([2, 7, 8, 6], 6, 6, window([5; 2], [2; 2], [[2, 2], [1, 2]], [1; 2])),
        ([1, 5, 7, 4], 6, 2, window([3; 2], [1; 2], [[4, 0], [0, 2]], [1, 2])),
    ]
}

#[test]
fn convolutions_equal_the_reference() {
    let Some(gpu) = Gpu::open() else { return };
    let mut types_of_weights = Vec::new();
    for (index, (x, outputs, groups, window)) in shapes().into_iter().enumerate() {
        for arithmetic in ARITHMETICS {
            for direction in DIRECTIONS {
                let problem = Problem { direction, ..problem(x, outputs, groups, window, arithmetic) };
                let key = 4 * index as u64;
                let x = values(key, problem.x);
                let w = values(key + 1, problem.w);
                let y = values(key + 2, problem.y);
                let bias = values(key + 3, [1, 1, 1, outputs]);
                let shapes = Shapes { x: problem.x, w: problem.w, y: problem.y, filters: FilterOrder::Ohwi };
                let expected = match direction {
                    Direction::Forward(epilogue) => {
                        let bias = (epilogue != Epilogue::None).then_some(bias.as_slice());
                        let floor = if epilogue == Epilogue::BiasRelu { 0.0 } else { f64::NEG_INFINITY };
                        let y = conv2d::forward(&x, &w, bias, &shapes, &problem.conv);
                        y.into_iter().map(|y| y.max(floor)).collect()
                    }
                    Direction::BackwardData { accumulate } => {
                        conv2d::backward_data(&y, &w, accumulate.then_some(x.as_slice()), &shapes, &problem.conv)
                    }
                    Direction::BackwardWeights => conv2d::backward_weights(&x, &y, &shapes, &problem.conv),
                };
                let largest = expected.iter().fold(0f64, |most, value| most.max(value.abs()));
                let plans = gpu.plans(&problem, &ANY).unwrap();
                for plan in &plans {
                    let found = gpu.run(plan, [&x, &w, &y, &bias]);
                    let unit = match direction {
                        Direction::BackwardWeights => unit(plan.weights),
                        _ => unit(problem.arithmetic.activations()),
                    };
                    assert_eq!(found.len(), expected.len());
                    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let error = unit * expected.abs() + 1e-6 * largest;
                        assert!(
                            (found - expected).abs() <= error,
                            "{problem}, {}, {at}: {found}, not {expected}",
                            plan.name()
                        );
                    }
                    // The name makes the plan again, which gives the same bits.
                    let again = gpu.cudnn.plan(&Target::Handle(&gpu.handle), &problem, &plan.name(), &ANY).unwrap();
                    assert_eq!(gpu.run(&again, [&x, &w, &y, &bias]), found, "{problem}, {}", plan.name());
                }
                types_of_weights.push((direction, arithmetic, plans[0].weights));
            }
        }
    }
    let written = |dtype| (Direction::BackwardWeights, Precision::Bf16, dtype);
    assert!(types_of_weights.contains(&written(DType::F32)) && types_of_weights.contains(&written(DType::Bf16)));
}

#[test]
fn f32_does_not_round_to_tf32() {
    let Some(gpu) = Gpu::open() else { return };
    let window = window([1; 2], [1; 2], [[0; 2]; 2], [1; 2]);
    // More bits than tf32 has.
    let exact = 2f64.powi(-11) + 2f64.powi(-13);
    let x = [1.0 + exact, 1.0];
    let w = [1.0, -1.0];
    let check = |arithmetic, is_exact: bool| {
        let problem = problem([1, 1, 1, 2], 1, 1, window, arithmetic);
        for plan in gpu.plans(&problem, &ANY).unwrap() {
            let found = gpu.run(&plan, [&x, &w, &[0.0], &[0.0]])[0];
            let engine = plan.name();
            assert_eq!(found == exact, is_exact || !engine.starts_with("eng1"), "{engine}: {found}");
        }
    };
    check(Precision::F32, true);
    check(Precision::Tf32, false);
}

#[test]
fn options_choose_engines() {
    let Some(gpu) = Gpu::open() else { return };
    let (x, outputs, groups, window) = shapes()[1];
    let check = |arithmetic, options: Options, expected: &[&str]| {
        let plans = gpu.plans(&problem(x, outputs, groups, window, arithmetic), &options).unwrap();
        let names: Vec<String> = plans.iter().map(ConvolutionPlan::name).collect();
        assert_eq!(names, expected, "{arithmetic:?}, {options:?}");
    };
    check(Precision::Bf16, ANY, &["eng1_k2=1", "eng2", "eng0"]);
    check(Precision::Tf32, ANY, &["eng1_k2=1", "eng2", "eng0"]);
    check(Precision::F32, ANY, &["eng2", "eng0"]);
    check(Precision::F16, Options { deterministic: true, ..ANY }, &["eng1_k2=1", "eng0"]);
    check(Precision::F16, Options { workspace: 1023, ..ANY }, &["eng2", "eng0"]);
    check(Precision::F16, Options { workspace: 1024, candidates: 1, ..ANY }, &["eng1_k2=1"]);
}

#[test]
fn a_relu_keeps_nan() {
    let Some(gpu) = Gpu::open() else { return };
    let window = window([1; 2], [1; 2], [[0; 2]; 2], [1; 2]);
    for arithmetic in ARITHMETICS {
        let problem = problem([1, 1, 3, 1], 1, 1, window, arithmetic);
        let problem = Problem { direction: Direction::Forward(Epilogue::BiasRelu), ..problem };
        for plan in gpu.plans(&problem, &ANY).unwrap() {
            let found = gpu.run(&plan, [&[f64::NAN, -3.0, 3.0], &[1.0], &[0.0; 3], &[1.0]]);
            assert!(found[0].is_nan() && found[1..] == [0.0, 4.0], "{}: {found:?}", plan.name());
        }
    }
}

/// The emulation's estimate names engines that write f32 for windows of 1x1 only, and its fallback one for others.
#[test]
fn gradients_of_weights_ask_the_fallback_last() {
    let Some(gpu) = Gpu::open() else { return };
    let check = |kernel: [usize; 2], options: Options, expected: &[&str]| {
        let window = window(kernel, [1; 2], [[0; 2]; 2], [1; 2]);
        let problem = problem([2, 5, 5, 16], 8, 1, window, Precision::Bf16);
        let plans = gpu.plans(&Problem { direction: Direction::BackwardWeights, ..problem }, &options).unwrap();
        let names: Vec<String> = plans.iter().map(ConvolutionPlan::name).collect();
        assert_eq!(names, expected, "{kernel:?}, {options:?}");
        assert!(plans.iter().all(|plan| !plan.is_fallback));
    };
    check([1; 2], Options { candidates: 1, ..ANY }, &["eng1_k2=1_f32"]);
    check([3; 2], Options { candidates: 1, ..ANY }, &["eng1_k2=1_bf16"]);
    // Both types are candidates, and what one does not need is left to the other.
    check([1; 2], Options { candidates: 3, ..ANY }, &["eng1_k2=1_f32", "eng1_k2=1_bf16", "eng2_bf16"]);
    check([3; 2], Options { candidates: 4, ..ANY }, &["eng1_k2=1_bf16", "eng2_bf16", "eng0_bf16"]);
}

#[test]
fn what_is_refused_is_one_line() {
    let Some(gpu) = Gpu::open() else { return };
    let (x, outputs, groups, window) = shapes()[1];
    let problem = problem(x, outputs, groups, window, Precision::F32);
    let target = Target::Handle(&gpu.handle);
    let refused = |problem: &Problem, options: &Options, why: &str| {
        let error = gpu.plans(problem, options).unwrap_err().to_string();
        assert_eq!(error, format!("cuDNN takes no {problem}: {why}"));
    };
    let call = "cudnnBackendFinalize failed: CUDNN_STATUS";
    refused(
        &Problem { y: [2, 5, 6, 4], ..problem },
        &ANY,
        "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH; axis 1 of the output has 6 pixels; ConvolutionForward",
    );
    let grouped = shapes()[3];
    let grouped = self::problem(grouped.0, grouped.1, grouped.2, grouped.3, Precision::Bf16);
    let weights = Problem { direction: Direction::BackwardWeights, ..grouped };
    let small = Options { deterministic: true, workspace: 0, ..ANY };
    assert_eq!(gpu.plans(&weights, &small).unwrap()[0].name(), "eng0_bf16");
    let large = Problem {
        direction: Direction::Forward(Epilogue::Bias),
        ..self::problem([1, 9, 9, 8], 8, 1, self::window([8; 2], [1; 2], [[0; 2]; 2], [1; 2]), Precision::F32)
    };
    let error = gpu.plans(&large, &ANY).unwrap_err().to_string();
    assert!(
        error.ends_with("_NOT_SUPPORTED_GRAPH_PATTERN; a bias after so large a window; EngineHeuristics"),
        "{error}"
    );
    let named = |name: &str, why: &str| {
        let error = gpu.cudnn.plan(&target, &problem, name, &ANY).unwrap_err().to_string();
        assert_eq!(error, format!("cuDNN takes no {problem}: {why}"));
    };
    named("fast", "\"fast\" names no engine");
    named("eng0_f32", "\"eng0_f32\" is an engine of another problem");
    named("eng9", &format!("eng9: cuDNN: {call}_BAD_PARAM_OUT_OF_BOUND; there is no engine 9; Engine"));
    named("eng1_k2=7", &format!("eng1_k2=7: cuDNN: {call}_BAD_PARAM; engine 1 has no such knob; ExecutionPlan"));
    let plan = &gpu.plans(&problem, &ANY).unwrap()[0];
    let operands = Operands { x: 16, w: 24, y: 32, bias: 0, workspace: 0 };
    // SAFETY: the emulation refuses the addresses before it uses them.
    let error = unsafe { plan.execute(&gpu.handle, &operands) }.unwrap_err().to_string();
    let expected =
        "cuDNN: cudnnBackendExecute failed: CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER; tensor 2; eng2 for convolution";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_described_gpu_has_plans_that_do_not_run() {
    let Some(gpu) = Gpu::open() else { return };
    let (x, outputs, groups, window) = shapes()[1];
    let problem = problem(x, outputs, groups, window, Precision::Bf16);
    let device = gpu.cudnn.device(r#"{"deviceVer": 900}"#).unwrap();
    let plans = gpu.cudnn.plans(&Target::Device(&device), &problem, &ANY).unwrap();
    assert_eq!(plans[0].name(), "eng1_k2=1");
    let operands = Operands { x: 16, w: 16, y: 16, bias: 0, workspace: 16 };
    // SAFETY: the emulation refuses the plan before it uses the addresses.
    let error = unsafe { plans[0].execute(&gpu.handle, &operands) }.unwrap_err().to_string();
    assert!(error.contains("the plan is for a described device"), "{error}");
    let error = gpu.cudnn.device("{}").unwrap_err().to_string();
    assert_eq!(
        error,
        "cuDNN: cudnnBackendFinalize failed: CUDNN_STATUS_BAD_PARAM; deviceVer is missing; DeviceProperties"
    );
}

#[test]
fn versions() {
    let check = |number: usize, runtime: usize, newest: u32, expected: Option<&str>| {
        assert_eq!(unusable(Version::new(number, FIVE_DIGITS), runtime, newest).as_deref(), expected);
    };
    check(90_000, 12_030, 12, None);
    check(92_800, 12_090, 13, None);
    check(92_800, 13_000, 13, None);
    check(8_907, 12_020, 12, Some("which is older than 9.0.0"));
    check(92_800, 13_000, 12, Some("built for CUDA 13, but the driver supports CUDA 12 at most"));
    let check = |number: usize, expected: &str| assert_eq!(Version::new(number, FIVE_DIGITS).to_string(), expected);
    check(92_800, "9.28.0");
    check(90_101, "9.1.1");
    check(8_907, "8.9.7");
}

#[test]
fn a_captured_convolution_runs_at_each_launch() {
    let Some(gpu) = Gpu::open() else { return };
    let direction = Direction::BackwardData { accumulate: true };
    let problem = problem([1, 1, 1, 1], 1, 1, window([1; 2], [1; 2], [[0; 2]; 2], [1; 2]), Precision::F32);
    let plan = &gpu.plans(&Problem { direction, ..problem }, &ANY).unwrap()[0];
    let [x, w, y] = [1.0, 2.0, 3.0].map(|value| gpu.emulated.buffer(&encode(&[value], DType::F32)));
    let operands = Operands { x: x.address(), w: w.address(), y: y.address(), bias: 0, workspace: 0 };
    // SAFETY: the buffers are as large as the problem's shapes, and live longer than the graph.
    let run = || unsafe { plan.execute(&gpu.handle, &operands) };
    // An engine loads its kernels in its first run, which a capture does not allow.
    run().unwrap();
    let graph = Graph::capture(&gpu.emulated.stream, |_| run()).unwrap();
    for expected in [7.0, 13.0, 19.0] {
        let mut bytes = [0; 4];
        x.read(&gpu.emulated.stream, 0, &mut bytes).unwrap();
        assert_eq!(decode(&bytes, DType::F32), [expected]);
        graph.launch(&gpu.emulated.stream).unwrap();
    }
}

#[test]
fn plans_and_handles_go_to_other_threads() {
    fn check<T: Send>() {}
    check::<ConvolutionPlan>();
    check::<Handle>();
    check::<crate::cublas_lt::MatmulPlan>();
    check::<crate::cublas_lt::LtHandle>();
}
