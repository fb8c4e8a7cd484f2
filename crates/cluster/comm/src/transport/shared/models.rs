//! Models of the protocol. loom runs the transport's own code of every rank in all orders that the memory model permits, with
//! a bound on preemptions. It reports a slot that two ranks use at once, and ranks that wait for ever.

use loom::cell::UnsafeCell;
use loom::thread;

use super::*;
use crate::cause::{Cause, CauseKind};
use crate::operation::Identity;
use crate::options::GroupOptions;
use crate::shards::ShardMap;
use crate::sync::futex;

/// Elements of a cache line, at which data are cut.
const LINE: usize = 64 / size_of::<f32>();

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        futex::boot();
        model();
    });
}

/// An operation whose data name their rank and operation.
#[derive(Clone, Copy)]
struct Exchange {
    kind: Kind,
    algorithm: Algorithm,
    count: usize,
}

impl Exchange {
    fn of(kind: Kind, count: usize) -> Self {
        Exchange { kind, algorithm: Algorithm::Tree, count }
    }
}

/// One rank, and the failure of its group as its process knows it.
struct Rank {
    transport: SharedTransport,
    failure: Arc<Failure>,
    operations: u64,
}

impl Rank {
    /// The ranks of a group.
    fn all(ranks: usize) -> impl Iterator<Item = Rank> {
        let region = Arc::new(Region::private(SharedTransport::layout(ranks)).unwrap());
        (0..ranks).map(move |rank| {
            let members = Members::of_job(rank, ranks, Identity::default());
            let transport = SharedTransport::new(region.clone(), members);
            Rank { transport, failure: Arc::default(), operations: 0 }
        })
    }

    fn pair() -> [Rank; 2] {
        let mut ranks = Rank::all(2);
        std::array::from_fn(|_| ranks.next().unwrap())
    }

    fn number(&self) -> usize {
        self.transport.members.rank
    }

    fn execute(&mut self, operation: Operation) -> Result<(), Stop> {
        self.operations += 1;
        let operation = Operation { sequence: self.operations, ..operation };
        self.transport.execute(&RunningOperation::new(&operation, &self.failure, GroupOptions::default()))
    }

    /// Carries out an operation, and checks its result if it succeeds.
    fn exchange(&mut self, Exchange { kind, algorithm, count }: Exchange) -> Result<(), Stop> {
        let own = self.number();
        let ranks = self.transport.members.world_size();
        let number = self.operations as usize;
        let value = |rank: usize, at: usize| (1000 * rank + 100 * number + at) as f32;
        let sum = |at: usize| (0..ranks).map(|rank| value(rank, at)).sum();
        let is_sum = matches!(kind, Kind::AllReduce | Kind::ReduceScatter);
        let expected = |at: usize| match kind {
            _ if is_sum => sum(at),
            Kind::AllGather => value(at / count, at % count),
            Kind::AllToAll => value(at / count, own * count + at % count),
            _ => value(0, at),
        };
        let len = if matches!(kind, Kind::AllGather | Kind::AllToAll) { ranks * count } else { count };
        let result = if kind == Kind::ReduceScatter { piece(len, size_of::<f32>(), own, ranks) } else { 0..len };

        let input: Vec<_> = (0..len).map(|at| value(own, at)).collect();
        let mut output = input.clone();
        let from = if is_sum { output.as_ptr() } else { input.as_ptr() };
        let shards = ShardMap::one_each(if is_sum { ranks } else { 1 });
        self.execute(Operation { shards, algorithm, ..Operation::new(kind, from, output.as_mut_ptr(), count) })?;
        let expected: Vec<_> = result.clone().map(expected).collect();
        assert_eq!(output[result], expected, "rank {own} in operation {number}");
        Ok(())
    }
}

/// Runs each rank of a group on a thread of its own.
fn on_each(ranks: usize, run: impl Fn(Rank) + 'static) {
    let (mut all, run) = (Rank::all(ranks), Arc::new(run));
    let first = all.next().unwrap();
    let spawn = |rank| {
        let run = run.clone();
        thread::spawn(move || run(rank))
    };
    let others: Vec<_> = all.map(spawn).collect();
    run(first);
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// Operations in one order only, and then `explored` operations in all orders, which use a slot again.
fn exchanges(ranks: usize, preemptions: usize, explored: usize, exchange: Exchange) {
    check(preemptions, move || {
        loom::stop_exploring();
        on_each(ranks, move |mut rank| {
            (explored..SLOTS + 1).for_each(|_| rank.exchange(exchange).unwrap());
            if rank.number() == 0 {
                loom::explore();
            }
            (0..explored).for_each(|_| rank.exchange(exchange).unwrap());
        });
    });
}

#[test]
fn short_sums() {
    exchanges(2, 2, 2, Exchange::of(Kind::AllReduce, 4));
}

#[test]
fn short_sums_of_three_ranks() {
    exchanges(3, 1, 1, Exchange::of(Kind::AllReduce, 4));
}

#[test]
fn sums_in_pieces() {
    exchanges(2, 2, 1, Exchange::of(Kind::AllReduce, 2 * LINE));
}

#[test]
fn sums_by_ring() {
    exchanges(2, 2, 1, Exchange { algorithm: Algorithm::Ring, ..Exchange::of(Kind::AllReduce, 2 * LINE) });
}

#[test]
fn reduce_scatters() {
    exchanges(2, 2, 2, Exchange::of(Kind::ReduceScatter, 2 * LINE));
}

#[test]
fn all_gathers() {
    exchanges(2, 2, 2, Exchange::of(Kind::AllGather, LINE));
}

#[test]
fn broadcasts_to_two_ranks() {
    exchanges(3, 1, 1, Exchange::of(Kind::Broadcast, LINE));
}

#[test]
fn all_to_alls() {
    exchanges(2, 2, 2, Exchange::of(Kind::AllToAll, LINE));
}

/// One operation of several chunks. The root of a broadcast runs ahead of the others, as far as its slots permit.
fn chunks(preemptions: usize, kind: Kind, chunks: usize) {
    let exchange = Exchange::of(kind, chunks * SLOT_BYTES / size_of::<f32>());
    check(preemptions, move || on_each(2, move |mut rank| rank.exchange(exchange).unwrap()));
}

#[test]
fn sums_of_three_chunks() {
    chunks(1, Kind::AllReduce, 3);
}

#[test]
fn broadcasts_of_more_chunks_than_slots() {
    chunks(1, Kind::Broadcast, SLOTS + 1);
}

/// Between two barriers all see what each has written before, and nobody writes.
fn barriers(ranks: usize, preemptions: usize, rounds: u64) {
    check(preemptions, move || {
        let words: Arc<[UnsafeCell<u64>]> = (0..ranks).map(|_| UnsafeCell::new(0)).collect();
        on_each(ranks, move |mut rank| {
            for round in 1..=rounds {
                // SAFETY: others use the word only between the two barriers, or loom reports it.
                words[rank.number()].with_mut(|word| unsafe { *word = round });
                rank.execute(Operation::barrier()).unwrap();
                for word in &*words {
                    // SAFETY: its rank writes it only after the second barrier, or loom reports it.
                    assert_eq!(word.with(|word| unsafe { *word }), round);
                }
                rank.execute(Operation::barrier()).unwrap();
            }
        });
    });
}

#[test]
fn barriers_of_two_ranks() {
    barriers(2, 2, 2);
}

#[test]
fn barriers_of_three_ranks() {
    barriers(3, 1, 1);
}

/// Nobody sleeps through what another publishes, although that one wakes nobody if it sees no sleeper.
fn sleepers_are_woken(sleepers: usize, preemptions: usize, publications: u64) {
    check(preemptions, move || {
        let mut all = Rank::all(1 + sleepers);
        let publisher = all.next().unwrap().transport;
        let sleep = move |rank: Rank| {
            let operation = Operation::barrier();
            let running = RunningOperation::new(&operation, &rank.failure, GroupOptions::default());
            let wait_for = |chunks| rank.transport.wait_for(&running, 0, |counters| &counters.staged, chunks);
            (1..=publications).for_each(|chunks| wait_for(chunks).unwrap());
            let stop = wait_for(publications + 1);
            assert!(matches!(stop, Err(Stop::Raise(cause)) if cause.kind == CauseKind::Exited));
        };
        let sleepers: Vec<_> = all.map(|rank| thread::spawn(move || sleep(rank))).collect();
        (1..=publications).for_each(|chunks| publisher.own().publish(&publisher.own().staged, chunks));
        publisher.own().leave();
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
}

#[test]
fn a_sleeper_is_woken() {
    sleepers_are_woken(1, 3, 2);
}

#[test]
fn two_sleepers_are_woken() {
    sleepers_are_woken(2, 2, 1);
}

#[test]
fn what_a_rank_has_done_before_it_leaves_counts() {
    check(2, || {
        let [mut stays, mut leaves] = Rank::pair();
        let exchange = Exchange::of(Kind::AllGather, LINE);
        let other = thread::spawn(move || {
            leaves.exchange(exchange).unwrap();
            leaves.transport.close(&leaves.failure, Duration::ZERO);
        });
        stays.exchange(exchange).unwrap();
        let stop = stays.exchange(exchange);
        assert!(matches!(stop, Err(Stop::Raise(cause)) if (cause.kind, cause.rank) == (CauseKind::Exited, Some(1))));
        other.join().unwrap();
    });
}

/// The operation before, which the failure may interrupt between two chunks, has its whole result or none.
#[test]
fn a_rank_that_waits_for_a_dead_one_leaves_with_the_cause() {
    check(1, || {
        let [mut waits, mut dies] = Rank::pair();
        let failure = waits.failure.clone();
        let failures = [waits.failure.clone(), dies.failure.clone()];
        let exchange = Exchange::of(Kind::AllGather, 2 * SLOT_BYTES / size_of::<f32>());
        let other = thread::spawn(move || {
            let end = dies.exchange(exchange);
            assert!(matches!(end, Ok(()) | Err(Stop::Failed)), "{end:?}");
        });
        // What the thread of the control connection does, at any time.
        let control = thread::spawn(move || {
            failures.iter().for_each(|failure| failure.raise(Cause::new(CauseKind::Exited, "killed").of_rank(1)));
            futex::end_limits();
        });
        let stop = waits.exchange(exchange).and_then(|()| waits.execute(Operation::barrier()));
        assert!(matches!(stop, Err(Stop::Failed)), "{stop:?}");
        assert_eq!(failure.check().unwrap_err().message, "killed");
        other.join().unwrap();
        control.join().unwrap();
    });
}

#[test]
fn two_causes_at_once_are_one_for_all() {
    check(3, || {
        let failure = Arc::<Failure>::default();
        let raise = |message| {
            let failure = failure.clone();
            thread::spawn(move || {
                failure.raise(Cause::new(CauseKind::Error, message));
                failure.check().unwrap_err().message.clone()
            })
        };
        let [one, other] = ["one", "other"].map(raise).map(|thread| thread.join().unwrap());
        assert_eq!(one, other);
    });
}
