//! Expressions as flat lists of steps: what a plan has, and devices run.
//!
//! Each step reads earlier ones, and equal steps are one.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::expression::{Binary, Expression, Term, Unary};

/// One or more expressions of the same operands, step by step.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    steps: Vec<Term<usize>>,
    results: Vec<usize>,
}

impl Formula {
    /// The most steps of a formula that a plan has.
    pub const MAX_STEPS: usize = 128;
    /// The most registers of a formula that a plan has.
    pub const MAX_REGISTERS: usize = 32;

    /// The steps that compute these expressions.
    pub fn new(expressions: &[Expression]) -> Self {
        let mut formula = Formula { steps: Vec::new(), results: Vec::new() };
        let mut known = HashMap::new();
        formula.results = expressions.iter().map(|expression| formula.number(expression, &mut known)).collect();
        formula
    }

    /// The step that computes an expression, which is a new one only if no other does. Parts of it that are `known` are not
    /// looked at again.
    fn number(&mut self, expression: &Expression, known: &mut HashMap<*const Term<Expression>, usize>) -> usize {
        let address = Arc::as_ptr(&expression.0);
        if let Some(&step) = known.get(&address) {
            return step;
        }
        let term = expression.0.map(|operand| self.number(operand, known));
        let exchanged = match term {
            Term::Binary(function @ (Binary::Add | Binary::Multiply), a, b) => Term::Binary(function, b, a),
            _ => term,
        };
        let equal = self.steps.iter().position(|step| *step == term || *step == exchanged);
        let step = equal.unwrap_or_else(|| {
            self.steps.push(term);
            self.steps.len() - 1
        });
        known.insert(address, step);
        step
    }

    /// The steps in order. Operands of a step are the numbers of earlier ones.
    pub fn steps(&self) -> &[Term<usize>] {
        &self.steps
    }

    /// The steps that give the results.
    pub fn results(&self) -> &[usize] {
        &self.results
    }

    /// How many operands it reads, if it reads all up to the last.
    pub fn operands(&self) -> usize {
        self.steps.iter().fold(0, |operands, step| match step {
            Term::Operand(index) => operands.max(index + 1),
            _ => operands,
        })
    }

    /// The same without the operands that it does not read, and those that it does.
    pub(crate) fn without_gaps(mut self) -> (Self, Vec<usize>) {
        let operands = self.operands();
        let is_read = |operand: &usize| self.steps.contains(&Term::Operand(*operand));
        let read: Vec<usize> = (0..operands).filter(is_read).collect();
        for step in &mut self.steps {
            if let Term::Operand(index) = step {
                *index = read.partition_point(|operand| operand < index);
            }
        }
        (self, read)
    }

    /// A register for each step, which may be that of an operand that no later step reads, and their number. Those of results
    /// stay.
    pub fn registers(&self) -> (Vec<usize>, usize) {
        let mut last_use = vec![0; self.steps.len()];
        for (step, term) in self.steps.iter().enumerate() {
            term.map(|&operand| last_use[operand] = step);
        }
        self.results.iter().for_each(|&result| last_use[result] = usize::MAX);
        let mut registers = Vec::<usize>::new();
        let mut free = Vec::new();
        let mut count = 0;
        for (step, term) in self.steps.iter().enumerate() {
            term.map(|&operand| {
                if last_use[operand] == step && !free.contains(&registers[operand]) {
                    free.push(registers[operand]);
                }
            });
            registers.push(free.pop().unwrap_or_else(|| {
                count += 1;
                count - 1
            }));
        }
        (registers, count)
    }

    /// The expression of each step, whose operands are numbered from `first` on.
    fn expressions(&self, first: usize) -> Vec<Expression> {
        let mut expressions = Vec::<Expression>::new();
        for step in &self.steps {
            expressions.push(match step {
                Term::Operand(index) => Term::Operand(first + index).into(),
                step => step.map(|&operand| expressions[operand].clone()).into(),
            });
        }
        expressions
    }
}

/// The gradients of the wanted operands of a formula's first result, from that of the result. Operands are numbered from `first` on;
/// none has no gradient that the result does not depend on.
pub(crate) fn gradients(
    formula: &Formula,
    dy: &Expression,
    first: usize,
    wanted: &dyn Fn(usize) -> bool,
) -> Vec<Option<Expression>> {
    let values = formula.expressions(first);
    let mut wants = Vec::<bool>::new();
    for step in &formula.steps {
        let mut any = matches!(step, Term::Operand(index) if wanted(*index));
        step.map(|&operand| any |= wants[operand]);
        wants.push(any);
    }
    let mut found: Vec<Option<Expression>> = vec![None; values.len()];
    let mut of_operands = vec![None; formula.operands()];
    found[formula.results[0]] = Some(dy.clone());
    for (step, term) in formula.steps.iter().enumerate().rev() {
        let Some(dy) = found[step].take().filter(|_| wants[step]) else { continue };
        let y = &values[step];
        let of = |operand: usize| &values[operand];
        let mut give = |operand: usize, gradient: Expression| {
            if wants[operand] {
                let earlier = found[operand].take();
                found[operand] = Some(earlier.map_or(gradient.clone(), |earlier| sum(earlier, gradient)));
            }
        };
        match *term {
            Term::Operand(index) => of_operands[index] = Some(dy),
            Term::Constant(_) => {}
            Term::Unary(function, x) => {
                let gradient = linear(&dy, &|dy| of_unary(function, dy, of(x), y));
                give(x, gradient);
            }
            Term::Power(x, exponent) => {
                give(x, linear(&dy, &|dy| dy * (exponent * of(x).power(exponent - 1.0))));
            }
            Term::Binary(function, a, b) => match function {
                Binary::Add => [a, b].into_iter().for_each(|operand| give(operand, dy.clone())),
                Binary::Subtract => {
                    give(a, dy.clone());
                    give(b, linear(&dy, &|dy| -dy));
                }
                Binary::Multiply => {
                    give(a, linear(&dy, &|dy| dy * of(b)));
                    give(b, linear(&dy, &|dy| dy * of(a)));
                }
                Binary::Divide => {
                    give(a, linear(&dy, &|dy| dy / of(b)));
                    give(b, linear(&dy, &|dy| -(dy * y / of(b))));
                }
                Binary::Minimum => {
                    give(a, Expression::where_above(of(a), of(b), 0.0, &dy));
                    give(b, Expression::where_above(of(a), of(b), dy, 0.0));
                }
                Binary::Maximum => {
                    give(a, Expression::where_above(of(b), of(a), 0.0, &dy));
                    give(b, Expression::where_above(of(b), of(a), dy, 0.0));
                }
            },
            Term::Where([a, b, x, y]) => {
                give(x, Expression::where_above(of(a), of(b), &dy, 0.0));
                give(y, Expression::where_above(of(a), of(b), 0.0, dy));
            }
        }
    }
    of_operands
}

/// `dy` times the derivative at `x`, where the function is `y`.
fn of_unary(function: Unary, dy: Expression, x: &Expression, y: &Expression) -> Expression {
    match function {
        Unary::Negate => -dy,
        Unary::Abs => Expression::where_above(x, 0.0, &dy, Expression::where_above(0.0, x, -&dy, 0.0)),
        Unary::Exp => dy * y,
        Unary::Log => dy / x,
        Unary::Tanh => dy * (1.0 - y * y),
        Unary::Erf => dy * (std::f32::consts::FRAC_2_SQRT_PI * (-(x * x)).exp()),
        Unary::Sigmoid => dy * (y * (1.0 - y)),
        Unary::Sqrt => 0.5 * dy / y,
    }
}

/// A linear function of a gradient. It stays 0 where it is 0 because of a choice: a product with the derivative of what was not
/// chosen could be NaN there.
fn linear(dy: &Expression, function: &dyn Fn(Expression) -> Expression) -> Expression {
    match &*dy.0 {
        Term::Where([a, b, x, y]) if y.constant() == Some(0.0) => {
            Expression::where_above(a, b, linear(x, function), 0.0)
        }
        Term::Where([a, b, x, y]) if x.constant() == Some(0.0) => {
            Expression::where_above(a, b, 0.0, linear(y, function))
        }
        Term::Binary(Binary::Add, a, b) if has_choice(dy) => sum(linear(a, function), linear(b, function)),
        _ => function(dy.clone()),
    }
}

/// Whether a part of a gradient is 0 because of a choice.
fn has_choice(dy: &Expression) -> bool {
    match &*dy.0 {
        Term::Where([_, _, x, y]) => x.constant() == Some(0.0) || y.constant() == Some(0.0),
        Term::Binary(Binary::Add, a, b) => has_choice(a) || has_choice(b),
        _ => false,
    }
}

/// The sum of two gradients. That of two sides of one choice is a choice again.
fn sum(first: Expression, second: Expression) -> Expression {
    if let (Term::Where([a, b, x, y]), Term::Where([c, d, v, w])) = (&*first.0, &*second.0)
        && Arc::ptr_eq(&a.0, &c.0)
        && Arc::ptr_eq(&b.0, &d.0)
    {
        return Expression::where_above(a, b, sum(x.clone(), v.clone()), sum(y.clone(), w.clone()));
    }
    first + second
}

/// How strongly the parts of a text bind.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Level {
    Sum,
    Product,
    Sign,
    Power,
    Whole,
}

/// The formula as text, which is the same for equal formulas alone.
impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut uses = vec![0; self.steps.len()];
        for step in &self.steps {
            step.map(|&operand| uses[operand] += 1);
        }
        self.results.iter().for_each(|&result| uses[result] += 1);
        let mut texts = Vec::<(String, Level)>::new();
        let mut names = 0;
        for (step, uses) in self.steps.iter().zip(uses) {
            let (text, level) = text(step, &texts);
            let is_simple = matches!(step, Term::Operand(_) | Term::Constant(_));
            texts.push(if uses > 1 && !is_simple {
                write!(f, "t{names} = {text}; ")?;
                names += 1;
                (format!("t{}", names - 1), Level::Whole)
            } else {
                (text, level)
            });
        }
        let results: Vec<&str> = self.results.iter().map(|&result| &*texts[result].0).collect();
        f.write_str(&results.join(", "))
    }
}

/// A step in terms of the texts of earlier ones.
fn text(step: &Term<usize>, texts: &[(String, Level)]) -> (String, Level) {
    let at = |operand: usize, least: Level| {
        let (text, level) = &texts[operand];
        if *level < least { format!("({text})") } else { text.clone() }
    };
    let all = |operand: usize| &texts[operand].0;
    let infix = |a, sign: &str, b, level, next| (format!("{} {sign} {}", at(a, level), at(b, next)), level);
    match *step {
        Term::Operand(index) => (format!("x{index}"), Level::Whole),
        Term::Constant(value) if value < 0.0 => (value.to_string(), Level::Sign),
        Term::Constant(value) => (value.to_string(), Level::Whole),
        Term::Unary(Unary::Negate, x) => (format!("-{}", at(x, Level::Power)), Level::Sign),
        Term::Unary(function, x) => (format!("{function:?}({})", all(x)).to_lowercase(), Level::Whole),
        Term::Power(x, exponent) => (format!("{}^{exponent}", at(x, Level::Whole)), Level::Power),
        Term::Binary(function, a, b) => match function {
            Binary::Add => infix(a, "+", b, Level::Sum, Level::Product),
            Binary::Subtract => infix(a, "-", b, Level::Sum, Level::Product),
            Binary::Multiply => infix(a, "*", b, Level::Product, Level::Sign),
            Binary::Divide => infix(a, "/", b, Level::Product, Level::Sign),
            Binary::Minimum => (format!("min({}, {})", all(a), all(b)), Level::Whole),
            Binary::Maximum => (format!("max({}, {})", all(a), all(b)), Level::Whole),
        },
        Term::Where([a, b, x, y]) => (format!("where({} > {}, {}, {})", all(a), all(b), all(x), all(y)), Level::Whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_steps_are_one_and_registers_are_used_again() {
        let [x, y] = Expression::operands();
        let formula = Formula::new(&[(&x + &y).exp() + (&y + &x).exp() * 2.0, &x * 2.0]);
        assert_eq!(formula.to_string(), "t0 = exp(x0 + x1); t0 + t0 * 2, x0 * 2");
        let (registers, count) = formula.registers();
        assert_eq!((formula.steps().len(), formula.results(), formula.operands()), (8, &[6, 7][..], 2));
        // x0, which the second result reads, x1, exp, and the constant.
        assert_eq!((registers.len(), count), (8, 4));
        for (step, term) in formula.steps().iter().enumerate() {
            let later = formula.steps()[step + 1..].iter().zip(step + 1..);
            let until = later.filter(|(other, _)| {
                let mut reads = false;
                other.map(|&operand| reads |= operand == step);
                reads
            });
            let last = until.map(|(_, at)| at).last().unwrap_or(step);
            assert!((step + 1..last).all(|other| registers[other] != registers[step]), "{term:?}");
        }
    }

    /// Both gradients of the exponential are 0 from 2 on. Their sum times the exponential was NaN where that is infinite.
    #[test]
    fn what_two_choices_leave_out_has_no_gradient() {
        let [x] = Expression::operands();
        let two = Expression::where_above(&x, 1.0, 0.0, x.exp()) + Expression::where_above(&x, 2.0, 0.0, x.exp());
        let expected = "t0 = exp(x0); where(x0 > 2, 0, t0) + where(x0 > 1, 0, t0)";
        assert_eq!(two.derivative(0).to_string(), expected);
    }

    #[test]
    fn operands_that_are_not_read_are_left_out() {
        let [_, y, _, z] = Expression::operands();
        let (formula, read) = Formula::new(&[&y / z]).without_gaps();
        assert_eq!((formula.to_string(), read), ("x0 / x1".into(), vec![1, 3]));
    }
}
