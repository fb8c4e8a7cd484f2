//! Random expressions that the tests of every device compute.

use enmasse_graph::Expression;
use enmasse_tensor::RandomStream;

/// An expression of two operands between -2 and 2. Rounding hardly moves any part of it, and choices compare operands alone, so
/// that they are the same in f32 and f64.
pub fn expression(seed: u64) -> Expression {
    let mut stream = RandomStream::new(seed, "expression", 0, 0);
    let [x, y] = Expression::operands();
    let mut values = vec![x.clone(), y.clone()];
    for _ in 0..5 {
        let mut pick = || values[stream.below(values.len() as u64) as usize].clone();
        let (a, b) = (pick(), pick());
        let above_1 = 1.0 + &a * &a;
        values.push(match stream.below(16) {
            0 => 0.5 * (a + b),
            1 => a - 0.25 * b,
            2 => a.tanh() * b,
            3 => b / above_1,
            4 => -a,
            5 => a.tanh().exp(),
            6 => above_1.log(),
            7 => a.erf(),
            8 => a.sigmoid(),
            9 => above_1.sqrt(),
            10 => above_1.power(-0.75),
            11 => a.tanh().power(3.0),
            12 => x.maximum(0.25) + a.tanh(),
            13 => Expression::where_above(&x, &y, a, b),
            14 => x.clamp(-0.5, 0.75) * b.tanh(),
            _ => y.abs() - x.minimum(&y) * a.sigmoid(),
        });
    }
    values.into_iter().skip(1).reduce(|sum, value| sum + value).unwrap_or(x)
}
