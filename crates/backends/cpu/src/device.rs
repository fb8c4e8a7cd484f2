//! The device: its threads and instruction-set level, and how plans become a program.

use enmasse_comm::Group;
use enmasse_device::{Device, DeviceError, Hosting, Memory, Program, Roofline, ShardSchedule, Summation, Tuned};
use enmasse_graph::{
    Choices, Graph, Mode, Node, Plan, Plans, Precision, ValueId, chain, fuse_activations, fuse_convolutions,
    fuse_loads, fuse_statistics,
};

use crate::affinity::Cores;
use crate::isa::Isa;
use crate::peak::{Matmul, direct_gflops, peak_gflops};
use crate::pool::{Pool, Threads};
use crate::prepare::{KernelOptions, Preparation};
use crate::program::{CpuProgram, memory};
use crate::roofline::Limits;
use crate::tune::tune;

/// Options of a [`Cpu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads of each program, including the one that submits steps.
    pub threads: usize,
    /// The instruction-set level; the machine's best if `None`.
    pub isa: Option<Isa>,
    /// Compute convolutions only by direct sums: without Winograd, whose rounding error is two to four times as large.
    pub exact: bool,
    /// A core for each thread, if threads are to be pinned. The thread that submits steps is pinned only while a step
    /// runs. Without cores, with one thread, or if the number of cores differs from that of threads, the kernel places
    /// the threads.
    pub cores: Option<Cores>,
    /// How gradients are summed over ranks. Plans say it too; the device tells of it.
    pub summation: Summation,
}

impl Default for CpuOptions {
    /// As many threads as the process may use in parallel, at the machine's best level.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        CpuOptions { threads, isa: None, exact: false, cores: None, summation: Summation::default() }
    }
}

/// Makes programs that run on this machine's cores in f32.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    threads: Threads,
    kernels: KernelOptions,
    summation: Summation,
}

impl Cpu {
    /// The device with these options.
    ///
    /// # Errors
    /// This machine lacks the level, or the number of threads is out of range.
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        if !isa.available() {
            let best = Isa::detect();
            return Err(DeviceError::Unsupported(format!("this machine has no {isa}: use {best} or a lower level")));
        }
        if !(1..=Pool::MAX_THREADS).contains(&options.threads) {
            let (threads, most) = (options.threads, Pool::MAX_THREADS);
            return Err(DeviceError::Unsupported(format!("cannot use {threads} threads: use 1 to {most}")));
        }
        let threads = Threads { count: options.threads, cores: options.cores };
        let CpuOptions { exact, summation, .. } = options;
        Ok(Cpu { threads, kernels: KernelOptions { isa, exact }, summation })
    }

    /// The instruction-set level in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa
    }

    /// Threads of each program.
    pub fn threads(&self) -> usize {
        self.threads.count
    }
}

/// Whether convolutions should be computed together: each image reads their weights once more, and what is between them is not stored.
fn chain_pays(graph: &Graph, links: &[&Node]) -> bool {
    let weights: usize = links.iter().map(|node| graph.shape(node.inputs[1]).elements()).sum();
    let between = links[1..].iter().map(|node| graph.shape(node.inputs[0]));
    between.map(|shape| shape.elements() / shape[0].max(1)).sum::<usize>() >= 2 * weights
}

impl Device for Cpu {
    fn name(&self) -> String {
        let threads = self.threads();
        let plural = if self.threads() == 1 { "" } else { "s" };
        format!("cpu ({}, {threads} thread{plural})", self.isa())
    }

    fn compresses_sums(&self) -> bool {
        true
    }

    fn ways(&self, group: &Group) -> Result<Vec<String>, DeviceError> {
        let mut lines = group.ways().to_vec();
        if let Some(to) = self.summation.narrow() {
            lines.push(match group.shares_memory() {
                true => format!("`reduce_precision = {to}` has no effect: all ranks share memory, and sum f32 there"),
                false => format!("gradients cross between nodes in {to}, with error feedback"),
            });
        }
        Ok(lines)
    }

    fn levels(&self) -> Vec<&'static str> {
        let isa = self.isa();
        Isa::ALL.into_iter().filter(|&level| level <= isa && level.available()).map(Isa::name).collect()
    }

    fn fuse(&self, graph: &mut Graph, keep: &[ValueId], mode: Mode) {
        fuse_activations(graph, keep);
        fuse_convolutions(graph, keep, mode);
        chain(graph, keep, chain_pays);
        if mode == Mode::Train {
            fuse_loads(graph, keep);
            fuse_statistics(graph);
        }
    }

    fn algorithms(&self, plan: &Plan) -> Result<Vec<String>, DeviceError> {
        // Preparing touches no operand, so null addresses are enough.
        let schedule = ShardSchedule::sample();
        let prepared = Preparation::sample(plan, &|_| std::ptr::null_mut(), self.kernels, &schedule)?.run()?;
        Ok(prepared.shards.iter().flatten().map(|instruction| instruction.algorithm.into()).collect())
    }

    fn tune(&self, plans: &Plans, known: &Choices) -> Result<Tuned, DeviceError> {
        let choices = tune(plans, known, self.threads, self.kernels)?;
        Ok(Tuned { choices, ..Tuned::default() })
    }

    fn peak_gflops(&self, plan: &Plan) -> Result<Option<f64>, DeviceError> {
        let (isa, threads) = (self.isa(), self.threads());
        let peak = match plan.precision {
            // A level without products of bf16 pairs computes in f32.
            Precision::Bf16 if Matmul::Bf16.available(isa) => peak_gflops(isa, Matmul::Bf16, threads),
            Precision::Bf16 | Precision::F32 => direct_gflops(isa, threads),
            // No plan of these runs on a CPU.
            Precision::Tf32 | Precision::F16 => Ok(None),
        };
        peak.map_err(|error| DeviceError::Unsupported(format!("cannot measure the peak: {error}")))
    }

    fn roofline(&self, plan: &Plan) -> Result<Option<Roofline>, DeviceError> {
        let algorithms = self.algorithms(plan)?;
        let failed = |error| DeviceError::Unsupported(format!("cannot measure the limits of this machine: {error}"));
        let limits = Limits::measure(self.isa(), self.threads()).map_err(failed)?;
        limits.map(|limits| limits.roofline(plan, &self.name(), &algorithms)).transpose()
    }

    fn memory(&self, plans: &Plans, hosting: &Hosting) -> Result<Memory, DeviceError> {
        memory(plans, hosting, self.threads, self.kernels)
    }

    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        Ok(Box::new(CpuProgram::new(plans, group, self.threads, self.kernels)?))
    }
}
