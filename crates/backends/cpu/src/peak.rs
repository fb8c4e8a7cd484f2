//! Measures the limits of this machine: multiply-adds per second of each instruction-set level, bytes per second of
//! each level of memory, and the cost of a parallel section.
//!
//! Rates come from loops over independent accumulators that stay in registers (in tile registers at the AMX level),
//! bandwidths from streams over a working set. Each figure is the best of several rounds, because other programs on the
//! machine can only slow a round down.

use std::hint::black_box;
use std::time::{Duration, Instant};

use enmasse_tensor::AlignedBuffer;

use crate::affinity::Cores;
use crate::gemm;
use crate::inlined::inlined;
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::pool::{Pool, Threads};
use crate::region::Region;

/// The type of values that are multiplied and then added in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matmul {
    /// f32 values.
    F32,
    /// Pairs of bf16 values, by `vdpbf16ps`, `bfdot`, or AMX tiles.
    Bf16,
}

impl Matmul {
    /// The name of the value type: `f32` or `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Matmul::F32 => "f32",
            Matmul::Bf16 => "bf16",
        }
    }

    /// Whether `isa` has an instruction for the matmul on this machine. Without one, products of bf16 values use f32
    /// instructions.
    pub fn available(self, isa: Isa) -> bool {
        isa.available() && (self == Matmul::F32 || matches!(isa, Isa::Avx512Bf16 | Isa::Amx | Isa::NeonBf16))
    }
}

/// The peak rate of a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The level.
    pub isa: Isa,
    /// The type of matmul.
    pub matmul: Matmul,
    /// Billions of operations per second; a multiplication and its addition count as two.
    pub gflops: f64,
}

/// Peak memory bandwidth, in GB/s (10^9 bytes). Each stream counts once: a store that has to fetch its line first moves
/// more than is stated here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// Bytes of the working set, over all threads together.
    pub bytes: usize,
    /// Reading.
    pub read: f64,
    /// Writing.
    pub write: f64,
    /// `a = b + s * a` over two halves of the working set: two streams read, one written.
    pub update: f64,
}

/// The peaks of a number of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Peaks {
    /// Number of threads.
    pub threads: usize,
    /// Rates by level, weakest first.
    pub rates: Vec<Rate>,
    /// Bandwidths by working set: 512 KiB per thread, which fits second-level caches; 8 MiB in all; 256 MiB in all. The
    /// last two are larger with more than 4 or 16 threads.
    pub bandwidths: Vec<Bandwidth>,
    /// Seconds that an empty parallel section takes to start and end.
    pub section: f64,
}

/// How long to measure a figure.
const LONG: Duration = Duration::from_millis(200);
const QUICK: Duration = Duration::from_millis(60);
/// Approximate length of one round; a machine's clock settles within the first.
const ROUND: Duration = Duration::from_millis(4);

/// Bytes of the working sets of all threads: for second-level caches, for a third-level cache, for memory.
fn working_sets(threads: usize) -> [usize; 3] {
    [threads << 19, (8 << 20).max(threads << 21), (256 << 20).max(threads << 24)]
}

/// Minimum number of bytes that a round moves.
const ROUND_BYTES: usize = 8 << 20;

/// Measures everything for a number of threads. Takes about three seconds.
///
/// # Errors
/// The kernel refuses memory or threads.
pub fn measure_peaks(threads: usize) -> std::io::Result<Peaks> {
    let mut pool = pool(threads)?;
    let (threads, _pinned) = (pool.threads(), pool.pin_caller());
    let mut rates = Vec::new();
    for isa in Isa::ALL {
        for matmul in [Matmul::F32, Matmul::Bf16].into_iter().filter(|matmul| matmul.available(isa)) {
            rates.push(Rate { isa, matmul, gflops: rate(&mut pool, isa, matmul, LONG) });
        }
    }
    let bandwidths = bandwidths(&mut pool, &working_sets(threads), LONG)?;
    const SECTIONS: usize = 1000;
    let section = best_seconds(LONG, || (0..SECTIONS).for_each(|_| pool.run(threads, |_, _| {}))) / SECTIONS as f64;
    Ok(Peaks { threads, rates, bandwidths, section })
}

/// The peak rate of `isa` with a number of threads, in GFLOP/s; `None` if this machine has no instruction for the
/// matmul. Takes less than 0.1 s.
///
/// # Errors
/// The kernel refuses threads.
pub fn peak_gflops(isa: Isa, matmul: Matmul, threads: usize) -> std::io::Result<Option<f64>> {
    if !matmul.available(isa) {
        return Ok(None);
    }
    let mut pool = pool(threads)?;
    let _pinned = pool.pin_caller();
    Ok(Some(rate(&mut pool, isa, matmul, QUICK)))
}

/// The same for direct matmuls of f32, by products of their parts where a level has these: see [`gemm::multiply_split`].
pub(crate) fn direct_gflops(isa: Isa, threads: usize) -> std::io::Result<Option<f64>> {
    let whole = peak_gflops(isa, Matmul::F32, threads)?;
    let parts = if isa == Isa::Amx { peak_gflops(isa, Matmul::Bf16, threads)? } else { None };
    Ok(whole.map(|whole| parts.map_or(whole, |rate| whole.max(rate / gemm::SPLIT_PRODUCTS))))
}

/// The bandwidth of memory with a number of threads, in GB/s: that of the fastest stream. Takes about half a second.
pub(crate) fn memory_gigabytes(threads: usize) -> std::io::Result<f64> {
    let mut pool = pool(threads)?;
    let _pinned = pool.pin_caller();
    let [.., memory] = working_sets(pool.threads());
    let streams = bandwidths(&mut pool, &[memory], QUICK)?.into_iter().flat_map(|b| [b.read, b.write, b.update]);
    Ok(streams.fold(0.0, f64::max))
}

/// Pins each of several threads to its own core, if there are enough: two threads on one core would look like one core
/// at half speed.
fn pool(threads: usize) -> std::io::Result<Pool> {
    let cores = Cores::available().filter(|_| threads > 1).and_then(|cores| cores.part(0, threads));
    Pool::new(Threads { count: threads, cores })
}

/// The shortest time of `work`, in seconds, of at least three runs; more if they fit into `span`.
fn best_seconds(span: Duration, mut work: impl FnMut()) -> f64 {
    let began = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < 3 || began.elapsed() < span {
        let run = Instant::now();
        work();
        best = best.min(run.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

/// The rate in GFLOP/s. The matmul must be available.
fn rate(pool: &mut Pool, isa: Isa, matmul: Matmul, span: Duration) -> f64 {
    let threads = pool.threads();
    let mut rounds = 1 << 12;
    let mut run = |rounds: usize| {
        pool.run(threads, |_, _| {
            // SAFETY: the matmul is available, and therefore the level.
            unsafe {
                match (isa, matmul) {
                    #[cfg(target_arch = "x86_64")]
                    (Isa::Amx, Matmul::Bf16) => gemm::flood_registers(rounds),
                    _ => dispatch(isa, Flood { matmul, rounds }),
                }
            }
        });
    };
    // Find a number of rounds that takes long enough for the clock and the end of the section to be negligible.
    loop {
        let seconds = best_seconds(Duration::ZERO, || run(rounds));
        if seconds >= ROUND.as_secs_f64() / 2.0 || rounds >= 1 << 40 {
            break;
        }
        rounds *= 2;
    }
    let operations = (operations_per_round(isa, matmul) * rounds * threads) as f64;
    operations / best_seconds(span, || run(rounds)) / 1e9
}

/// Accumulators of a loop: enough to fill two pipes at the longest latency, few enough for the registers.
const ACCUMULATORS: usize = 12;
const MANY_ACCUMULATORS: usize = 24;

fn operations_per_round(isa: Isa, matmul: Matmul) -> usize {
    #[cfg(target_arch = "x86_64")]
    if (isa, matmul) == (Isa::Amx, Matmul::Bf16) {
        return gemm::FLOOD_OPERATIONS;
    }
    let lanes = gemm::panel_width(isa) / 2;
    let pairs = if matmul == Matmul::Bf16 { 2 } else { 1 };
    2 * pairs * lanes * accumulators(lanes)
}

/// Only the widest level, and those of 64-bit ARM, have registers for many accumulators.
const fn accumulators(lanes: usize) -> usize {
    if lanes >= 16 || cfg!(target_arch = "aarch64") { MANY_ACCUMULATORS } else { ACCUMULATORS }
}

/// Rounds of independent products.
struct Flood {
    matmul: Matmul,
    rounds: usize,
}

impl Kernel for Flood {
    const BF16: bool = true;

    inlined! {
        unsafe fn run<S: Simd>(self) {
            match (accumulators(S::LANES), self.matmul) {
                (MANY_ACCUMULATORS, Matmul::F32) => flood_f32::<S, MANY_ACCUMULATORS>(self.rounds),
                (MANY_ACCUMULATORS, Matmul::Bf16) => flood_bf16::<S, MANY_ACCUMULATORS>(self.rounds),
                (_, Matmul::F32) => flood_f32::<S, ACCUMULATORS>(self.rounds),
                (_, Matmul::Bf16) => flood_bf16::<S, ACCUMULATORS>(self.rounds),
            }
        }
    }
}

/// `x = x * 0.5 + 1` in each accumulator: stays near 2, so that huge or tiny values slow no level down.
#[inline(always)]
unsafe fn flood_f32<S: Simd, const N: usize>(rounds: usize) {
    // From memory, because the compiler splits the portable level's splat vectors and does not reassemble them.
    let (halves, ones) = (black_box([0.5; 16]), black_box([1.0; 16]));
    // SAFETY: no vector is longer than the arrays; the level is the caller's promise.
    unsafe {
        let (half, one) = (S::load(halves.as_ptr()), S::load(ones.as_ptr()));
        let mut sums = [half; N];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = S::mul_add(*sum, half, one);
            }
        }
        keep::<S, N>(sums);
    }
}

/// Adds products of ones to each accumulator.
#[inline(always)]
unsafe fn flood_bf16<S: Simd, const N: usize>(rounds: usize) {
    // Two bf16 ones per word.
    let ones = black_box([f32::from_bits(0x3f80_3f80); 16]);
    // SAFETY: as above.
    unsafe {
        let ones = S::load(ones.as_ptr());
        let mut sums = [ones; N];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = S::dot(ones, ones, *sum);
            }
        }
        keep::<S, N>(sums);
    }
}

/// Uses accumulators by way of their total: passing the array on would keep it in memory throughout the loop.
#[inline(always)]
unsafe fn keep<S: Simd, const N: usize>(sums: [S::V; N]) {
    // SAFETY: no vector is longer than the array; the level is the caller's promise.
    unsafe {
        let mut total = S::splat(0.0);
        for sum in sums {
            total = S::add(total, sum);
        }
        let mut out = [0.0; 16];
        S::store(out.as_mut_ptr(), total);
        black_box(out);
    }
}

/// The bandwidths of working sets, each measured for `span`.
fn bandwidths(pool: &mut Pool, sets: &[usize], span: Duration) -> std::io::Result<Vec<Bandwidth>> {
    let isa = Isa::detect();
    let threads = pool.threads();
    let mut buffer = AlignedBuffer::zeroed(sets.iter().copied().max().unwrap_or(0))?;
    // Untouched zeroed memory is one page shared by all.
    buffer.as_f32_mut().fill(1.0);
    let all = Region::of_mut(buffer.as_f32_mut());
    let measure = |pool: &mut Pool, bytes: usize, way: Way| {
        let part = bytes / size_of::<f32>() / threads / STRIP * STRIP;
        let repeats = (ROUND_BYTES / bytes).max(1);
        let seconds = best_seconds(span, || {
            pool.run(threads, |task, _| {
                let stream = Stream { way, region: all.part(task * part, part) };
                for _ in 0..repeats {
                    // SAFETY: the best level is available; parts of tasks are disjoint, and lie in the buffer.
                    unsafe { dispatch(isa, stream) };
                }
            });
        });
        let moved = stream_values(way, part) * size_of::<f32>() * threads * repeats;
        moved as f64 / seconds / 1e9
    };
    let measured = sets.iter().map(|&bytes| {
        let [read, write, update] = [Way::Read, Way::Write, Way::Update].map(|way| measure(pool, bytes, way));
        Bandwidth { bytes, read, write, update }
    });
    Ok(measured.collect())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
    Update,
}

/// Values between two steps of a stream: eight of the widest vectors.
const STRIP: usize = 128;
/// Half a page. At equal offsets in two pages, a load would wait for an earlier store, whose address the processor
/// cannot tell from the load's.
const STAGGER: usize = 512;

/// Elements of each half of a region in [`Way::Update`].
fn half(len: usize) -> usize {
    (len.saturating_sub(STAGGER) / 2) / STRIP * STRIP
}

/// Values transferred to and from memory in one pass over a region.
fn stream_values(way: Way, len: usize) -> usize {
    if way == Way::Update { 3 * half(len) } else { len }
}

/// One pass over a region of whole strips.
#[derive(Clone, Copy)]
struct Stream {
    way: Way,
    region: Region<f32>,
}

impl Kernel for Stream {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.region.len();
        // SAFETY: the region is valid, and only the caller uses it; `at` names the values of each access.
        unsafe {
            let factor = S::splat(black_box(0.5));
            match self.way {
                Way::Read => {
                    let mut sums = [factor; 8];
                    for start in (0..len).step_by(8 * S::LANES) {
                        for (i, sum) in sums.iter_mut().enumerate() {
                            *sum = S::add(*sum, S::load(self.region.at(start + i * S::LANES, S::LANES)));
                        }
                    }
                    keep::<S, 8>(sums);
                }
                Way::Write => {
                    for start in (0..len).step_by(8 * S::LANES) {
                        for i in 0..8 {
                            S::store(self.region.at(start + i * S::LANES, S::LANES), factor);
                        }
                    }
                }
                Way::Update => {
                    let half = half(len);
                    let a = self.region.part(0, half);
                    let b = self.region.part(half + STAGGER, half);
                    for start in (0..half).step_by(8 * S::LANES) {
                        for i in 0..8 {
                            let at = start + i * S::LANES;
                            let (a, b) = (a.at(at, S::LANES), b.at(at, S::LANES));
                            S::store(a, S::mul_add(factor, S::load(a), S::load(b)));
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does not test speed, only that every expected figure exists and is a number.
    #[test]
    fn every_figure_is_there() {
        let peaks = measure_peaks(2).unwrap();
        assert_eq!(peaks.threads, 2);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let f32_rates = peaks.rates.iter().filter(|rate| rate.isa == isa && rate.matmul == Matmul::F32);
            assert_eq!(f32_rates.count(), 1, "{isa}");
        }
        let figures = peaks.rates.iter().map(|rate| rate.gflops);
        let figures = figures.chain(peaks.bandwidths.iter().flat_map(|b| [b.read, b.write, b.update]));
        assert!(figures.chain([peaks.section]).all(|figure| figure.is_finite() && figure > 0.0), "{peaks:?}");
        let bytes: Vec<_> = peaks.bandwidths.iter().map(|bandwidth| bandwidth.bytes).collect();
        assert_eq!(bytes, [1 << 20, 8 << 20, 256 << 20]);
        for isa in Isa::ALL {
            for matmul in [Matmul::F32, Matmul::Bf16] {
                let quick = peak_gflops(isa, matmul, 1).unwrap();
                assert_eq!(quick.is_some_and(|gflops| gflops > 0.0), matmul.available(isa), "{isa} {matmul:?}");
            }
        }
    }

    #[test]
    fn streams_touch_the_values_that_they_count() {
        let run = |way| {
            let mut values: Vec<f32> = vec![1.0; 4 * STRIP + STAGGER];
            let stream = Stream { way, region: Region::of_mut(&mut values) };
            // SAFETY: the best level is available, and the region is the vector.
            unsafe { dispatch(Isa::detect(), stream) };
            values
        };
        assert!(run(Way::Read).iter().all(|&x| x == 1.0));
        assert!(run(Way::Write).iter().all(|&x| x == 0.5));
        let updated = run(Way::Update);
        assert!(updated[..2 * STRIP].iter().all(|&x| x == 1.5) && updated[2 * STRIP..].iter().all(|&x| x == 1.0));
        assert_eq!(stream_values(Way::Update, 4 * STRIP + STAGGER), 6 * STRIP);
    }
}
