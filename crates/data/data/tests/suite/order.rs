//! Orders of samples: every sample once, for any number of shards.

use enmasse_data::{EvalOrder, Sampler, Sharding, TrainOrder};
use proptest::prelude::*;

#[test]
fn an_epoch_is_a_function_of_seed_and_epoch() {
    let order = |seed, epoch| TrainOrder::new(seed, 100, 100).unwrap().epoch(epoch).global_batch(0);
    assert_eq!(order(1, 2), order(1, 2));
    for (seed, epoch) in [(1, 3), (2, 2), (0, 0)] {
        assert_ne!(order(1, 2), order(seed, epoch));
    }
}

#[test]
fn too_few_samples() {
    let check = |samples, drops, expected: Result<usize, &str>| {
        let order = TrainOrder::new(0, samples, 8).and_then(|order| order.drop_last(drops));
        match (order, expected) {
            (Ok(order), Ok(batches)) => assert_eq!(order.batches(), batches),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (other, _) => panic!("{other:?} instead of {expected:?}"),
        }
    };
    check(7, true, Err("hold 7 samples, fewer than one global batch of 8 (1 shards of 8), and drop_last leaves out"));
    check(8, true, Ok(1));
    check(7, false, Ok(1));
    check(1, false, Ok(1));
    check(0, false, Err("hold 0 samples"));
}

#[test]
fn too_many_samples() {
    let check = |samples, expected: Option<&str>| {
        assert_eq!(TrainOrder::new(0, samples, 8).err().map(|error| error.to_string()).as_deref(), expected);
    };
    check(u32::MAX as usize, None);
    check(1 << 32, Some("4294967296 samples are too many: an order has fewer than 2^32"));
}

#[test]
fn sharding_limits() {
    let check = |local, shards, batch, expected: Result<usize, &str>| {
        let sharding = Sharding { local, shards, batch };
        match (sharding.check(), expected) {
            (Ok(()), Ok(expected)) => assert_eq!(sharding.local_batch(), expected),
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected),
            (other, expected) => panic!("{other:?} instead of {expected:?}"),
        }
    };
    check(0..1, 1, 1, Ok(1));
    check(1..4, 4, 3, Ok(9));
    check(1..2, 1, 1, Err("shard 1 does not exist: there are 1, counted from 0"));
    check(2..5, 4, 1, Err("shard 4 does not exist: there are 4, counted from 0"));
    check(2..2, 4, 1, Err("none of 4 shards is hosted; at least one must be"));
    check(0..1, 0, 1, Err("0 shards of 1 samples make no batch; both must be at least 1"));
    check(0..1, 1, 0, Err("1 shards of 0 samples make no batch; both must be at least 1"));
    check(0..1, usize::MAX, 2, Err("a global batch of 18446744073709551615 x 2 samples is too large"));
}

/// The batches of PyTorch's sampler on each rank (`fixtures/orders.py`).
#[test]
fn the_distributed_sampler_is_pytorch_s() {
    let document: serde_json::Value = serde_json::from_str(include_str!("../fixtures/orders.json")).unwrap();
    let cases = document["distributed"].as_array().unwrap();
    assert_eq!(cases.len(), 10);
    for case in cases {
        let [samples, shards, batch, seed, epoch] =
            ["samples", "shards", "batch", "seed", "epoch"].map(|key| case[key].as_u64().unwrap() as usize);
        let sampler = Sampler::Distributed { drop_last: case["drop_last"].as_bool().unwrap() };
        let sharding = Sharding::one(0, shards, batch);
        let order = TrainOrder::with_sampler(sampler, seed as u64, samples, &sharding).unwrap();
        for drops in [false, true] {
            let Ok(order) = order.clone().drop_last(drops) else { panic!("{case}") };
            let epoch = order.epoch(epoch as u64);
            let batches = |shard| {
                let own = |step| epoch.local(step, &Sharding::one(shard, shards, batch));
                (0..order.batches()).map(own).collect::<Vec<Vec<usize>>>()
            };
            let ours: Vec<_> = (0..shards).map(batches).collect();
            let mut theirs: Vec<Vec<Vec<usize>>> = serde_json::from_value(case["batches"].clone()).unwrap();
            theirs.iter_mut().for_each(|batches| batches.retain(|own| !drops || own.len() == batch));
            assert_eq!(ours, theirs, "{case}");
            assert_eq!((epoch.batches(), order.batches_after(0)), (order.batches(), order.batches()));
        }
    }
}

#[test]
fn limits_of_the_distributed_sampler() {
    let check = |drop_last, samples, shards, batch, expected: Result<(usize, usize), &str>| {
        let sharding = Sharding::one(0, shards, batch);
        let order = TrainOrder::with_sampler(Sampler::Distributed { drop_last }, 0, samples, &sharding);
        match (order.and_then(|order| order.drop_last(true)), expected) {
            (Ok(order), Ok(expected)) => assert_eq!((order.batches(), order.dropped()), expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (other, expected) => panic!("{other:?} instead of {expected:?}"),
        }
    };
    check(false, 10, 4, 1, Ok((3, 0)));
    check(true, 10, 4, 1, Ok((2, 2)));
    check(false, 10, 4, 3, Ok((1, 0)));
    check(true, 10, 4, 3, Err("hold 10 samples, fewer than one global batch of 12 (4 shards of 3)"));
    check(true, 3, 4, 1, Err("hold 3 samples, too few for 4 shards"));
    check(false, 1, 9, 1, Ok((1, 0)));
    check(false, 0, 1, 1, Err("hold 0 samples"));
    check(false, 5, 0, 1, Err("0 shards of 1 samples make no batch"));
    check(false, 5, usize::MAX, 2, Err("is too large"));
    check(false, 1 << 40, 1, 1, Err("it is known for fewer than 214748364 of each"));
    check(false, 5, 1 << 62, 1, Err("it is known for fewer than"));
}

/// An order of the program's own, of 5 samples in global batches of 4 over 2 shards.
#[test]
fn an_order_of_ones_own() {
    let check = |own: &[usize], consumed: usize, drops: bool, expected: Result<&[&[usize]], &str>| {
        let order = TrainOrder::with_sampler(Sampler::Shuffle, 0, 5, &Sharding::one(0, 2, 2)).unwrap();
        let found = order.drop_last(drops && own.len() > 1).unwrap().own(2, own.to_vec(), consumed);
        let Ok(epoch) = found else {
            let expected = expected.map_err(|problem| format!("the program's own order of epoch 3 {problem}"));
            return assert_eq!(found.err().map(|error| error.to_string()), expected.err());
        };
        let batches: Vec<_> = (0..epoch.batches()).map(|batch| epoch.global_batch(batch)).collect();
        assert_eq!(batches, expected.unwrap(), "{own:?}");
        assert_eq!(epoch.remaining(), batches.concat().len());
        let local = |shard: usize| epoch.local(0, &Sharding::one(shard, 2, 2));
        assert_eq!([local(0), local(1)].concat(), batches.first().cloned().unwrap_or_default());
    };
    check(&[4, 0, 2], 0, false, Ok(&[&[4, 0, 2]]));
    check(&[3, 3, 3, 3, 3, 1, 3], 0, false, Ok(&[&[3, 3, 3, 3], &[3, 1, 3]]));
    check(&[3, 3, 3, 3, 3, 1, 3], 0, true, Ok(&[&[3, 3, 3, 3]]));
    check(&[0, 1, 2, 3, 4, 4], 3, false, Ok(&[&[3, 4, 4]]));
    check(&[0, 1, 2, 3], 4, false, Ok(&[]));
    check(&[0, 1, 2, 3], 5, false, Err("has 4 samples, but 5 of it are done: resume the run with the same order"));
    check(&[0, 5], 0, false, Err("has the sample 5, but there are 5, counted from 0"));
    check(&[], 0, false, Err("has no sample"));
    let few = "has 3 samples, fewer than one global batch of 4, and drop_last leaves that out";
    check(&[0, 1, 2], 0, true, Err(few));
}

proptest! {
    /// The same sampler written plainly, and a resumed epoch with other numbers of shards: the remaining entries in the
    /// order of the permutation, then the repeated ones.
    #[test]
    fn distributed_pieces(
        samples in 1usize..60,
        (shards, before) in (1usize..6, 1usize..6),
        batch in 1usize..5,
        cut in 0usize..6,
        (drop_last, drops_batch) in any::<(bool, bool)>(),
    ) {
        let sampler = Sampler::Distributed { drop_last };
        let order = |shards, batch| TrainOrder::with_sampler(sampler, 9, samples, &Sharding::one(0, shards, batch));
        let mut entries: Vec<usize> = { let all = order(1, 1).unwrap().epoch(2); (0..samples).map(|step| all.global_batch(step)[0]).collect() };
        let Ok(order) = order(shards, batch).and_then(|order| order.drop_last(drops_batch)) else { return Ok(()) };
        match drop_last {
            true => entries.truncate(samples / shards * shards),
            false => entries = entries.iter().copied().cycle().take(samples.div_ceil(shards) * shards).collect(),
        }
        let consumed = (cut * before).min(entries.len());
        let mut rest = &entries[consumed..];
        if drops_batch {
            rest = &rest[..rest.len() / (shards * batch) * shards * batch];
        }
        let epoch = order.rest_of_epoch(2, consumed);
        prop_assert_eq!(epoch.batches(), order.batches_after(consumed));
        prop_assert_eq!(epoch.batches(), rest.len().div_ceil(shards * batch));
        for shard in 0..shards {
            let theirs: Vec<usize> = rest[shard.min(rest.len())..].iter().step_by(shards).copied().collect();
            let ours = (0..epoch.batches()).map(|step| epoch.local(step, &Sharding::one(shard, shards, batch)));
            let ours: Vec<_> = ours.filter(|own| !own.is_empty()).collect();
            prop_assert!(ours.iter().map(Vec::as_slice).eq(theirs.chunks(batch)));
        }
    }

    /// Shards together give the global batch, in order, and share a last one that is not full evenly. Batches together give each
    /// sample once, or leave out those of such a batch.
    #[test]
    fn training_pieces(
        samples in 1usize..300,
        shards in 1usize..6,
        batch in 1usize..9,
        epoch in 0u64..5,
        drops: bool,
    ) {
        let global = shards * batch;
        prop_assume!(samples >= global || !drops);
        let order = TrainOrder::with_sampler(Sampler::Shuffle, 3, samples, &Sharding::one(0, shards, batch)).unwrap();
        let order = order.drop_last(drops).unwrap();
        let epoch = order.epoch(epoch);
        let mut seen = vec![0; samples];
        for step in 0..order.batches() {
            let pieces: Vec<Vec<usize>> =
                (0..shards).map(|shard| epoch.local(step, &Sharding::one(shard, shards, batch))).collect();
            prop_assert!(pieces.is_sorted_by(|one, next| (next.len()..=next.len() + 1).contains(&one.len())));
            prop_assert!(pieces[0].len() <= pieces[shards - 1].len() + 1);
            let together = pieces.concat();
            prop_assert_eq!(&together, &epoch.global_batch(step));
            let left = if drops { global } else { samples - step * global };
            prop_assert_eq!([together.len(), epoch.samples_of(step)], [left.min(global); 2]);
            together.iter().for_each(|&index| seen[index] += 1);
        }
        prop_assert_eq!(order.dropped(), if drops { samples % global } else { 0 });
        prop_assert_eq!(seen.iter().sum::<usize>() + order.dropped(), samples);
        prop_assert!(seen.iter().all(|&count| count <= 1));
        prop_assert!(epoch.global_batch(order.batches()).is_empty());
        prop_assert_eq!(epoch.samples_of(order.batches()), 0);
    }

    /// An epoch begun with one global batch and ended with another repeats no sample, and leaves out none but those of a last batch.
    #[test]
    fn a_rest_in_another_global_batch(
        samples in 1usize..300,
        before in 1usize..20,
        after in 1usize..20,
        cut in 0usize..9,
        drops: bool,
    ) {
        prop_assume!(samples >= before.max(after) || !drops);
        let [first, second] =
            [before, after].map(|global| TrainOrder::new(3, samples, global).unwrap().drop_last(drops).unwrap());
        let steps = cut.min(samples / before);
        let mut seen: Vec<usize> = (0..steps).flat_map(|step| first.epoch(4).global_batch(step)).collect();
        let rest = second.rest_of_epoch(4, steps * before);
        seen.extend((0..rest.batches()).flat_map(|step| rest.global_batch(step)));
        let most = if drops { after - 1 } else { 0 };
        prop_assert!(samples - seen.len() <= most);
        seen.sort_unstable();
        prop_assert!(seen.windows(2).all(|pair| pair[0] < pair[1]));
    }

    /// Evaluation sees every sample exactly once, and every shard has the same number of batches.
    #[test]
    fn evaluation_pieces(samples in 0usize..200, shards in 1usize..7, batch in 1usize..9) {
        let mut seen = vec![0; samples];
        let mut counts = Vec::new();
        for shard in 0..shards {
            let order = EvalOrder::new(samples, Sharding::one(shard, shards, batch)).unwrap();
            counts.push(order.batches());
            (0..order.batches()).flat_map(|step| order.indices(step)).for_each(|index| seen[index] += 1);
        }
        prop_assert!(seen.iter().all(|&count| count == 1));
        prop_assert!(counts.iter().all(|&count| count == counts[0]));
    }

    /// Some batches of an evaluation have evenly spaced samples, each once over all shards.
    #[test]
    fn limited_evaluation(samples in 0usize..200, shards in 1usize..7, batch in 1usize..9, batches in 1usize..9) {
        let mut seen = Vec::new();
        let mut taken = 0;
        for shard in 0..shards {
            let order = EvalOrder::new(samples, Sharding::one(shard, shards, batch)).unwrap().limited(batches);
            prop_assert!(order.batches() <= batches);
            taken = order.taken();
            seen.extend((0..order.batches()).flat_map(|step| order.indices(step)));
        }
        seen.sort_unstable();
        prop_assert_eq!(taken, samples.min(batches * batch * shards));
        prop_assert_eq!(seen, (0..taken).map(|place| place * samples / taken).collect::<Vec<_>>());
    }

    /// The first batches of an epoch, or of its rest, are those of the whole.
    #[test]
    fn first_batches(samples in 1usize..200, consumed in 0usize..200, batch in 1usize..9, batches in 0usize..9) {
        let whole = TrainOrder::new(3, samples, batch).unwrap().rest_of_epoch(5, consumed);
        let first = whole.clone().first_batches(batches);
        prop_assert_eq!(first.batches(), whole.batches().min(batches));
        for step in 0..first.batches() {
            prop_assert_eq!(first.global_batch(step), whole.global_batch(step));
        }
        prop_assert!(first.global_batch(first.batches()).is_empty());
    }
}
