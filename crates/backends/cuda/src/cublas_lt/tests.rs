//! Matmuls through the emulated cuBLASLt against the reference's loops, and what is refused.

use enmasse_reference::ops::linear;
use enmasse_tensor::{Bf16, RandomStream};

use super::*;
use crate::driver::Buffer;
use crate::test_support::{EmulatedGpu, decode, encode, unit};

/// The emulated GPU.
struct Gpu {
    emulated: EmulatedGpu,
    handle: LtHandle,
    library: CublasLt,
}

impl Gpu {
    /// `None` without a compiler: the test is then in the table.
    fn open() -> Option<Self> {
        let emulated = EmulatedGpu::open()?;
        let library = CublasLt::load(&emulated.libraries, 13).unwrap();
        Some(Gpu { emulated, handle: library.handle().unwrap(), library })
    }
}

/// Values that every type holds exactly.
fn values(key: u64, count: usize) -> Vec<f64> {
    let mut stream = RandomStream::new(0, "test", 0, key);
    (0..count).map(|_| f64::from(Bf16::from_f32(stream.uniform(-1.0, 1.0) as f32).to_f32())).collect()
}

/// The operand that is the product.
fn result_of(matmul: Matmul) -> usize {
    match matmul {
        Matmul::BackwardData => 0,
        Matmul::BackwardWeights => 1,
        Matmul::Forward { .. } => 2,
    }
}

const MATMULS: [Matmul; 4] =
    [Matmul::Forward { bias: false }, Matmul::Forward { bias: true }, Matmul::BackwardData, Matmul::BackwardWeights];

#[test]
fn matmuls_equal_the_reference() {
    let Some(gpu) = Gpu::open() else { return };
    for (rows, inputs, outputs) in [(1, 1, 1), (2, 3, 5), (7, 33, 10), (16, 8, 8), (5, 128, 1), (1, 64, 100)] {
        let x = values(0, rows * inputs);
        let w = values(1, inputs * outputs);
        let y = values(2, rows * outputs);
        let bias = values(3, outputs);
        for matmul in MATMULS {
            for (arithmetic, product, room) in [
                (Precision::F32, DType::F32, 0),
                (Precision::F32, DType::F32, 1 << 20),
                (Precision::Tf32, DType::F32, 1 << 20),
                (Precision::Bf16, DType::Bf16, 1 << 20),
                (Precision::Bf16, DType::F32, 1 << 20),
                (Precision::F16, DType::F16, 1 << 20),
                (Precision::F16, DType::F32, 0),
            ] {
                let problem = MatmulProblem { matmul, rows, inputs, outputs, arithmetic, product };
                let mut plan = gpu.library.plan(&gpu.handle, &problem, room).unwrap();
                assert!(
                    plan.workspace <= room && (plan.name == "algo1_tile0_splitk1_stages0") == (room > 0),
                    "{}",
                    plan.name
                );
                let mut types = [arithmetic.activations(); 3];
                types[result_of(matmul)] = product;
                let operands = [(&x, types[0]), (&w, types[1]), (&y, types[2]), (&bias, product)];
                let [x_at, w_at, y_at, bias_at] =
                    operands.map(|(values, dtype)| gpu.emulated.buffer(&encode(values, dtype)));
                let workspace =
                    Buffer::new(&gpu.emulated.context, "workspace", plan.workspace.max(1) as usize).unwrap();
                let operands = Operands {
                    x: x_at.address(),
                    w: w_at.address(),
                    y: y_at.address(),
                    bias: bias_at.address(),
                    workspace: workspace.address(),
                };
                // SAFETY: the buffers are as large as the problem says, and are read below, after the stream's work.
                unsafe { plan.execute(&gpu.handle, &operands, gpu.emulated.stream.raw()) }.unwrap();
                let (expected, result) = match matmul {
                    Matmul::Forward { bias: has } => {
                        (linear::forward(&x, &w, has.then_some(bias.as_slice()), inputs, outputs), y_at)
                    }
                    Matmul::BackwardData => (linear::backward_data(&y, &w, outputs), x_at),
                    Matmul::BackwardWeights => (linear::backward_weights(&x, &y, inputs, outputs), w_at),
                };
                let mut bytes = vec![0; product.size() * expected.len()];
                result.read(&gpu.emulated.stream, 0, &mut bytes).unwrap();
                let found = decode(&bytes, product);
                let tolerance = 2f64.powi(-20) * (1.0 + (inputs.max(rows).max(outputs) as f64).sqrt());
                for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let tolerance = tolerance + unit(product) * expected.abs();
                    assert!((found - expected).abs() <= tolerance, "{problem} {at}: {found}, not {expected}");
                }
            }
        }
    }
}

#[test]
fn what_is_refused_is_one_line() {
    let Some(gpu) = Gpu::open() else { return };
    let problem = MatmulProblem {
        matmul: Matmul::Forward { bias: true },
        rows: 2,
        inputs: 3,
        outputs: 5,
        arithmetic: Precision::F32,
        product: DType::F32,
    };
    let mut plan = gpu.library.plan(&gpu.handle, &problem, 0).unwrap();
    let operands = Operands { x: 16, w: 24, y: 32, bias: 48, workspace: 0 };
    // SAFETY: the emulation refuses the addresses before it uses them.
    let error = unsafe { plan.execute(&gpu.handle, &operands, gpu.emulated.stream.raw()) }.unwrap_err().to_string();
    assert_eq!(
        error,
        "cuBLASLt: cublasLtMatmul failed: CUBLAS_STATUS_INVALID_VALUE: matmul with bias f32 x[2,3] w[3,5]"
    );
    // cuBLASLt has no product of f32 in 16 bits.
    let narrow = MatmulProblem { product: DType::Bf16, ..problem };
    let error = gpu.library.plan(&gpu.handle, &narrow, 0).unwrap_err().to_string();
    assert_eq!(error, "cuBLASLt takes no matmul with bias f32 x[2,3] w[3,5] to bf16: CUBLAS_STATUS_NOT_SUPPORTED");
    let empty = MatmulProblem { rows: 0, ..problem };
    let error = gpu.library.plan(&gpu.handle, &empty, 0).unwrap_err().to_string();
    assert_eq!(error, "cuBLASLt takes no matmul with bias f32 x[0,3] w[3,5]: CUBLAS_STATUS_INVALID_VALUE");
}
