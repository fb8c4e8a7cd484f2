//! What this machine can do at most: multiply-adds per second of each instruction-set level, bytes per second of each
//! level of memory, and the cost of a parallel section.
//!
//! Rates come from loops over independent accumulators that stay in registers (in those of tiles at the level of AMX),
//! bandwidths from streams over a working set. Each figure is the best of several rounds, because whatever else runs on
//! the machine only ever takes away.

use std::hint::black_box;
use std::time::{Duration, Instant};

use enmasse_tensor::AlignedBuffer;

use crate::affinity::Cores;
#[cfg(target_arch = "x86_64")]
use crate::gemm;
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::pool::{Pool, Threads};
use crate::region::Region;

/// What is multiplied and added up in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// f32 values.
    F32,
    /// Pairs of bf16 values, by `vdpbf16ps`, or by the tiles of AMX.
    Bf16,
}

impl Product {
    /// The name of the values: `f32` or `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Product::F32 => "f32",
            Product::Bf16 => "bf16",
        }
    }

    /// Whether `isa` has an instruction for it, on this machine. Without one, products of bf16 values take those of f32.
    pub fn available(self, isa: Isa) -> bool {
        isa.available() && (self == Product::F32 || matches!(isa, Isa::Avx512Bf16 | Isa::Amx))
    }
}

/// The most that a level computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The level.
    pub isa: Isa,
    /// What is multiplied.
    pub product: Product,
    /// Billions of operations per second; a multiplication with its addition counts as two.
    pub gflops: f64,
}

/// The most that memory moves, in GB/s (10^9 bytes). Each stream counts once: a store that has to fetch its line first
/// moves more than is said here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// Bytes of the working set, of all threads together.
    pub bytes: usize,
    /// Reading.
    pub read: f64,
    /// Writing.
    pub write: f64,
    /// `a = b + s * a` over two halves of the working set: two streams read, one written.
    pub update: f64,
}

/// What a number of threads reaches.
#[derive(Clone, Debug, PartialEq)]
pub struct Peaks {
    /// The threads.
    pub threads: usize,
    /// By level, weakest first.
    pub rates: Vec<Rate>,
    /// By working set: 512 KiB for each thread, as second-level caches hold; 8 MiB in all; 256 MiB in all. The last two
    /// are larger where there are more than 4 or 16 threads.
    pub bandwidths: Vec<Bandwidth>,
    /// Seconds that a parallel section takes which does nothing: its start and its end.
    pub section: f64,
}

/// How long a figure is measured for.
const LONG: Duration = Duration::from_millis(200);
const QUICK: Duration = Duration::from_millis(60);
/// Of one round, about; a machine's clock settles within the first.
const ROUND: Duration = Duration::from_millis(4);

/// Bytes of the working sets of all threads: of second-level caches, of a third-level cache, of memory.
fn working_sets(threads: usize) -> [usize; 3] {
    [threads << 19, (8 << 20).max(threads << 21), (256 << 20).max(threads << 24)]
}

/// A round moves at least so many bytes.
const ROUND_BYTES: usize = 8 << 20;

/// Measures everything for a number of threads. Takes about three seconds. The error is the kernel's, which gave no
/// memory or no threads.
pub fn measure_peaks(threads: usize) -> std::io::Result<Peaks> {
    let mut pool = pool(threads)?;
    let (threads, _pinned) = (pool.threads(), pool.pin_caller());
    let mut rates = Vec::new();
    for isa in Isa::ALL {
        for product in [Product::F32, Product::Bf16].into_iter().filter(|product| product.available(isa)) {
            rates.push(Rate { isa, product, gflops: rate(&mut pool, isa, product, LONG) });
        }
    }
    let bandwidths = bandwidths(&mut pool)?;
    const SECTIONS: usize = 1000;
    let section = best_seconds(LONG, || (0..SECTIONS).for_each(|_| pool.run(threads, |_, _| {}))) / SECTIONS as f64;
    Ok(Peaks { threads, rates, bandwidths, section })
}

/// The most that `isa` computes in a number of threads, in GFLOP/s; `None` where this machine has no instruction for
/// it. Takes less than 0.1 s.
pub fn peak_gflops(isa: Isa, product: Product, threads: usize) -> std::io::Result<Option<f64>> {
    if !product.available(isa) {
        return Ok(None);
    }
    let mut pool = pool(threads)?;
    let _pinned = pool.pin_caller();
    Ok(Some(rate(&mut pool, isa, product, QUICK)))
}

/// Each of several threads on its core, while there are cores: two on one would pass for one that is half as fast.
fn pool(threads: usize) -> std::io::Result<Pool> {
    let cores = Cores::available().filter(|_| threads > 1).and_then(|cores| cores.part(0, threads));
    Pool::new(Threads { count: threads, cores })
}

/// The shortest time of `work`, in seconds, among as many runs as fit into `span`; at least three.
fn best_seconds(span: Duration, mut work: impl FnMut()) -> f64 {
    let (began, mut best, mut runs) = (Instant::now(), f64::INFINITY, 0);
    while runs < 3 || began.elapsed() < span {
        let run = Instant::now();
        work();
        best = best.min(run.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

/// The product must be available.
fn rate(pool: &mut Pool, isa: Isa, product: Product, span: Duration) -> f64 {
    let threads = pool.threads();
    let mut rounds = 1 << 12;
    let mut run = |rounds: usize| {
        pool.run(threads, |_, _| {
            // SAFETY: the product is available, so the level is.
            unsafe {
                match (isa, product) {
                    #[cfg(target_arch = "x86_64")]
                    (Isa::Amx, Product::Bf16) => gemm::flood_registers(rounds),
                    _ => dispatch(isa, Flood { product, rounds }),
                }
            }
        });
    };
    // How many rounds take long enough that the clock and the section's end do not count.
    loop {
        let seconds = best_seconds(Duration::ZERO, || run(rounds));
        if seconds >= ROUND.as_secs_f64() / 2.0 || rounds >= 1 << 40 {
            break;
        }
        rounds *= 2;
    }
    let operations = (operations_per_round(isa, product) * rounds * threads) as f64;
    operations / best_seconds(span, || run(rounds)) / 1e9
}

/// Accumulators of a loop: enough to fill two pipes of the longest latency there is, few enough for the registers.
const ACCUMULATORS: usize = 12;
const MANY_ACCUMULATORS: usize = 24;

fn operations_per_round(isa: Isa, product: Product) -> usize {
    #[cfg(target_arch = "x86_64")]
    if (isa, product) == (Isa::Amx, Product::Bf16) {
        return gemm::FLOOD_OPERATIONS;
    }
    struct Lanes<'a>(&'a mut usize);
    impl Kernel for Lanes<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            *self.0 = S::LANES;
        }
    }
    let mut lanes = 0;
    // SAFETY: the caller has asked whether the level is there; nothing is touched but the number.
    unsafe { dispatch(isa, Lanes(&mut lanes)) };
    let pairs = if product == Product::Bf16 { 2 } else { 1 };
    2 * pairs * lanes * accumulators(lanes)
}

/// Only the widest level has registers for many.
const fn accumulators(lanes: usize) -> usize {
    if lanes >= 16 { MANY_ACCUMULATORS } else { ACCUMULATORS }
}

/// Rounds of independent products.
struct Flood {
    product: Product,
    rounds: usize,
}

impl Kernel for Flood {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match (accumulators(S::LANES), self.product) {
                (MANY_ACCUMULATORS, Product::F32) => flood_f32::<S, MANY_ACCUMULATORS>(self.rounds),
                (MANY_ACCUMULATORS, Product::Bf16) => flood_bf16::<S, MANY_ACCUMULATORS>(self.rounds),
                (_, Product::F32) => flood_f32::<S, ACCUMULATORS>(self.rounds),
                (_, Product::Bf16) => flood_bf16::<S, ACCUMULATORS>(self.rounds),
            }
        }
    }
}

/// `x = x * 0.5 + 1` in each accumulator: stays near 2, so that no level slows down for what is huge or tiny.
#[inline(always)]
unsafe fn flood_f32<S: Simd, const N: usize>(rounds: usize) {
    // From memory, because the compiler takes the portable level's splat vectors apart and then never puts them together.
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

/// Makes use of accumulators by their total: passing the array on would keep it in memory all along.
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

fn bandwidths(pool: &mut Pool) -> std::io::Result<Vec<Bandwidth>> {
    let (isa, threads) = (Isa::detect(), pool.threads());
    let sets = working_sets(threads);
    let mut buffer = AlignedBuffer::zeroed(sets[2])?;
    // Zeroed memory is one page that all share until it is written.
    buffer.as_f32_mut().fill(1.0);
    let all = Region::of_mut(buffer.as_f32_mut());
    let measure = |pool: &mut Pool, bytes: usize, way: Way| {
        let part = bytes / size_of::<f32>() / threads / STRIP * STRIP;
        let repeats = (ROUND_BYTES / bytes).max(1);
        let seconds = best_seconds(LONG, || {
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
    let mut measured = Vec::new();
    for bytes in sets {
        measured.push(Bandwidth {
            bytes,
            read: measure(pool, bytes, Way::Read),
            write: measure(pool, bytes, Way::Write),
            update: measure(pool, bytes, Way::Update),
        });
    }
    Ok(measured)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
    Update,
}

/// Values between two steps of a stream: eight of the widest vectors.
const STRIP: usize = 128;
/// Half a page: at the same place of two pages a load waits for the store that it cannot tell from its own.
const STAGGER: usize = 512;

/// Elements of each half of a region that is updated.
fn half(len: usize) -> usize {
    (len.saturating_sub(STAGGER) / 2) / STRIP * STRIP
}

/// Values that go over the wires in one pass over a region.
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
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.region.len();
        // SAFETY: the region is valid and the caller's alone; `at` names the values of each access.
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
                    let (a, b) = (self.region.part(0, half), self.region.part(half + STAGGER, half));
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

    /// Says nothing of speed: only that every figure there should be is there, and is a number.
    #[test]
    fn every_figure_is_there() {
        let peaks = measure_peaks(2).unwrap();
        assert_eq!(peaks.threads, 2);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let f32_rates = peaks.rates.iter().filter(|rate| rate.isa == isa && rate.product == Product::F32);
            assert_eq!(f32_rates.count(), 1, "{isa}");
        }
        let figures = peaks.rates.iter().map(|rate| rate.gflops);
        let figures = figures.chain(peaks.bandwidths.iter().flat_map(|b| [b.read, b.write, b.update]));
        assert!(figures.chain([peaks.section]).all(|figure| figure.is_finite() && figure > 0.0), "{peaks:?}");
        let bytes: Vec<_> = peaks.bandwidths.iter().map(|bandwidth| bandwidth.bytes).collect();
        assert_eq!(bytes, [1 << 20, 8 << 20, 256 << 20]);
        for isa in Isa::ALL {
            for product in [Product::F32, Product::Bf16] {
                let quick = peak_gflops(isa, product, 1).unwrap();
                assert_eq!(quick.is_some_and(|gflops| gflops > 0.0), product.available(isa), "{isa} {product:?}");
            }
        }
    }

    #[test]
    fn streams_touch_what_they_count() {
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
