//! Expressions, applied to each element of one or more tensors.

use super::Operation;
use crate::autodiff::Backward;
use crate::expression::{Expression, Term};
use crate::formula::{Formula, gradients};
use crate::{GraphError, Node, Tensor, ValueId};

/// One or more expressions of the operands at each element. All operands and results have one shape, and the first result may lie over
/// the first operand.
///
/// The gradient is another one, which computes again what it needs of the operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Pointwise(Formula);

impl Pointwise {
    /// The most operands, with the gradient of the result.
    pub const MAX_OPERANDS: usize = 8;

    /// The steps that compute it.
    pub fn formula(&self) -> &Formula {
        &self.0
    }

    /// That of the gradients of the wanted operands, if they have any; operand 0 is the result's, the others follow. None is for
    /// operands without one.
    fn gradients(&self, wanted: &dyn Fn(usize) -> bool) -> Vec<Option<Expression>> {
        let [dy] = Expression::operands();
        gradients(&self.0, &dy, 1, wanted)
    }
}

impl Operation for Pointwise {
    const NAME: &'static str = "pointwise";
    const SIGNATURE: &'static str = "(operands..) -> (results..)";

    fn attributes(&self) -> String {
        self.0.to_string()
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let found = self.gradients(&|operand| backward.wants(node.inputs[operand]));
        let (mut targets, mut expressions) = (Vec::new(), Vec::new());
        for (&target, gradient) in node.inputs.iter().zip(found) {
            match gradient.map(|gradient| (matches!(&*gradient.0, Term::Operand(0)), gradient)) {
                Some((true, _)) => backward.add_gradient(target, dy),
                Some((false, gradient)) => {
                    targets.push(target);
                    expressions.push(gradient);
                }
                None => {}
            }
        }
        if targets.is_empty() {
            return Ok(());
        }
        let (formula, read) = Formula::new(&expressions).without_gaps();
        let operands = [&[dy], &node.inputs[..]].concat();
        let inputs = read.into_iter().map(|operand| operands[operand]).collect();
        let gradients = backward.emit(Pointwise(formula), inputs, &targets);
        targets.into_iter().zip(gradients).for_each(|(target, gradient)| backward.add_gradient(target, gradient));
        Ok(())
    }
}

impl Tensor {
    /// An expression at each element: of this tensor as operand 0, and of `others` (what PyTorch composes of functions). Its gradient
    /// is derived.
    ///
    /// ```
    /// use enmasse_graph::{CompileOptions, Expression, Tensor, compile};
    /// let [x] = Expression::operands();
    /// let gelu_tanh = 0.5 * &x * (1.0 + (0.797_884_6 * (&x + 0.044_715 * x.power(3.0))).tanh());
    /// let model = move |x: Tensor| x.flatten().linear("fc", 10).pointwise(&gelu_tanh, &[]);
    /// compile(&model, &CompileOptions::new("net", 8, 16, 10)).unwrap();
    /// ```
    ///
    /// # Shapes
    /// All the same, and the same.
    pub fn pointwise(self, expression: &Expression, others: &[Tensor]) -> Tensor {
        let operation = Pointwise(Formula::new(std::slice::from_ref(expression)));
        if let Err(reason) = check(&operation, 1 + others.len()) {
            return self.fail(GraphError::Attribute { place: self.place(Pointwise::NAME), reason });
        }
        if others.iter().any(|other| self.same_shape(Pointwise::NAME, other).is_none()) {
            return self;
        }
        let operands: Vec<ValueId> = others.iter().map(|other| other.id).collect();
        self.record(operation, &operands, self.shape())
    }
}

/// What is wrong with an operation of this many operands, as `takes ...`.
fn check(operation: &Pointwise, operands: usize) -> Result<(), String> {
    let formula = operation.formula();
    let is_infinite = |step: &Term<usize>| match step {
        Term::Constant(value) | Term::Power(_, value) => !value.is_finite(),
        _ => false,
    };
    if formula.operands() != operands {
        return Err(format!("takes the {} operands of its expression, got {operands}", formula.operands()));
    }
    if operands >= Pointwise::MAX_OPERANDS {
        return Err(format!("takes {operands} operands; at most {} fit", Pointwise::MAX_OPERANDS - 1));
    }
    if formula.steps().iter().any(is_infinite) {
        return Err(format!("takes only finite numbers, not {formula}"));
    }
    let all: Vec<Expression> = operation.gradients(&|_| true).into_iter().flatten().collect();
    let gradient = Formula::new(&all);
    let largest = |count: fn(&Formula) -> usize| count(formula).max(count(&gradient));
    let steps = largest(|formula| formula.steps().len());
    let registers = largest(|formula| formula.registers().1);
    if steps > Formula::MAX_STEPS || registers > Formula::MAX_REGISTERS {
        let (most, fit) = (Formula::MAX_STEPS, Formula::MAX_REGISTERS);
        return Err(format!(
            "takes {steps} steps and {registers} registers with its gradient; at most {most} and {fit} fit"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{CompileOptions, Expression, Phase, Tensor, compile};

    fn options() -> CompileOptions {
        CompileOptions::new("net", 2, 8, 10)
    }

    /// The texts of the instructions of this operation in backward, with what they read.
    #[test]
    fn gradients_are_one_instruction_of_what_they_need() {
        let check = |expression: fn(Expression, Expression) -> Expression, expected: &[&str]| {
            let [x, y] = Expression::operands();
            let expression = expression(x, y);
            let model = |x: Tensor| {
                let x = x.flatten();
                x.clone().linear("a", 10).pointwise(&expression, &[x.linear("b", 10)])
            };
            let plan = compile(&model, &options()).unwrap().train.unwrap();
            let nodes = plan.phase(Phase::Backward).iter().filter(|node| node.op.name() == "pointwise");
            let found = nodes.map(|node| format!("{} of {} to {}", node.op, node.inputs.len(), node.outputs.len()));
            assert_eq!(found.collect::<Vec<String>>(), expected);
        };
        check(|x, y| x + y, &[]);
        check(|x, y| &x + 2.0 * y, &["pointwise {x0 * 2} of 1 to 1"]);
        check(|x, y| &x * y.exp(), &["pointwise {t0 = exp(x2); x0 * t0, x0 * x1 * t0} of 3 to 2"]);
        check(|x, y| &x * (1.0 + y), &["pointwise {x0 * (1 + x2), x0 * x1} of 3 to 2"]);
    }

    #[test]
    fn mistakes_are_named() {
        let check = |model: &dyn Fn(Tensor) -> Tensor, expected: &str| {
            assert_eq!(compile(model, &options()).unwrap_err().to_string(), format!("pointwise after fc {expected}"));
        };
        let [x, y] = Expression::operands();
        let fc = |x: Tensor| x.flatten().linear("fc", 10);
        check(&|t| fc(t).pointwise(&(&x * &y), &[]), "takes the 2 operands of its expression, got 1");
        check(&|t| fc(t).pointwise(&1.0.into(), &[]), "takes the 0 operands of its expression, got 1");
        check(&|t| fc(t).pointwise(&(&x / 0.0 * f32::NAN), &[]), "takes only finite numbers, not x0 / 0 * NaN");
        check(&|t| fc(t).pointwise(&x.power(f32::INFINITY), &[]), "takes only finite numbers, not x0^inf");
        let long = (0..50).fold(x.clone(), |sum, i| (sum + i as f32).exp());
        check(
            &|t| fc(t).pointwise(&long, &[]),
            "takes 200 steps and 51 registers with its gradient; at most 128 and 32 fit",
        );
        let all = Expression::operands::<8>().into_iter().reduce(|a, b| a + b).unwrap();
        let many = |t: Tensor| {
            let t = fc(t);
            t.clone().pointwise(&all, &vec![t; 7])
        };
        check(&many, "takes 8 operands; at most 7 fit");
        let shapes = |t: Tensor| fc(t.clone()).pointwise(&(&x * &y), &[t.flatten()]);
        let error = compile(&shapes, &options()).unwrap_err().to_string();
        assert_eq!(error, "pointwise after fc: [2,10] and [2,192] after the input must have the same shape");
    }
}
