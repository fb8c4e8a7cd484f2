//! Convolutions with the batch norms after them as one operation: the same bits as one after the other, near the reference.

use crate::common::models::residual;
use crate::common::{Batch, assert_agree, fill, levels, program_with};
use enmasse_cpu::{Cpu, CpuOptions, Isa};
use enmasse_device::{Device, Program, StepMetrics};
use enmasse_graph::{CompileOptions, Conv, Mode, Op, Phase, Plans, Precision, Tensor, compile};
use enmasse_reference::ReferenceProgram;

/// Every algorithm of convolutions, odd numbers of channels, unequal padding, and pixels that no tap meets.
fn every_algorithm(x: Tensor) -> Tensor {
    let norm = |x: Tensor, name: &str| x.batch_norm(&format!("{name}.bn"));
    let conv = |x: Tensor, name: &str, conv: Conv| norm(x.conv2d(name, conv.no_bias()), name);
    let x = conv(x, "stem", Conv::new(18, 3).stride(2).same()).relu6();
    let x = conv(x, "depthwise", Conv::new(18, 5).padding(2).groups(18)).relu6();
    let y = conv(x.clone(), "winograd", Conv::new(18, 3).padding(1)).relu();
    let x = (conv(y, "project", Conv::new(18, 1)) + x).relu();
    let y = conv(x.clone(), "grouped", Conv::new(18, 3).padding(1).groups(2)) + x;
    let y = conv(y, "bordered", Conv::new(35, 1).padding(1)).relu();
    let y = conv(y, "narrow", Conv::new(64, 3).padding_sides([[0, 1], [2, 0]]).groups(1));
    conv(y, "pairs", Conv::new(64, 3).padding(1).groups(16)).relu().adaptive_avg_pool([1, 1]).flatten().linear("fc", 7)
}

fn fused(plans: &Plans) -> usize {
    plans.evaluate.instructions.iter().filter(|node| matches!(node.op, Op::Conv2dBatchNorm(_))).count()
}

fn evaluate(program: &mut dyn Program, batch: &Batch) -> StepMetrics {
    let ticket = program.submit(Mode::Evaluate, &Phase::ALL, &batch.inputs(1)).unwrap();
    program.metrics(ticket).unwrap()
}

fn check(name: &str, model: fn(Tensor) -> Tensor, size: [usize; 2], convolutions: usize) {
    for (precision, tolerance) in [(Precision::F32, 1e-4), (Precision::Bf16, 5e-2)] {
        let options = CompileOptions { size, precision, ..CompileOptions::new(name, 3, 1, 7) };
        let apart = compile(&model, &options).unwrap();
        let together = Cpu::new(CpuOptions::default()).unwrap().target().compile(&model, &options).unwrap();
        assert_eq!([fused(&apart), fused(&together)], [0, convolutions], "{name}");
        assert_eq!(apart.train, together.train, "gradients need what is fused away");
        let whole = CompileOptions { fuse: false, ..options };
        let plain = Cpu::new(CpuOptions::default()).unwrap().target().compile(&model, &whole).unwrap();
        assert_eq!(fused(&plain), 0);
        let mut batch = Batch::random(&apart, 1);
        batch.for_evaluation();
        let mut reference = ReferenceProgram::rounding(together.clone(), None).unwrap();
        fill(&mut reference);
        evaluate(&mut reference, &batch);
        for (isa, exact) in levels().flat_map(|isa| [(isa, true), (isa, false)]) {
            let bits = |plans: &Plans, threads| {
                let mut program = run(plans, threads, isa, exact, &batch);
                program.store("logits").unwrap().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            };
            let expected = bits(&apart, 1);
            for threads in [1, 3] {
                assert!(bits(&together, threads) == expected, "{name} {precision} {isa}, {threads} threads");
            }
            let mut program = run(&together, 2, isa, exact, &batch);
            let what = format!("{name} {precision} {isa}");
            assert_agree(&what, &["logits".into()], &mut *program, &mut reference, tolerance);
        }
    }
}

fn run(plans: &Plans, threads: usize, isa: Isa, exact: bool, batch: &Batch) -> Box<dyn Program> {
    let options = CpuOptions { threads, isa: Some(isa), exact, ..CpuOptions::default() };
    let mut program = program_with(plans, options, None);
    evaluate(&mut *program, batch);
    program
}

#[test]
fn convolutions_with_their_batch_norms() {
    check("every algorithm", every_algorithm, [21, 18], 8);
    check("residual", residual, [37, 30], 9);
}
