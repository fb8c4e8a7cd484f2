//! What a run says of a rank that the others wait for: which, how long, at what, and whether it was faster before.

use enmasse_train::{Bottleneck, Straggler};
use enmasse_wording::one_line;

/// A line about the same rank and work follows only if it has become this many times slower since.
const CHANGE: f64 = 1.5;

/// A rank that takes this many times its own shortest time has become slower.
const SLOWER: f64 = 1.2;

/// Remembers what was told.
#[derive(Debug, Default)]
pub struct Stragglers {
    told: Option<Straggler>,
}

impl Stragglers {
    /// The line about a straggler of an epoch, from 0; `None` if it was told before.
    pub fn line(&mut self, epoch: u64, straggler: &Straggler) -> Option<String> {
        let is_same = |told: &&Straggler| told.rank == straggler.rank && told.work == straggler.work;
        if self.told.as_ref().filter(is_same).is_some_and(|told| straggler.times < CHANGE * told.times) {
            return None;
        }
        self.told = Some(straggler.clone());
        let Straggler { rank, host, work, times, waited, past } = straggler;
        let (work, remedy) = match work {
            Bottleneck::Data => ("waiting for images", "its loader threads and the disk that it reads from"),
            Bottleneck::Compute => ("computing", "other programs on its cores or its GPU, and at their clock rates"),
            Bottleneck::Other => ("with checkpoints or callbacks", "the disk of the run folder, and at its callbacks"),
        };
        let history = match past {
            Some(past) if *past >= SLOWER => format!(", and was {past:.1} times faster before"),
            Some(_) => ", and was never faster".to_owned(),
            None => String::new(),
        };
        let epoch = epoch + 1;
        let percent = 100.0 * waited;
        let host = one_line(host);
        Some(format!(
            "straggler: in epoch {epoch}, rank {rank} on {host} took {times:.1} times as long as the others, who waited \
             {percent:.0} % of the time for it; it lost the time {work}{history}: look at {remedy}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::screen::wrap;

    fn straggler(rank: usize, work: Bottleneck, times: f64, past: Option<f64>) -> Straggler {
        Straggler { rank, host: "node7".into(), work, times, waited: 0.44, past }
    }

    #[test]
    fn lines() {
        let check = |work: Bottleneck, past: Option<f64>, expected: &str| {
            let line = Stragglers::default().line(3, &straggler(5, work, 1.83, past)).unwrap();
            assert_eq!(wrap(&line, 80), expected);
        };
        let slower = "straggler: in epoch 4, rank 5 on node7 took 1.8 times as long as the others, who
           waited 44 % of the time for it; it lost the time computing, and was
           1.8 times faster before: look at other programs on its cores or its
           GPU, and at their clock rates";
        check(Bottleneck::Compute, Some(1.81), slower);
        let always = "straggler: in epoch 4, rank 5 on node7 took 1.8 times as long as the others, who
           waited 44 % of the time for it; it lost the time waiting for images,
           and was never faster: look at its loader threads and the disk that it
           reads from";
        check(Bottleneck::Data, Some(1.05), always);
        let first = "straggler: in epoch 4, rank 5 on node7 took 1.8 times as long as the others, who
           waited 44 % of the time for it; it lost the time with checkpoints or
           callbacks: look at the disk of the run folder, and at its callbacks";
        check(Bottleneck::Other, None, first);
    }

    #[test]
    fn a_line_where_it_is_news() {
        let check = |found: &[(usize, Bottleneck, f64)], told: &[usize]| {
            let mut stragglers = Stragglers::default();
            let mut tell = |&(rank, work, times)| stragglers.line(0, &straggler(rank, work, times, None)).is_some();
            let lines: Vec<usize> = (0..).zip(found).filter(|(_, found)| tell(found)).map(|(index, _)| index).collect();
            assert_eq!(lines, told, "{found:?}");
        };
        use Bottleneck::{Compute, Data};
        check(&[(1, Data, 2.0), (1, Data, 2.9), (1, Data, 3.0), (1, Data, 4.0)], &[0, 2]);
        check(&[(1, Data, 2.0), (2, Data, 2.0), (1, Data, 2.0), (1, Compute, 2.0), (1, Compute, 1.5)], &[0, 1, 2, 3]);
    }
}
