//! Expressions of numbers: what [`crate::ops::Pointwise`] computes for each element.
//!
//! Operators and functions build them, so that they read like mathematics. Products with 1, sums with 0 and arithmetic on
//! constants are left out at once.

use std::fmt;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::Arc;

use crate::formula::{Formula, gradients};

/// A number for each element: an expression of operands and constants, whose derivative is derived.
///
/// ```
/// use enmasse_graph::Expression;
/// let [x, y] = Expression::operands();
/// let error = (&x - y).abs();
/// let huber = Expression::where_above(1.0, &error, 0.5 * &error * &error, &error - 0.5);
/// assert_eq!(huber.to_string(), "t0 = abs(x0 - x1); where(1 > t0, 0.5 * t0 * t0, t0 - 0.5)");
/// assert_eq!(x.tanh().derivative(0).to_string(), "t0 = tanh(x0); 1 - t0 * t0");
/// ```
#[derive(Clone)]
pub struct Expression(pub(crate) Arc<Term<Expression>>);

/// One operation of an expression. In a [`Formula`] its operands are earlier steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Term<T> {
    /// An operand of the operation, by its position.
    Operand(usize),
    /// A number, which is not -0.
    Constant(f32),
    /// A function of one number.
    Unary(Unary, T),
    /// A function of two numbers.
    Binary(Binary, T, T),
    /// A number to the power of a constant.
    Power(T, f32),
    /// Of `[a, b, x, y]`: `x` where `a > b`, else `y`.
    Where([T; 4]),
}

/// Functions of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `-x`.
    Negate,
    /// `x` without its sign.
    Abs,
    /// e to the power of x.
    Exp,
    /// The natural logarithm.
    Log,
    /// The hyperbolic tangent.
    Tanh,
    /// The error function.
    Erf,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The square root.
    Sqrt,
}

/// Functions of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a - b`.
    Subtract,
    /// `a * b`.
    Multiply,
    /// `a / b`.
    Divide,
    /// The smaller of two numbers, or NaN if one is.
    Minimum,
    /// The larger of two numbers, or NaN if one is.
    Maximum,
}

impl<T> Term<T> {
    /// The same of other operands.
    pub fn map<U>(&self, mut operand: impl FnMut(&T) -> U) -> Term<U> {
        match self {
            Term::Operand(index) => Term::Operand(*index),
            Term::Constant(value) => Term::Constant(*value),
            Term::Unary(function, x) => Term::Unary(*function, operand(x)),
            Term::Binary(function, a, b) => Term::Binary(*function, operand(a), operand(b)),
            Term::Power(x, exponent) => Term::Power(operand(x), *exponent),
            Term::Where(operands) => Term::Where(operands.each_ref().map(operand)),
        }
    }
}

impl Expression {
    /// The first `N` operands.
    pub fn operands<const N: usize>() -> [Expression; N] {
        std::array::from_fn(|index| Term::Operand(index).into())
    }

    /// `x` without its sign; the derivative at 0 is 0 (PyTorch's `abs`).
    pub fn abs(&self) -> Expression {
        self.unary(Unary::Abs)
    }

    /// e to the power of `x` (PyTorch's `exp`).
    pub fn exp(&self) -> Expression {
        self.unary(Unary::Exp)
    }

    /// The natural logarithm (PyTorch's `log`).
    pub fn log(&self) -> Expression {
        self.unary(Unary::Log)
    }

    /// The hyperbolic tangent (PyTorch's `tanh`).
    pub fn tanh(&self) -> Expression {
        self.unary(Unary::Tanh)
    }

    /// The error function (PyTorch's `erf`).
    pub fn erf(&self) -> Expression {
        self.unary(Unary::Erf)
    }

    /// `1 / (1 + exp(-x))` (PyTorch's `sigmoid`).
    pub fn sigmoid(&self) -> Expression {
        self.unary(Unary::Sigmoid)
    }

    /// `log(1 + exp(x))`, which does not overflow (PyTorch's `softplus`).
    pub fn softplus(&self) -> Expression {
        // At 0 the limit has no part in the gradient, which is that of either side.
        let tail = |x: &Expression| (1.0 + x.minimum(0.0).exp()).log();
        let above = self + tail(&-self);
        let below = tail(self);
        Expression::where_above(self, 0.0, above, below)
    }

    /// The square root (PyTorch's `sqrt`).
    pub fn sqrt(&self) -> Expression {
        self.unary(Unary::Sqrt)
    }

    /// `x` to the power of a constant (PyTorch's `pow`).
    pub fn power(&self, exponent: f32) -> Expression {
        match exponent {
            0.0 => 1.0.into(),
            1.0 => self.clone(),
            0.5 => self.sqrt(),
            -0.5 => 1.0 / self.sqrt(),
            _ => Term::Power(self.clone(), exponent).into(),
        }
    }

    /// The smaller of two numbers, NaN if one is (PyTorch's `minimum`). Of equal ones the first has the gradient.
    pub fn minimum(&self, other: impl Into<Expression>) -> Expression {
        binary(Binary::Minimum, self.clone(), other.into())
    }

    /// The larger of two numbers, NaN if one is (PyTorch's `maximum`). Of equal ones the first has the gradient.
    pub fn maximum(&self, other: impl Into<Expression>) -> Expression {
        binary(Binary::Maximum, self.clone(), other.into())
    }

    /// `x` between two limits, at which the derivative is 1 (PyTorch's `clamp`).
    pub fn clamp(&self, low: impl Into<Expression>, high: impl Into<Expression>) -> Expression {
        self.maximum(low).minimum(high)
    }

    /// `x` where `a > b`, else `y` (PyTorch's `where(a > b, x, y)`). What is not chosen has no gradient, also where its derivative
    /// is infinite.
    pub fn where_above(
        a: impl Into<Expression>,
        b: impl Into<Expression>,
        x: impl Into<Expression>,
        y: impl Into<Expression>,
    ) -> Expression {
        Term::Where([a.into(), b.into(), x.into(), y.into()]).into()
    }

    /// The derivative with respect to an operand.
    pub fn derivative(&self, operand: usize) -> Expression {
        let steps = Formula::new(std::slice::from_ref(self));
        let mut found = gradients(&steps, &1.0.into(), 0, &|index| index == operand).into_iter();
        found.nth(operand).flatten().unwrap_or(0.0.into())
    }

    pub(crate) fn constant(&self) -> Option<f32> {
        match *self.0 {
            Term::Constant(value) => Some(value),
            _ => None,
        }
    }

    fn unary(&self, function: Unary) -> Expression {
        Term::Unary(function, self.clone()).into()
    }
}

/// An arithmetic operation without what changes nothing.
fn binary(function: Binary, a: Expression, b: Expression) -> Expression {
    match (function, a.constant(), b.constant()) {
        (Binary::Add, Some(a), Some(b)) => (a + b).into(),
        (Binary::Subtract, Some(a), Some(b)) => (a - b).into(),
        (Binary::Multiply, Some(a), Some(b)) => (a * b).into(),
        (Binary::Divide, Some(a), Some(b)) => (a / b).into(),
        (Binary::Add | Binary::Subtract, _, Some(0.0)) | (Binary::Multiply | Binary::Divide, _, Some(1.0)) => a,
        (Binary::Add, Some(0.0), _) | (Binary::Multiply, Some(1.0), _) => b,
        (Binary::Subtract, Some(0.0), _) | (Binary::Multiply, Some(-1.0), _) => -b,
        (Binary::Multiply | Binary::Divide, _, Some(-1.0)) => -a,
        _ => Term::Binary(function, a, b).into(),
    }
}

impl From<Term<Expression>> for Expression {
    fn from(term: Term<Expression>) -> Self {
        Expression(Arc::new(term))
    }
}

impl From<f32> for Expression {
    fn from(value: f32) -> Self {
        // The sum makes 0 of -0.
        Term::Constant(value + 0.0).into()
    }
}

impl From<&Expression> for Expression {
    fn from(expression: &Expression) -> Self {
        expression.clone()
    }
}

/// Operators on expressions, on references to them, and on numbers.
macro_rules! operators {
    ($($Operator:ident $method:ident $function:ident)*) => {$(
        impl<T: Into<Expression>> $Operator<T> for Expression {
            type Output = Expression;
            fn $method(self, other: T) -> Expression {
                binary(Binary::$function, self, other.into())
            }
        }

        impl<T: Into<Expression>> $Operator<T> for &Expression {
            type Output = Expression;
            fn $method(self, other: T) -> Expression {
                binary(Binary::$function, self.clone(), other.into())
            }
        }

        impl $Operator<Expression> for f32 {
            type Output = Expression;
            fn $method(self, other: Expression) -> Expression {
                binary(Binary::$function, self.into(), other)
            }
        }

        impl $Operator<&Expression> for f32 {
            type Output = Expression;
            fn $method(self, other: &Expression) -> Expression {
                binary(Binary::$function, self.into(), other.clone())
            }
        }
    )*};
}

operators! {
    Add add Add
    Sub sub Subtract
    Mul mul Multiply
    Div div Divide
}

impl Neg for Expression {
    type Output = Expression;
    fn neg(self) -> Expression {
        match &*self.0 {
            Term::Constant(value) => (-value).into(),
            Term::Unary(Unary::Negate, x) => x.clone(),
            _ => self.unary(Unary::Negate),
        }
    }
}

impl Neg for &Expression {
    type Output = Expression;
    fn neg(self) -> Expression {
        -self.clone()
    }
}

/// The text of a [`Formula`]: what is used more than once has a name, and stands before what uses it.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Formula::new(std::slice::from_ref(self)).fmt(f)
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_derivative() {
        let [x, y] = Expression::operands();
        let check = |expression: Expression, text: &str, derivative: &str| {
            let found = [expression.to_string(), expression.derivative(0).to_string()];
            assert_eq!(found, [text, derivative]);
        };
        check(&x + 0.0, "x0", "1");
        check(1.0 * &x - 0.0, "x0", "1");
        check(0.0 - &x, "-x0", "-1");
        check(-(-&x) / 1.0, "x0", "1");
        check((2.0 * Expression::from(3.0) - 1.0) * &y, "5 * x1", "0");
        check(2.0 * &x + 1.0, "2 * x0 + 1", "2");
        check(&x * -3.0, "x0 * -3", "-3");
        check(&x - (&y - 1.0), "x0 - (x1 - 1)", "1");
        check((&x - &y) - 1.0, "x0 - x1 - 1", "1");
        check((&x + &y) * &y, "(x0 + x1) * x1", "x1");
        check(&x / (&y * &y), "x0 / (x1 * x1)", "1 / (x1 * x1)");
        check(-(&x * &y), "-(x0 * x1)", "-x1");
        check(-&x * &y, "-x0 * x1", "-x1");
        check((-&x).power(2.0), "(-x0)^2", "-(2 * -x0)");
        check(-x.power(-1.5), "-x0^-1.5", "-(-1.5 * x0^-2.5)");
        check(x.power(-0.5), "1 / sqrt(x0)", "t0 = sqrt(x0); 0.5 * -(1 / t0 / t0) / t0");
        check(x.power(0.0) + x.power(1.0), "1 + x0", "1");
        check(1.0 / &x, "1 / x0", "-(1 / x0 / x0)");
        check(x.log() * x.exp(), "log(x0) * exp(x0)", "t0 = exp(x0); log(x0) * t0 + t0 / x0");
        check(x.abs(), "abs(x0)", "where(x0 > 0, 1, where(0 > x0, -1, 0))");
        check(x.erf(), "erf(x0)", "1.1283792 * exp(-(x0 * x0))");
        check(x.sigmoid(), "sigmoid(x0)", "t0 = sigmoid(x0); t0 * (1 - t0)");
        let softplus = "where(x0 > 0, x0 + log(1 + exp(min(-x0, 0))), log(1 + exp(min(x0, 0))))";
        assert_eq!(x.softplus().to_string(), softplus);
        check(x.sqrt(), "sqrt(x0)", "0.5 / sqrt(x0)");
        check(x.clamp(-1.0, 1.0), "min(max(x0, -1), 1)", "where(-1 > x0, 0, where(max(x0, -1) > 1, 0, 1))");
        check(&x * &x, "x0 * x0", "x0 + x0");
        // The choice is made last, and once.
        let chosen = Expression::where_above(&x, &y, x.sqrt(), x.log());
        check(chosen, "where(x0 > x1, sqrt(x0), log(x0))", "where(x0 > x1, 0.5 / sqrt(x0), 1 / x0)");
    }

    #[test]
    fn a_long_chain_of_shared_parts_is_short() {
        let [mut x] = Expression::operands();
        for _ in 0..40 {
            x = &x * &x;
        }
        assert_eq!(Formula::new(&[x.clone()]).steps().len(), 41);
        assert!(x.derivative(0).to_string().len() < 2000);
    }
}
