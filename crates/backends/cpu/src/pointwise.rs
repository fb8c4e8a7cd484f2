//! Expressions at each element: a formula runs step by step over blocks of elements, which stay in the first-level cache.
//!
//! A step is one loop over vectors, so that interpreting it costs little. All of a block is computed by whole vectors, also what its
//! elements do not fill, so that bits do not depend on where elements lie.

use enmasse_graph::{Binary, Formula, Term, Unary};

use crate::curve;
use crate::element::{self, Element};
use crate::inlined::inlined;
use crate::isa::{Four, Kernel, Lanes, MAX_LANES, Simd, dispatch};
use crate::region::Region;
use crate::sweep::TASK_VALUES;
use crate::workspace::{Context, Workspace};

/// Elements of a block.
const BLOCK: usize = 512;

/// Where a value of the formula is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Operand(usize),
    Constant(usize),
    Register(usize),
}

/// A formula whose values have places.
#[derive(Debug)]
pub(crate) struct Steps {
    /// What is computed, and into which register.
    steps: Vec<(Term<Place>, usize)>,
    constants: Vec<[f32; 4 * MAX_LANES]>,
    results: Vec<Place>,
    operands: usize,
    registers: usize,
}

impl Steps {
    pub(crate) fn new(formula: &Formula) -> Self {
        let (registers, count) = formula.registers();
        let mut steps = Steps {
            steps: Vec::new(),
            constants: Vec::new(),
            results: Vec::new(),
            operands: formula.operands(),
            registers: count,
        };
        let mut places = Vec::new();
        for (term, &register) in formula.steps().iter().zip(&registers) {
            places.push(match *term {
                Term::Operand(operand) => Place::Operand(operand),
                Term::Constant(value) => {
                    steps.constants.push([value; 4 * MAX_LANES]);
                    Place::Constant(steps.constants.len() - 1)
                }
                _ => {
                    steps.steps.push((term.map(|&operand| places[operand]), register));
                    Place::Register(register)
                }
            });
        }
        steps.results = formula.results().iter().map(|&result| places[result]).collect();
        steps
    }

    /// Each thread has the registers of a block, and the operands as f32.
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace { private: (self.registers + self.operands) * BLOCK, ..Workspace::default() }
    }
}

/// The values of a formula at each element.
///
/// # Safety
/// Regions are valid, equally long, and as many as the formula has operands and results. Results are written; the first may coincide
/// with an operand, which no other result does.
pub(crate) unsafe fn pointwise<E: Element>(
    context: &mut Context,
    steps: &Steps,
    operands: &[Region<E>],
    results: &[Region<E>],
) {
    let (isa, private) = (context.isa, &context.private);
    let elements = results[0].len();
    context.pool.run(elements.div_ceil(TASK_VALUES), |task, thread| {
        let end = elements.min((task + 1) * TASK_VALUES);
        for start in (task * TASK_VALUES..end).step_by(BLOCK) {
            let len = BLOCK.min(end - start);
            let block = Block { steps, operands, results, registers: private[thread], start, len };
            // SAFETY: the caller's promise; blocks are disjoint, and each thread has its own registers.
            unsafe { dispatch(isa, block) }
        }
    });
}

/// The elements of one block.
struct Block<'a, E> {
    steps: &'a Steps,
    operands: &'a [Region<E>],
    results: &'a [Region<E>],
    registers: Region<f32>,
    start: usize,
    len: usize,
}

/// The values of a block, or one value for all of them.
#[derive(Clone, Copy)]
struct Source {
    start: *const f32,
    /// Which bits of an index count.
    mask: usize,
}

impl Source {
    #[inline(always)]
    fn at(self, index: usize) -> *const f32 {
        self.start.wrapping_add(index & self.mask)
    }
}

impl<E: Element> Kernel for Block<'_, E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn run<S: Simd>(self) {
            let Block { steps, registers, start, len, .. } = self;
            if !self.reads_in_place() {
                for operand in 0..steps.operands {
                    let to = registers.at((steps.registers + operand) * BLOCK, len);
                    element::copy::<S, E, f32>(self.operands[operand].at(start, len), to, len);
                }
            }
            for &(term, register) in &steps.steps {
                let to = registers.at(register * BLOCK, BLOCK);
                step::<S>(term.map(|&place| self.source(place)), to, len.next_multiple_of(4 * S::LANES));
            }
            // Nothing reads operands any more, but for a result that is one; the first result may lie over it.
            for (result, &place) in self.results.iter().zip(&steps.results).rev() {
                match place {
                    Place::Constant(constant) => result.slice_mut(start, len).fill(E::of(steps.constants[constant][0])),
                    place => element::copy::<S, f32, E>(self.source(place).start, result.at(start, len), len),
                }
            }
        }
    }
}

impl<E: Element> Block<'_, E> {
    /// Whether the steps read operands where they are: in f32, and where vectors do not reach beyond it.
    fn reads_in_place(&self) -> bool {
        !E::BF16 && self.len == BLOCK
    }

    /// Where a value lies.
    fn source(&self, place: Place) -> Source {
        match place {
            Place::Constant(constant) => Source { start: self.steps.constants[constant].as_ptr(), mask: 0 },
            Place::Register(register) => Source { start: self.registers.at(register * BLOCK, BLOCK), mask: usize::MAX },
            Place::Operand(operand) if self.reads_in_place() => {
                Source { start: self.operands[operand].at(self.start, BLOCK).cast(), mask: usize::MAX }
            }
            Place::Operand(operand) => {
                let start = self.registers.at((self.steps.registers + operand) * BLOCK, BLOCK);
                Source { start, mask: usize::MAX }
            }
        }
    }
}

/// Computes a register from sources, vector by vector.
macro_rules! each {
    ($L:ty, $len:expr, $to:expr, [$($value:ident = $source:expr),*] => $result:expr) => {{
        let mut at = 0;
        while at < $len {
            $(let $value = <$L>::load($source.at(at));)*
            <$L>::store($to.add(at), $result);
            at += <$L>::LANES;
        }
    }};
}

inlined! {
    /// One step over `len` values, which are a multiple of four vectors.
    unsafe fn step<S: Simd>(term: Term<Source>, to: *mut f32, len: usize) {
        let (zero, one) = (S::splat(0.0), S::splat(1.0));
        match term {
            // These have no register of their own.
            Term::Operand(_) | Term::Constant(_) => {}
            Term::Unary(function, x) => match function {
                Unary::Negate => each!(S, len, to, [x = x] => S::mul(x, S::splat(-1.0))),
                Unary::Abs => each!(S, len, to, [x = x] => S::abs(x)),
                Unary::Sqrt => each!(S, len, to, [x = x] => S::sqrt(x)),
                Unary::Exp => each!(Four<S>, len, to, [x = x] => curve::exp::<Four<S>>(x)),
                Unary::Log => each!(Four<S>, len, to, [x = x] => curve::log::<Four<S>>(x)),
                Unary::Tanh => each!(Four<S>, len, to, [x = x] => curve::tanh::<Four<S>>(x)),
                Unary::Erf => each!(Four<S>, len, to, [x = x] => curve::erf::<Four<S>>(x)),
                Unary::Sigmoid => each!(Four<S>, len, to, [x = x] => curve::sigmoid::<Four<S>>(x)[0]),
            },
            Term::Binary(function, a, b) => match function {
                Binary::Add => each!(S, len, to, [a = a, b = b] => S::add(a, b)),
                Binary::Subtract => each!(S, len, to, [a = a, b = b] => S::sub(a, b)),
                Binary::Multiply => each!(S, len, to, [a = a, b = b] => S::mul(a, b)),
                Binary::Divide => each!(S, len, to, [a = a, b = b] => S::div(a, b)),
                Binary::Minimum => each!(S, len, to, [a = a, b = b] => {
                    S::greater([S::sub(zero, a), a], [S::sub(zero, b), b])[1]
                }),
                Binary::Maximum => each!(S, len, to, [a = a, b = b] => S::greater([a, a], [b, b])[1]),
            },
            Term::Power(x, 2.0) => each!(S, len, to, [x = x] => S::mul(x, x)),
            Term::Power(x, 3.0) => each!(S, len, to, [x = x] => S::mul(S::mul(x, x), x)),
            Term::Power(x, -1.0) => each!(S, len, to, [x = x] => S::div(one, x)),
            Term::Power(x, exponent) => {
                for at in 0..len {
                    *to.add(at) = f64::from(*x.at(at)).powf(exponent.into()) as f32;
                }
            }
            Term::Where([a, b, x, y]) => each!(S, len, to, [a = a, b = b, x = x, y = y] => {
                // A comparison with NaN is not above.
                S::greater([zero, y], [S::where_above(one, a, b), x])[1]
            }),
        }
    }
}

#[cfg(test)]
#[path = "pointwise_tests.rs"]
mod tests;
