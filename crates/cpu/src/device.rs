//! The device itself: threads and instruction-set level, and the way from plans to a program.

use enmasse_comm::Group;
use enmasse_device::{Device, DeviceError, Program};
use enmasse_graph::{Choices, Plan, Plans, Precision};

use crate::affinity::Cores;
use crate::hosting::Schedule;
use crate::isa::Isa;
use crate::peak::{Product, peak_gflops};
use crate::pool::{Pool, Threads};
use crate::prepare::KernelOptions;
use crate::prepare::Preparation;
use crate::program::CpuProgram;
use crate::tune::tune;

/// What a [`Cpu`] is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads of each program, the one that submits steps included.
    pub threads: usize,
    /// The instruction-set level; the machine's best if none is named.
    pub isa: Option<Isa>,
    /// Convolutions by direct sums only: no Winograd, whose rounding is two to four times as large.
    pub exact: bool,
    /// A core for each thread, if they are to stay there: the one that submits steps does so while a step runs. Without
    /// cores, with another number of them than of threads, or with one thread, threads run where the kernel puts them.
    pub cores: Option<Cores>,
}

impl Default for CpuOptions {
    /// As many threads as the process may use, at the machine's best level.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        CpuOptions { threads, isa: None, exact: false, cores: None }
    }
}

/// Makes programs that run on this machine's cores in f32.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    threads: Threads,
    kernels: KernelOptions,
}

impl Cpu {
    /// An error where the level is not one of this machine, or the number of threads makes no sense.
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        if !isa.available() {
            let best = Isa::detect();
            return Err(DeviceError::Unsupported(format!("this machine has no {isa}: use {best} or less")));
        }
        if !(1..=Pool::MAX_THREADS).contains(&options.threads) {
            let (threads, most) = (options.threads, Pool::MAX_THREADS);
            return Err(DeviceError::Unsupported(format!("{threads} threads make no sense: use 1 to {most}")));
        }
        let threads = Threads { count: options.threads, cores: options.cores };
        Ok(Cpu { threads, kernels: KernelOptions { isa, exact: options.exact } })
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

impl Device for Cpu {
    fn name(&self) -> String {
        let (threads, plural) = (self.threads(), if self.threads() == 1 { "" } else { "s" });
        format!("cpu ({}, {threads} thread{plural})", self.isa())
    }

    fn levels(&self) -> Vec<&'static str> {
        let isa = self.isa();
        Isa::ALL.into_iter().filter(|&level| level <= isa && level.available()).map(Isa::name).collect()
    }

    fn algorithms(&self, plan: &Plan) -> Result<Vec<String>, DeviceError> {
        // Preparing touches no operand, so it can be done for arenas that are nowhere.
        let schedule = Schedule::sample();
        let prepared = Preparation::sample(plan, &|_| std::ptr::null_mut(), self.kernels, &schedule)?.run()?;
        Ok(prepared.shards.iter().flatten().map(|instruction| instruction.algorithm.into()).collect())
    }

    fn tune(&self, plans: &Plans, known: &Choices) -> Result<Choices, DeviceError> {
        tune(plans, known, self.threads, self.kernels)
    }

    fn peak_gflops(&self, plan: &Plan) -> Result<Option<f64>, DeviceError> {
        let products: &[Product] = match plan.precision {
            Precision::F32 => &[Product::F32],
            // A level that has no products of pairs computes in f32.
            Precision::Bf16 => &[Product::Bf16, Product::F32],
        };
        for &product in products {
            let failed = |error| DeviceError::Unsupported(format!("cannot measure the peak: {error}"));
            if let Some(peak) = peak_gflops(self.isa(), product, self.threads()).map_err(failed)? {
                return Ok(Some(peak));
            }
        }
        Ok(None)
    }

    fn compile(&self, plans: Plans, group: Option<Group>) -> Result<Box<dyn Program>, DeviceError> {
        Ok(Box::new(CpuProgram::new(plans, group, self.threads, self.kernels)?))
    }
}
