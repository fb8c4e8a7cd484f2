//! Rounds on values that are text, so that the order of additions can be read.

use super::*;
use proptest::prelude::*;

/// The sums of all ranks as text, by rounds over messages, and how many elements each rank sends.
fn run(algorithm: Algorithm, nodes: &[Vec<usize>], count: usize) -> (Vec<Vec<String>>, Vec<usize>) {
    let ranks = nodes.iter().map(Vec::len).sum();
    let nothing = std::ptr::NonNull::<u8>::dangling().as_ptr();
    let operation =
        Operation { algorithm, ..Operation::new(crate::operation::Kind::AllReduce, nothing, nothing, count) };
    let rounds: Vec<_> = (0..ranks).map(|rank| Rounds::new(&operation, rank, nodes)).collect();
    let mut data: Vec<Vec<String>> = (0..ranks).map(|rank| vec![format!("{rank}"); count]).collect();
    let mut sent = vec![0; ranks];
    for number in 0..rounds[0].len() {
        let round: Vec<_> = rounds.iter().map(|rounds| rounds.get(number)).collect();
        let before = data.clone();
        for (rank, own) in round.iter().enumerate() {
            assert_eq!(own.longest, round[0].longest);
            // What one rank sends, another one expects.
            if let Some((to, range)) = &own.send {
                let expected = round[*to].receive.as_ref().map(|receipt| (receipt.from, &receipt.range));
                assert_eq!(expected, Some((rank, range)), "{algorithm} round {number}");
                assert!(range.len() <= own.longest && *to != rank);
                sent[rank] += range.len();
            }
            let Some(Receipt { from, range, how }) = &own.receive else { continue };
            assert_eq!(round[*from].send, Some((rank, range.clone())), "{algorithm} round {number}");
            for i in range.clone() {
                let own = &before[rank][i];
                let come = &before[*from][i];
                data[rank][i] = match how {
                    Take::Left => format!("({come}+{own})"),
                    Take::Right => format!("({own}+{come})"),
                    Take::Copy => come.clone(),
                };
            }
        }
    }
    (data, sent)
}

fn one_node(ranks: usize) -> Vec<Vec<usize>> {
    vec![(0..ranks).collect()]
}

#[test]
fn orders_are_as_documented() {
    // Pieces of bytes begin every 64 of them.
    let check = |algorithm: Algorithm, nodes: &[Vec<usize>], expected: &[&str]| {
        let (sums, _) = run(algorithm, nodes, 64 * expected.len());
        let firsts: Vec<_> = sums[0].iter().step_by(64).collect();
        assert_eq!(firsts, expected, "{algorithm}");
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{algorithm}");
    };
    check(Algorithm::Ring, &one_node(3), &["((1+2)+0)", "((2+0)+1)", "((0+1)+2)"]);
    check(Algorithm::Direct, &one_node(3), &["((0+1)+2)", "((1+2)+0)", "((2+0)+1)"]);
    check(Algorithm::HalvingDoubling, &one_node(4), &["((0+1)+(2+3))"; 4]);
    check(Algorithm::HalvingDoubling, &one_node(6), &["(((0+4)+(1+5))+(2+3))"; 6]);
    check(Algorithm::Hierarchical, &one_node(2), &["(0+1)", "(1+0)"]);
    // In turns on two nodes, the second of which has one rank, so there is one piece, of which the ring has two.
    check(Algorithm::Hierarchical, &[vec![0, 2], vec![1]], &["(1+(0+2))", "((0+2)+1)"]);
    check(
        Algorithm::Hierarchical,
        &[vec![0, 1], vec![2, 3]],
        &["((2+3)+(0+1))", "((0+1)+(2+3))", "((3+2)+(1+0))", "((1+0)+(3+2))"],
    );
}

#[test]
fn bytes_are_those_of_the_textbook() {
    let check = |algorithm: Algorithm, ranks: usize, expected: &[usize]| {
        let (_, sent) = run(algorithm, &one_node(ranks), 64 * ranks);
        assert_eq!(sent, expected.iter().map(|pieces| 64 * pieces).collect::<Vec<_>>(), "{algorithm} {ranks}");
    };
    for ranks in [2, 3, 4, 7, 8] {
        check(Algorithm::Ring, ranks, &vec![2 * (ranks - 1); ranks]);
        check(Algorithm::Direct, ranks, &vec![2 * (ranks - 1); ranks]);
        if ranks.is_power_of_two() {
            check(Algorithm::HalvingDoubling, ranks, &vec![2 * (ranks - 1); ranks]);
        }
    }
    // Rank 2 gives all it has; rank 0 gives it the sum.
    check(Algorithm::HalvingDoubling, 3, &[3 + 3, 3, 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_rank_gets_the_same_sum_of_all(ranks in 1usize..14, of_node in 1usize..5, in_turns: bool, count in 0usize..300) {
        let node = |rank: usize| if in_turns { rank % of_node } else { rank / of_node };
        let nodes: Vec<Vec<usize>> = (0..ranks).map(|number| (0..ranks).filter(|&rank| node(rank) == number).collect()).collect();
        let nodes: Vec<_> = nodes.into_iter().filter(|node: &Vec<usize>| !node.is_empty()).collect();
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Tree) {
            let (sums, _) = run(algorithm, &nodes, count);
            prop_assert!(sums.iter().all(|sum| *sum == sums[0]), "{}", algorithm);
            for sum in &sums[0] {
                let mut terms: Vec<usize> =
                    sum.split(|c: char| !c.is_ascii_digit()).filter_map(|term| term.parse().ok()).collect();
                terms.sort_unstable();
                prop_assert_eq!(&terms, &(0..ranks).collect::<Vec<_>>(), "{} {}", algorithm, sum);
            }
        }
    }
}
