//! Where the time of training goes on each rank, and which rank the others wait for.
//!
//! Every step ends when the slowest rank has finished it, so the others wait in the sums of their
//! gradients. A rank's own time is therefore what remains of its time without that wait
//! (`Group::waited`). Ranks gather theirs every 256 steps of an epoch, and at its end. So all know
//! the slowest one, and compare it with the others and with its own past.

use std::time::{Duration, Instant};

use enmasse_comm::{Group, ShardMap};
use serde::Serialize;

use crate::{RankPlace, TrainError};

/// Steps of an interval.
pub(crate) const INTERVAL: u64 = 256;

/// A rank that takes less than this many times the others' time does not matter, nor one for which the others wait a smaller
/// share of their time.
const MATTERS: (f64, f64) = (1.2, 0.1);

/// A shorter time tells little: threads start, and caches are cold.
const SECONDS: f64 = 3.0;

/// What a rank spends its own time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Waiting for images.
    Data,
    /// Computing.
    Compute,
    /// Everything else: checkpoints, callbacks.
    Other,
}

/// A rank for which the others wait.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Straggler {
    /// The rank.
    pub rank: usize,
    /// Its machine.
    pub host: String,
    /// What it spends more time on than the others.
    pub work: Bottleneck,
    /// Its own time for a shard's batch ÷ the median of the others'.
    pub times: f64,
    /// The share of their time that the others wait for it, 0 to 1.
    pub waited: f64,
    /// Its own time ÷ its shortest in an earlier interval; `None` in the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub past: Option<f64>,
}

/// Seconds of a rank's training, by what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pace {
    pub data: f64,
    pub compute: f64,
    pub other: f64,
    /// Waiting for other ranks.
    pub ranks: f64,
}

impl Pace {
    /// The time that no other rank caused.
    fn own(&self) -> f64 {
        self.data + self.compute + self.other
    }

    fn total(&self) -> f64 {
        self.own() + self.ranks
    }

    fn plus(self, more: Pace) -> Pace {
        Pace {
            data: self.data + more.data,
            compute: self.compute + more.compute,
            other: self.other + more.other,
            ranks: self.ranks + more.ranks,
        }
    }

    /// The paces of all ranks, of which this is one rank's own. Every rank must call this after the same step.
    pub fn of_all(self, group: Option<&Group>) -> Result<Vec<Pace>, TrainError> {
        Ok(gather(self.seconds(), group)?.into_iter().map(Pace::of).collect())
    }

    pub fn seconds(self) -> [f64; 4] {
        [self.data, self.compute, self.other, self.ranks]
    }

    pub fn of([data, compute, other, ranks]: [f64; 4]) -> Self {
        Pace { data, compute, other, ranks }
    }
}

/// The numbers of all ranks, of which these are one rank's own.
pub(crate) fn gather<const N: usize>(own: [f64; N], group: Option<&Group>) -> Result<Vec<[f64; N]>, TrainError> {
    let Some(group) = group else { return Ok(vec![own]) };
    let mut all = vec![0.0; N * group.world_size()];
    group.all_gather(&own, &mut all)?;
    Ok(all.as_chunks().0.to_vec())
}

/// Measures the pace of this rank.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    began: Instant,
    /// The waits for images and for ranks when it began.
    data: Duration,
    ranks: Duration,
    /// Within the device, with and without waits for ranks.
    device: Duration,
    device_ranks: Duration,
}

impl Stopwatch {
    /// Begins at a time at which training has waited `data` for images.
    pub fn start(data: Duration, group: Option<&Group>) -> Self {
        let (device, device_ranks) = Default::default();
        Stopwatch { began: Instant::now(), data, ranks: waited(group), device, device_ranks }
    }

    /// Does work of the device.
    pub fn device<T>(&mut self, group: Option<&Group>, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let ranks = waited(group);
        let result = work();
        self.device += began.elapsed();
        self.device_ranks += waited(group) - ranks;
        result
    }

    /// The pace since it began, and begins again.
    pub fn lap(&mut self, data: Duration, group: Option<&Group>) -> Pace {
        let lap = std::mem::replace(self, Stopwatch::start(data, group));
        let total = (self.began - lap.began).as_secs_f64();
        let data = (self.data - lap.data).as_secs_f64();
        let ranks = (self.ranks - lap.ranks).as_secs_f64();
        let compute = lap.device.saturating_sub(lap.device_ranks).as_secs_f64();
        Pace { data, compute, other: (total - data - compute - ranks).max(0.0), ranks }
    }
}

fn waited(group: Option<&Group>) -> Duration {
    group.map_or(Duration::ZERO, Group::waited)
}

/// The paces of all ranks in the course of a run. Every rank has the same.
#[derive(Debug)]
pub(crate) struct Paces {
    ranks: Vec<RankPace>,
    /// Ranks that compute the same shards together.
    parts: f64,
    /// Steps of the epoch so far.
    steps: u64,
}

#[derive(Debug)]
struct RankPace {
    host: String,
    /// The shards that it hosts: a rank with twice as many needs twice the time.
    shards: f64,
    /// The epoch so far.
    epoch: Pace,
    /// Its shortest own time for a shard's batch in an interval.
    best: Option<f64>,
}

/// What the record of an epoch says of its paces.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EpochPace {
    /// The longest wait of a rank for images, as a share of its time.
    pub data_wait: f64,
    /// The mean over ranks of their wait for others, as a share of their time.
    pub rank_wait: f64,
    pub straggler: Option<Straggler>,
    pub ranks: Vec<RankShares>,
}

/// Shares of a rank in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RankShares {
    /// Of the images: those of its shards.
    pub images: f64,
    /// Of its time.
    pub data_wait: f64,
    pub rank_wait: f64,
}

impl Paces {
    /// The paces of ranks of which each replica hosts its shards of `map`; `place` is that of one of them.
    pub fn new(map: &ShardMap, place: &RankPlace, group: Option<&Group>) -> Self {
        let host = |rank: usize| group.and_then(|group| group.host(rank)).unwrap_or_default().to_owned();
        let rank = |rank: usize| RankPace {
            host: host(rank),
            shards: map.local(place.replica_of(rank)).len() as f64,
            epoch: Pace::default(),
            best: None,
        };
        let parts = place.parts();
        Paces { ranks: (0..parts * map.ranks()).map(rank).collect(), parts: parts as f64, steps: 0 }
    }

    /// Adds an interval of `steps` steps, and returns the rank that the others waited for in it.
    pub fn interval(&mut self, paces: &[Pace], steps: u64) -> Option<Straggler> {
        let straggler = self.straggler(paces, steps);
        self.add(paces, steps);
        self.learn(paces, steps);
        straggler
    }

    /// Adds the last interval of an epoch, and sums the epoch up.
    pub fn epoch(&mut self, paces: &[Pace], steps: u64) -> EpochPace {
        self.add(paces, steps);
        let epoch: Vec<Pace> = self.ranks.iter_mut().map(|rank| std::mem::take(&mut rank.epoch)).collect();
        let all = std::mem::take(&mut self.steps);
        let straggler = self.straggler(&epoch, all);
        self.learn(paces, steps);
        let share = |part: f64, pace: &Pace| part / pace.total().max(1e-9);
        let shards: f64 = self.ranks.iter().map(|rank| rank.shards).sum();
        let of_rank = |(rank, pace): (&RankPace, &Pace)| RankShares {
            images: rank.shards * self.parts / shards,
            data_wait: share(pace.data, pace),
            rank_wait: share(pace.ranks, pace),
        };
        let ranks: Vec<RankShares> = self.ranks.iter().zip(&epoch).map(of_rank).collect();
        EpochPace {
            data_wait: ranks.iter().map(|rank| rank.data_wait).fold(0.0, f64::max),
            rank_wait: ranks.iter().map(|rank| rank.rank_wait).sum::<f64>() / ranks.len().max(1) as f64,
            straggler,
            ranks,
        }
    }

    fn add(&mut self, paces: &[Pace], steps: u64) {
        self.ranks.iter_mut().zip(paces).for_each(|(rank, pace)| rank.epoch = rank.epoch.plus(*pace));
        self.steps += steps;
    }

    fn learn(&mut self, paces: &[Pace], steps: u64) {
        for (rank, pace) in self.ranks.iter_mut().zip(paces).filter(|(_, pace)| pace.total() >= SECONDS) {
            let own = pace.own() / rank.shards / steps as f64;
            rank.best = Some(rank.best.map_or(own, |best| best.min(own)));
        }
    }

    /// The rank with the longest own time, if the others wait long for it.
    fn straggler(&self, paces: &[Pace], steps: u64) -> Option<Straggler> {
        let scaled = |part: fn(&Pace) -> f64| -> Vec<f64> {
            self.ranks.iter().zip(paces).map(|(rank, pace)| part(pace) / rank.shards).collect()
        };
        let own = scaled(Pace::own);
        let slowest = (0..own.len()).max_by(|&a, &b| own[a].total_cmp(&own[b]))?;
        let rank = &self.ranks[slowest];
        let total = paces[slowest].total();
        let others = median_without(&own, slowest)?;
        let times = own[slowest] / others;
        let waited = (own[slowest] - others) * rank.shards / total;
        if !(total >= SECONDS && times >= MATTERS.0 && waited >= MATTERS.1) {
            return None;
        }
        let excess = |part: fn(&Pace) -> f64| {
            let values = scaled(part);
            values[slowest] - median_without(&values, slowest).unwrap_or(0.0)
        };
        let parts = [(Bottleneck::Data, excess(|pace| pace.data)), (Bottleneck::Compute, excess(|pace| pace.compute))];
        let other = (Bottleneck::Other, excess(|pace| pace.other));
        let (work, _) = parts.into_iter().fold(other, |most, part| if part.1 > most.1 { part } else { most });
        let past = rank.best.map(|best| own[slowest] / steps as f64 / best);
        Some(Straggler { rank: slowest, host: rank.host.clone(), work, times, waited, past })
    }
}

/// The median of all values but one; the lower one of two. `None` if there is no other value.
fn median_without(values: &[f64], left_out: usize) -> Option<f64> {
    let mut others: Vec<f64> = values.iter().enumerate().filter(|(i, _)| *i != left_out).map(|(_, v)| *v).collect();
    others.sort_by(f64::total_cmp);
    others.get(others.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use enmasse_device::RankStage;

    use super::*;

    fn paces(shards: usize, ranks: usize) -> Paces {
        let place = RankPlace::Stage(RankStage::new(0, ranks, 1).unwrap());
        Paces::new(&ShardMap::new(shards, ranks).unwrap(), &place, None)
    }

    /// Seconds of data, compute, other and ranks.
    fn of(paces: &[[f64; 4]]) -> Vec<Pace> {
        paces.iter().map(|&[data, compute, other, ranks]| Pace { data, compute, other, ranks }).collect()
    }

    #[test]
    fn the_rank_that_the_others_wait_for() {
        let check = |shards: usize, seconds: &[[f64; 4]], expected: Option<(usize, Bottleneck, f64, f64)>| {
            let found = paces(shards, seconds.len()).interval(&of(seconds), 10);
            let found = found.map(|found| (found.rank, found.work, found.times, found.waited));
            assert_eq!(found, expected, "{seconds:?}");
        };
        check(1, &[[1.0, 9.0, 0.0, 0.0]], None);
        check(2, &[[0.0, 8.0, 0.0, 2.0], [0.0, 8.0, 0.0, 2.0]], None);
        check(2, &[[0.0, 4.0, 0.0, 4.0], [0.0, 8.0, 0.0, 0.0]], Some((1, Bottleneck::Compute, 2.0, 0.5)));
        check(
            3,
            &[[6.0, 2.0, 0.0, 0.0], [0.0, 2.0, 0.0, 6.0], [2.0, 2.0, 0.0, 4.0]],
            Some((0, Bottleneck::Data, 4.0, 0.75)),
        );
        check(
            3,
            &[[0.0, 5.0, 5.0, 0.0], [0.0, 5.0, 0.0, 5.0], [0.0, 5.0, 0.0, 5.0]],
            Some((0, Bottleneck::Other, 2.0, 0.5)),
        );
        // Too little, and too short.
        check(2, &[[0.0, 8.0, 0.0, 2.0], [0.0, 9.5, 0.0, 0.5]], None);
        check(2, &[[0.0, 1.0, 0.0, 9.0], [0.0, 1.5, 0.0, 8.5]], None);
        check(2, &[[0.0, 1.0, 0.0, 1.5], [0.0, 2.5, 0.0, 0.0]], None);
        // Rank 0 hosts two of three shards.
        check(3, &[[0.0, 8.0, 0.0, 0.0], [0.0, 4.0, 0.0, 4.0]], None);
        check(3, &[[0.0, 8.0, 0.0, 0.0], [0.0, 8.0, 0.0, 0.0]], Some((1, Bottleneck::Compute, 2.0, 0.5)));
    }

    #[test]
    fn an_epoch_is_the_sum_of_its_intervals() {
        let mut paces = paces(2, 2);
        let even = of(&[[1.0, 7.0, 0.0, 2.0], [0.0, 8.0, 0.0, 2.0]]);
        let uneven = of(&[[0.0, 8.0, 0.0, 32.0], [0.0, 40.0, 0.0, 0.0]]);
        assert_eq!(paces.interval(&even, 10), None);
        let slow = paces.interval(&uneven, 10).unwrap();
        assert_eq!((slow.rank, slow.times, slow.waited, slow.past), (1, 5.0, 0.8, Some(5.0)));
        let epoch = paces.epoch(&even, 20);
        let straggler = epoch.straggler.unwrap();
        assert_eq!((straggler.rank, straggler.times, straggler.waited), (1, 56.0 / 24.0, 32.0 / 60.0));
        // The time of a step is 1.4 s in this epoch, and was 0.8 s at best.
        assert!(straggler.past.is_some_and(|past| (past - 1.4 / 0.8).abs() < 1e-12));
        assert_eq!((epoch.data_wait, epoch.rank_wait), (2.0 / 60.0, (36.0 / 60.0 + 4.0 / 60.0) / 2.0));
        let ranks: Vec<_> = epoch.ranks.iter().map(|rank| (rank.images, rank.data_wait, rank.rank_wait)).collect();
        assert_eq!(ranks, [(0.5, 2.0 / 60.0, 36.0 / 60.0), (0.5, 0.0, 4.0 / 60.0)]);
        // The next epoch begins at zero, but knows how fast each rank was: 0.4 s.
        let next = paces.epoch(&uneven, 20);
        assert_eq!(next.straggler.and_then(|straggler| straggler.past), Some(5.0));
        assert_eq!(next.rank_wait, 0.4);
    }

    #[test]
    fn ranks_wait_for_one_that_comes_late() {
        let ranks = Group::threads(2).unwrap().into_iter().map(|group| {
            std::thread::spawn(move || {
                let group = Some(&group);
                let began = Instant::now();
                let mut stopwatch = Stopwatch::start(Duration::ZERO, group);
                let late = group.is_some_and(|group| group.rank() == 1);
                while late && began.elapsed() < Duration::from_millis(50) {
                    std::thread::yield_now();
                }
                let own = if late { began.elapsed() } else { Duration::ZERO };
                let sum = |group: &Group| group.reduce(1.0, enmasse_comm::Reduce::Sum);
                stopwatch.device(group, || group.map(sum)).unwrap().unwrap();
                let pace = stopwatch.lap(own, group);
                (own, pace, pace.of_all(group).unwrap())
            })
        });
        let ended: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
        let [(_, early, seen), (held, late, also)] = &ended[..] else { panic!("two ranks") };
        assert_eq!((seen, also), (&vec![*early, *late], seen));
        assert!(early.ranks > 0.0 && early.data == 0.0, "{early:?}");
        assert_eq!(late.data, held.as_secs_f64());
        assert!(late.compute < late.total() && late.total() >= held.as_secs_f64(), "{late:?}");
    }
}
