//! The fastest of several engines by a measure of one run, in bounded time.

use std::time::Duration;

/// An engine is out if its first timed run takes this many times as long as the fastest one's.
const HOPELESS: u32 = 2;
/// Runs of each engine that is left, at least, unless they take [`MAX_TIME`] in all.
const MIN_ROUNDS: usize = 5;
/// Runs of each engine that is left, at most.
const MAX_ROUNDS: usize = 50;
/// Enough time for all runs.
const ENOUGH: Duration = Duration::from_millis(50);
/// The most time for all runs, but for the last round.
const MAX_TIME: Duration = Duration::from_secs(1);
/// The default engine stays unless another takes less than this fraction of its time, so that runs on the same GPU choose alike.
const CLEARLY: f64 = 0.95;

/// The fastest of `engines`, by the median of its runs. The first engine is the default one. `measure` runs the engine with the given
/// number once; one that fails is out.
///
/// # Errors
/// The first failure, if every engine fails.
pub(super) fn fastest<E>(
    engines: usize,
    measure: &mut dyn FnMut(usize) -> Result<Duration, E>,
) -> Result<Option<usize>, E> {
    let mut left = Vec::new();
    let mut failure = None;
    for engine in 0..engines {
        // The first run loads the engine's kernels.
        match measure(engine).and_then(|_| measure(engine)) {
            Ok(time) => left.push((engine, vec![time])),
            Err(error) => {
                failure.get_or_insert(error);
            }
        }
    }
    let Some(best) = left.iter().map(|(_, times)| times[0]).min() else { return failure.map_or(Ok(None), Err) };
    left.retain(|(_, times)| times[0] <= best * HOPELESS);
    let mut spent = Duration::ZERO;
    let rounds = if left.len() > 1 { MAX_ROUNDS } else { 0 };
    for round in 0..rounds {
        if spent >= MAX_TIME || (round >= MIN_ROUNDS && spent >= ENOUGH) {
            break;
        }
        // In turn, so that other work on the GPU affects all engines.
        left.retain_mut(|(engine, times)| {
            let time = measure(*engine).ok();
            times.extend(time);
            spent += time.unwrap_or_default();
            time.is_some()
        });
    }
    let weighed = left.into_iter().map(|(engine, mut times)| {
        times.sort_unstable();
        let weight = if engine == 0 { CLEARLY } else { 1.0 };
        (engine, weight * times[times.len() / 2].as_secs_f64())
    });
    Ok(weighed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(engine, _)| engine))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures by a function from engine and run to microseconds. The choice, and the runs of each engine.
    fn contest(engines: usize, time: impl Fn(usize, usize) -> Option<u64>) -> (Result<Option<usize>, ()>, Vec<usize>) {
        let mut runs = vec![0; engines];
        let mut measure = |engine: usize| {
            runs[engine] += 1;
            time(engine, runs[engine] - 1).map(Duration::from_micros).ok_or(())
        };
        (fastest(engines, &mut measure), runs)
    }

    #[test]
    fn the_usual_engine_yields_to_a_clearly_faster_one() {
        let check = |times: &[u64], expected: usize| {
            assert_eq!(contest(times.len(), |engine, _| Some(times[engine])).0, Ok(Some(expected)), "{times:?}");
        };
        check(&[100], 0);
        check(&[100, 96], 0);
        check(&[100, 94], 1);
        check(&[100, 94, 90], 2);
        check(&[96, 100], 0);
        check(&[300, 100, 100], 1);
        assert_eq!(contest(0, |_, _| None), (Ok(None), vec![]));
    }

    /// Neither the first run, which loads kernels, nor a disturbed one decides.
    #[test]
    fn medians_decide() {
        let disturbed = |engine: usize, run: usize| match (engine, run) {
            (0, 0) => Some(1),
            (1, 0) => Some(1_000_000),
            (1, 3) => Some(50_000),
            (0, _) => Some(100),
            _ => Some(80),
        };
        assert_eq!(contest(2, disturbed).0, Ok(Some(1)));
    }

    #[test]
    fn time_is_bounded() {
        let runs = |times: &[u64]| contest(times.len(), |engine, _| Some(times[engine])).1;
        // One engine needs no comparison, and a slow one is out after its first run.
        assert_eq!(runs(&[10]), [2]);
        assert_eq!(runs(&[10, 21]), [2, 2]);
        assert_eq!(runs(&[10, 20, 21]), [2 + MAX_ROUNDS, 2 + MAX_ROUNDS, 2]);
        // 5 rounds of 20 ms are more than enough time.
        assert_eq!(runs(&[10_000, 10_000]), [2 + MIN_ROUNDS; 2]);
        // A round that takes seconds is the only one.
        assert_eq!(runs(&[3_000_000, 3_000_000]), [3, 3]);
    }

    #[test]
    fn an_engine_that_fails_is_out() {
        let fails = |failing: usize, at: usize| move |engine, run| (engine != failing || run < at).then_some(10);
        assert_eq!(contest(2, fails(0, 0)).0, Ok(Some(1)));
        assert_eq!(contest(2, fails(0, 4)).0, Ok(Some(1)));
        assert_eq!(contest(2, fails(1, 1)).0, Ok(Some(0)));
        assert_eq!(contest(2, |_, _| None), (Err(()), vec![1, 1]));
    }
}
