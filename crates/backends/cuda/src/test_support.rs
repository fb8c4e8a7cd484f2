//! Runs kernels on vectors, and checks what they do to memory beside their results.

use std::collections::BTreeMap;
use std::sync::Arc;

use enmasse_emulation::{Kernels, Order};
use enmasse_graph::Arena;
use enmasse_tensor::{Bf16, DType, F16, RandomStream};

use crate::driver::{Buffer, Context, Found, Functions, Stream};
use crate::kernels::step::{self, StepValues};
use crate::libraries::{Libraries, Library};
use crate::work::{Argument, Constants, Kernel, Memory, Place, Span};

/// The emulated GPU 0 with a stream, under the driver's ABI.
pub(crate) struct EmulatedGpu {
    pub libraries: Libraries,
    pub context: Arc<Context>,
    pub stream: Stream,
}

impl EmulatedGpu {
    /// The emulated libraries. `None` without a compiler: the test is then in the table.
    pub(crate) fn libraries() -> Option<Libraries> {
        Some(Libraries::in_folders(&[enmasse_emulation::folder()?.to_owned()]))
    }

    pub(crate) fn driver(libraries: &Libraries) -> Arc<Functions> {
        Arc::new(Functions::load(libraries.load(Library::Driver).unwrap()).unwrap())
    }

    /// Its context is current on this thread. `None` without a compiler.
    pub(crate) fn open() -> Option<Self> {
        let libraries = Self::libraries()?;
        let context = Context::open(Found::look(Self::driver(&libraries), 0).unwrap()).unwrap();
        context.enter().unwrap();
        let stream = Stream::new(&context).unwrap();
        Some(EmulatedGpu { libraries, context, stream })
    }

    /// Memory of the GPU with these bytes.
    pub(crate) fn buffer(&self, bytes: &[u8]) -> Buffer {
        let buffer = Buffer::new(&self.context, "operand", bytes.len().max(16)).unwrap();
        buffer.write(&self.stream, 0, bytes).unwrap();
        buffer
    }
}

/// Plain values, of which any bytes are one.
///
/// # Safety
/// The type has no padding and no invalid values.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($t:ty)*) => {
        // SAFETY: numbers.
        $(unsafe impl Plain for $t {})*
    };
}

plain!(u8 u16 u32 i32 u64 i64 f32 Bf16 F16);

/// An element type of activations.
pub(crate) trait Element: Plain + PartialEq + std::fmt::Debug {
    const DTYPE: DType;
    /// The distance from 1 to the next value, halved: the error of rounding.
    const UNIT: f64;
    /// The error of rounding below the normal values.
    const MIN: f64 = 0.0;
    fn of(value: f64) -> Self;
    fn get(self) -> f64;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    const UNIT: f64 = 1.0 / (1 << 24) as f64;
    fn of(value: f64) -> Self {
        value as f32
    }
    fn get(self) -> f64 {
        self.into()
    }
}

impl Element for Bf16 {
    const DTYPE: DType = DType::Bf16;
    const UNIT: f64 = 1.0 / 256.0;
    fn of(value: f64) -> Self {
        Bf16::from_f32(value as f32)
    }
    fn get(self) -> f64 {
        self.to_f32().into()
    }
}

impl Element for F16 {
    const DTYPE: DType = DType::F16;
    const UNIT: f64 = 1.0 / 2048.0;
    const MIN: f64 = 1.0 / (1 << 25) as f64;
    fn of(value: f64) -> Self {
        F16::from_f32(value as f32)
    }
    fn get(self) -> f64 {
        self.to_f32().into()
    }
}

/// The bytes of values as a type.
pub(crate) fn encode(values: &[f64], dtype: DType) -> Vec<u8> {
    let bytes = |&value: &f64| match dtype {
        DType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DType::Bf16 => Bf16::of(value).to_bits().to_ne_bytes().to_vec(),
        DType::F16 => F16::of(value).to_bits().to_ne_bytes().to_vec(),
        other => panic!("no activations are {other}"),
    };
    values.iter().flat_map(bytes).collect()
}

/// The values that bytes hold as a type.
pub(crate) fn decode(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let halves = bytes.as_chunks().0.iter().map(|pair| u16::from_ne_bytes(*pair));
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|word| f32::from_ne_bytes(*word).into()).collect(),
        DType::Bf16 => halves.map(|bits| Bf16::from_bits(bits).get()).collect(),
        DType::F16 => halves.map(|bits| F16::from_bits(bits).get()).collect(),
        other => panic!("no activations are {other}"),
    }
}

/// The error of one rounding, relative to the value.
pub(crate) fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f32::UNIT,
        DType::Bf16 => Bf16::UNIT,
        DType::F16 => F16::UNIT,
        other => panic!("no activations are {other}"),
    }
}

/// `n` values in -scale..scale, a function of `key`.
pub(crate) fn noise<E: Element>(key: u64, n: usize, scale: f64) -> Vec<E> {
    let mut stream = RandomStream::new(0, "test", 0, key);
    (0..n).map(|_| E::of(stream.uniform(-scale, scale))).collect()
}

/// Rows and channels: fewer and more than lanes, packets that fill a thread, a block and a slab, and such that do not.
pub(crate) const ROWS: [(usize, usize); 10] =
    [(2, 1), (3, 8), (1037, 3), (1100, 37), (49, 40), (130, 64), (301, 72), (700, 24), (9, 2048), (5, 521)];

/// The values as the reference takes them.
pub(crate) fn wide<E: Element>(values: &[E]) -> Vec<f64> {
    values.iter().map(|&value| value.get()).collect()
}

/// Asserts that every value is the expected one with an error of `tolerance` relative to the largest, rounded once to the
/// element type. NaN is expected as NaN.
#[track_caller]
pub(crate) fn assert_rounded<E: Element>(what: &str, found: &[E], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let finite = expected.iter().filter(|value| value.is_finite());
    let error = tolerance * finite.fold(1e-30f64, |most, value| most.max(value.abs()));
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let near = (a.get() - b).abs() <= error + (E::UNIT * b.abs()).max(E::MIN);
        assert!(near || a.get() == *b || (a.get().is_nan() && b.is_nan()), "{what} [{i}]: {a:?} instead of {b}");
    }
}

/// The bytes of each memory.
type Contents = BTreeMap<Memory, Vec<u128>>;

/// Bytes of scratch that the kernels of one instruction take.
fn scratch(kernels: &[Kernel]) -> usize {
    let end = |argument: &Argument| match argument {
        Argument::Write(Span { place: Place { memory: Memory::Scratch, offset }, bytes }) => Some(offset + bytes),
        _ => None,
    };
    kernels.iter().flat_map(|kernel| &kernel.arguments).filter_map(end).max().unwrap_or(0)
}

/// Memory for the operands of kernels. Between them lie bytes of ones, which read as NaN.
pub(crate) struct Bench {
    kernels: &'static Kernels,
    memory: Contents,
}

/// Bytes between operands.
const GAP: usize = 64;

/// Slabs of the largest reduction.
const COUNTERS: usize = 128;

impl Bench {
    /// `None` where kernels cannot be compiled.
    pub(crate) fn new() -> Option<Self> {
        let mut bench = Bench { kernels: Kernels::get()?, memory: BTreeMap::new() };
        bench.put_in(Memory::Counters, &[0u32; COUNTERS]);
        bench.put_in(Memory::Failure, &[0u32; 2]);
        Some(bench)
    }

    /// The numbers of a step, with the requests to stop and to save.
    pub(crate) fn step(&mut self, optimizer_step: u64, learning_rate: f32, requests: [bool; 2]) {
        let [stop, save] = requests;
        self.set_step(&StepValues { optimizer_step, learning_rate, stop, save, ..StepValues::default() });
    }

    /// The first step of an epoch.
    pub(crate) fn epoch(&mut self, epoch: u64) {
        self.set_step(&StepValues { epoch, optimizer_step: 1, ..StepValues::default() });
    }

    /// A step with or without a meeting of weights and slow weights.
    pub(crate) fn lookahead(&mut self, lookahead: Option<f32>) {
        self.set_step(&StepValues { optimizer_step: 1, lookahead, ..StepValues::default() });
    }

    fn set_step(&mut self, values: &StepValues) {
        self.replace(Memory::Step, &[0u8; step::BYTES]);
        self.run(&step::set_step(values));
    }

    /// The record of a loss that was not finite.
    pub(crate) fn fail(&mut self) {
        self.replace(Memory::Failure, &[1, f32::NAN.to_bits()]);
    }

    /// The constants of all kernels that run from now on.
    pub(crate) fn constants(&mut self, constants: &Constants) {
        self.replace(Memory::Constants, constants.bytes());
    }

    fn replace<T: Plain>(&mut self, memory: Memory, values: &[T]) {
        self.memory.remove(&memory);
        self.put_in(memory, values);
    }

    /// A copy of values, among the activations.
    pub(crate) fn put<T: Plain>(&mut self, values: &[T]) -> Span {
        self.put_in(Memory::Arena(Arena::Activations), values)
    }

    /// A copy of values in a certain memory, after those that are already there.
    pub(crate) fn put_in<T: Plain>(&mut self, memory: Memory, values: &[T]) -> Span {
        let region = self.memory.entry(memory).or_default();
        let bytes = size_of_val(values);
        let place = Place { memory, offset: size_of_val(&region[..]) };
        region.resize(region.len() + (bytes + GAP).div_ceil(16), u128::MAX);
        // SAFETY: the region has just grown by at least these bytes.
        unsafe {
            let to = region.as_mut_ptr().cast::<u8>().add(place.offset);
            to.copy_from_nonoverlapping(values.as_ptr().cast(), bytes);
        }
        Span { place, bytes }
    }

    /// Room for `len` results.
    pub(crate) fn room<T: Plain>(&mut self, len: usize) -> Span {
        self.put(&vec![0xffu8; len * size_of::<T>()])
    }

    /// Replaces values.
    pub(crate) fn set<T: Plain>(&mut self, span: Span, values: &[T]) {
        assert_eq!(size_of_val(values), span.bytes);
        // SAFETY: the bytes of the values.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), span.bytes) };
        bytes_mut(&mut self.memory, span).copy_from_slice(bytes);
    }

    /// The values at a place.
    pub(crate) fn get<T: Plain>(&self, span: Span) -> Vec<T> {
        let bytes = &bytes(&self.memory[&span.place.memory])[span.place.offset..][..span.bytes];
        assert_eq!(bytes.as_ptr().align_offset(align_of::<T>()), 0);
        // SAFETY: aligned bytes of that number, of which any are a value.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<T>(), span.bytes / size_of::<T>()) }.to_vec()
    }

    /// Runs the kernels of an instruction in order, as [`Bench::run`] does. Their scratch is memory in which no operand lies.
    #[track_caller]
    pub(crate) fn run_all(&mut self, kernels: &[Kernel]) {
        self.memory.insert(Memory::Scratch, vec![u128::MAX; (scratch(kernels) + GAP).div_ceil(16)]);
        kernels.iter().for_each(|kernel| self.run(kernel));
    }

    /// Runs a kernel twice, over different bytes in all memory that it does not say that it reads, and with its threads in
    /// either order.
    ///
    /// # Panics
    /// If it fails, or changes anything else than it says, or leaves some of that unwritten, or depends on anything else.
    #[track_caller]
    pub(crate) fn run(&mut self, kernel: &Kernel) {
        let runs = [(0xff, Order::Backwards), (0x5a, Order::Forwards)];
        let [first, second] = runs.map(|(fill, order)| self.run_over(kernel, fill, order));
        for (memory, region) in &second {
            let differs = || first[memory].iter().zip(region).position(|(a, b)| a != b).map(|at| at * 16);
            let name = &kernel.name;
            assert!(
                first[memory] == *region,
                "{name}: {memory}+{:?} depends on what was there, or on the order",
                differs()
            );
        }
        self.memory = second;
        let counters = bytes(&self.memory[&Memory::Counters]);
        assert!(
            counters[..COUNTERS * size_of::<u32>()].iter().all(|byte| *byte == 0),
            "{} leaves a count",
            kernel.name
        );
    }

    /// The memory after a kernel that found `fill` in each byte that it does not say that it reads.
    #[track_caller]
    fn run_over(&self, kernel: &Kernel, fill: u8, order: Order) -> Contents {
        let mut found = self.memory.clone();
        found.values_mut().for_each(|region| region.fill(u128::from_ne_bytes([fill; 16])));
        kernel.arguments.iter().filter_map(Argument::read).for_each(|span| copy(&self.memory, &mut found, span));
        let mut left = found.clone();
        let addresses: BTreeMap<Memory, u64> =
            left.iter_mut().map(|(&memory, region)| (memory, region.as_mut_ptr() as u64)).collect();
        let arguments = kernel.pack(&|place| addresses[&place.memory] + place.offset as u64);
        // SAFETY: the operands lie in this memory; the test is wrong if they do not.
        let result = unsafe { self.kernels.run(&kernel.name, kernel.grid, kernel.block, &arguments, order) };
        result.unwrap_or_else(|message| panic!("{message}"));
        let mut after = self.memory.clone();
        for span in kernel.arguments.iter().filter_map(Argument::written) {
            copy(&left, &mut after, span);
            copy(&found, &mut left, span);
        }
        assert!(left == found, "{} changes more than it says", kernel.name);
        after
    }
}

/// Copies a span from one memory to the other.
fn copy(from: &Contents, to: &mut Contents, span: Span) {
    let bytes = &bytes(&from[&span.place.memory])[span.place.offset..][..span.bytes];
    bytes_mut(to, span).copy_from_slice(bytes);
}

fn bytes_mut(contents: &mut Contents, span: Span) -> &mut [u8] {
    let region = contents.get_mut(&span.place.memory).expect("memory of a kernel's operand");
    // SAFETY: the bytes of the region.
    let bytes = unsafe { std::slice::from_raw_parts_mut(region.as_mut_ptr().cast::<u8>(), size_of_val(&region[..])) };
    &mut bytes[span.place.offset..][..span.bytes]
}

fn bytes(region: &[u128]) -> &[u8] {
    // SAFETY: the bytes of the region.
    unsafe { std::slice::from_raw_parts(region.as_ptr().cast(), size_of_val(region)) }
}

/// Runs a pass of one operand to another place, and in place.
pub(crate) fn check_one<E: Element>(
    what: &str,
    x: &[E],
    expected: &[f64],
    tolerance: f64,
    pass: impl Fn(Span, Span) -> Kernel,
) {
    let Some(mut bench) = Bench::new() else { return };
    let from = bench.put(x);
    let to = bench.room::<E>(x.len());
    for to in [to, from] {
        bench.run(&pass(from, to));
        assert_rounded(&format!("{what} {} {}", E::DTYPE, x.len()), &bench.get::<E>(to), expected, tolerance);
    }
}

/// Runs a pass of two operands to another place, and over the first.
pub(crate) fn check_two<E: Element>(
    what: &str,
    [a, b]: [&[E]; 2],
    expected: &[f64],
    tolerance: f64,
    pass: impl Fn(Span, Span, Span) -> Kernel,
) {
    let Some(mut bench) = Bench::new() else { return };
    let first = bench.put(a);
    let second = bench.put(b);
    let to = bench.room::<E>(a.len());
    for to in [to, first] {
        bench.run(&pass(first, second, to));
        assert_rounded(&format!("{what} {} {}", E::DTYPE, a.len()), &bench.get::<E>(to), expected, tolerance);
    }
}
