//! Expressions at each element: `kernels/pointwise.cu`.

use enmasse_graph::ops::Pointwise;
use enmasse_graph::{Binary, Formula, Term, Unary};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::{blocks, kernel, named};
use crate::work::Argument::{F32, Null, Read, U32, U64, Write};
use crate::work::{Argument, Kernel, Span};

/// Operands, and results, in `Pointwise` of pointwise.cu.
const OPERANDS: usize = 8;
/// Steps there: those of a formula, and one to store each result.
const STEPS: usize = Formula::MAX_STEPS + OPERANDS;

impl OnCuda for Pointwise {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let formula = self.formula();
        let [inputs, outputs] = [&o.node.inputs, &o.node.outputs].map(Vec::len);
        let fits = inputs.max(outputs) <= OPERANDS
            && formula.steps().len() <= Formula::MAX_STEPS
            && formula.registers().1 <= Formula::MAX_REGISTERS;
        if !fits || inputs < formula.operands() || outputs != formula.results().len() {
            return Err(o.unsupported());
        }
        let operands: Vec<Span> = (0..inputs).map(|index| o.input(index)).collect();
        let results: Vec<Span> = (0..outputs).map(|index| o.output(index)).collect();
        Ok(computed([pointwise(o.activations(), formula, &operands, &results)]))
    }
}

/// The values of a formula; the first result may lie over the first operand.
fn pointwise(dtype: DType, formula: &Formula, operands: &[Span], results: &[Span]) -> Kernel {
    let elements = results[0].bytes / dtype.size();
    let mut steps = steps(formula);
    let padded = |spans: &[Span], argument: fn(Span) -> Argument| {
        let mut arguments: Vec<Argument> = spans.iter().map(|&span| argument(span)).collect();
        arguments.resize(OPERANDS, Null);
        arguments
    };
    let mut arguments = [padded(operands, Read), padded(results, Write)].concat();
    arguments.extend([U64(elements as u64), U32(steps.len() as u32)]);
    steps.resize(STEPS, [U32(0), U32(0), F32(0.0)]);
    arguments.extend(steps.into_iter().flatten());
    kernel(named("pointwise", dtype), blocks(elements), arguments)
}

/// `Step` in pointwise.cu: each step of a formula, and what stores the results.
fn steps(formula: &Formula) -> Vec<[Argument; 3]> {
    let (registers, _) = formula.registers();
    let at = |step: usize| registers[step] as u32;
    let encoded = |code: u32, to: u32, [a, b, x, y]: [u32; 4], number: f32| {
        [U32(code | to << 8 | a << 16 | b << 24), U32(x | y << 8), F32(number)]
    };
    let mut steps: Vec<[Argument; 3]> = Vec::new();
    for (index, step) in formula.steps().iter().enumerate() {
        let to = at(index);
        steps.push(match *step {
            Term::Operand(operand) => encoded(0, to, [0, 0, operand as u32, 0], 0.0),
            Term::Constant(value) => encoded(2, to, [0; 4], value),
            Term::Unary(function, x) => encoded(unary(function), to, [at(x), 0, 0, 0], 0.0),
            Term::Binary(function, a, b) => encoded(binary(function), to, [at(a), at(b), 0, 0], 0.0),
            Term::Power(x, exponent) => encoded(17, to, [at(x), 0, 0, 0], exponent),
            Term::Where(operands) => encoded(18, to, operands.map(at), 0.0),
        });
    }
    let stores = formula.results().iter().enumerate();
    steps.extend(stores.map(|(result, &step)| encoded(1, result as u32, [at(step), 0, 0, 0], 0.0)));
    steps
}

/// The number of a function in pointwise.cu.
fn unary(function: Unary) -> u32 {
    match function {
        Unary::Negate => 3,
        Unary::Abs => 4,
        Unary::Exp => 5,
        Unary::Log => 6,
        Unary::Tanh => 7,
        Unary::Erf => 8,
        Unary::Sigmoid => 9,
        Unary::Sqrt => 10,
    }
}

/// Likewise.
fn binary(function: Binary) -> u32 {
    match function {
        Binary::Add => 11,
        Binary::Subtract => 12,
        Binary::Multiply => 13,
        Binary::Divide => 14,
        Binary::Minimum => 15,
        Binary::Maximum => 16,
    }
}

#[cfg(test)]
#[path = "pointwise_tests.rs"]
mod tests;
