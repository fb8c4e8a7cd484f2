//! The order of all sums over shards: a group of n splits at the largest power of two below n.
//!
//! Three shards are `(0 + 1) + 2`, five are `((0 + 1) + (2 + 3)) + 4`.

/// Combines `items` pairwise in the fixed tree; `None` if there are none.
pub fn reduce<T: Clone>(items: &[T], combine: &impl Fn(T, T) -> T) -> Option<T> {
    match items {
        [] => None,
        [one] => Some(one.clone()),
        many => {
            let (left, right) = many.split_at(many.len().next_power_of_two() / 2);
            Some(combine(reduce(left, combine)?, reduce(right, combine)?))
        }
    }
}

/// The element-wise sum of one tensor over shards.
pub fn sum(shards: &[Vec<f64>]) -> Vec<f64> {
    let add = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).map(|(a, b)| a + b).collect();
    reduce(shards, &add).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_at_the_largest_power_of_two_below() {
        let check = |n: usize, expected: &str| {
            let names: Vec<String> = (0..n).map(|i| i.to_string()).collect();
            assert_eq!(reduce(&names, &|a, b| format!("({a}+{b})")).unwrap_or_default(), expected);
        };
        check(0, "");
        check(1, "0");
        check(2, "(0+1)");
        check(3, "((0+1)+2)");
        check(4, "((0+1)+(2+3))");
        check(5, "(((0+1)+(2+3))+4)");
        check(6, "(((0+1)+(2+3))+(4+5))");
        check(7, "(((0+1)+(2+3))+((4+5)+6))");
        check(8, "(((0+1)+(2+3))+((4+5)+(6+7)))");
    }

    #[test]
    fn sums_are_the_trees_bits() {
        // (0.1 + 0.2) + 0.3 and 0.1 + (0.2 + 0.3) differ in the last bit.
        assert_eq!(sum(&[vec![0.1], vec![0.2], vec![0.3]]), [(0.1 + 0.2) + 0.3]);
        assert_eq!(sum(&[vec![0.1], vec![0.2], vec![0.3], vec![0.4]]), [(0.1 + 0.2) + (0.3 + 0.4)]);
        assert_eq!(sum(&[vec![1.0, 2.0], vec![10.0, 20.0]]), [11.0, 22.0]);
    }
}
