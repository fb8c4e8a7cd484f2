//! Prepared instructions: operands are addresses, the work is already cut into tasks, and what is left is to run.

use enmasse_comm::{Group, Handle};
use enmasse_device::{Batch, DeviceError};

use crate::region::Region;
use crate::scratch::{Context, Scratch};

/// What a step gives to instructions beside memory of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepValues {
    /// The batch's pictures, which the program holds while the step runs; so are the two below.
    pub images: Region<u8>,
    pub labels: Region<i32>,
    pub sample_indices: Region<i64>,
    pub epoch: u64,
    pub learning_rate: f32,
    pub optimizer_step: u64,
    pub stop: bool,
    pub save: bool,
}

impl StepValues {
    /// Where a batch lies. Instructions only read it.
    pub(crate) fn of(batch: &dyn Batch) -> Self {
        StepValues {
            images: Region::of(batch.images()),
            labels: Region::of(batch.labels()),
            sample_indices: Region::of(batch.sample_indices()).cast(),
            epoch: 0,
            learning_rate: 0.0,
            optimizer_step: 1,
            stop: false,
            save: false,
        }
    }
}

/// One shard's part of what comes with a batch: where it lies is known when a step begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FromBatch<T> {
    pub all: fn(&StepValues) -> Region<T>,
    pub start: usize,
    pub len: usize,
}

impl<T> FromBatch<T> {
    /// The part in the batch of this step.
    pub(crate) fn of(&self, step: &StepValues) -> Region<T> {
        (self.all)(step).part(self.start, self.len)
    }
}

/// What instructions run with.
pub(crate) struct Machine {
    pub context: Context,
    pub group: Option<Group>,
    /// The sums under way, by bucket.
    pub handles: Vec<Option<Handle>>,
}

type Run = dyn Fn(&mut Machine, &StepValues) -> Result<(), DeviceError> + Send;

/// An instruction of a plan.
pub(crate) struct Instruction {
    /// Which algorithm was chosen, where there is a choice.
    pub algorithm: &'static str,
    /// Scratch that it needs.
    pub scratch: Scratch,
    /// Relies on what [`Instruction::execute`] asks for.
    run: Box<Run>,
}

impl Instruction {
    /// An instruction that runs kernels; see [`kernel`].
    pub(crate) fn new(scratch: Scratch, run: impl Fn(&mut Context, &StepValues) + Send + 'static) -> Self {
        let run = move |machine: &mut Machine, step: &StepValues| {
            run(&mut machine.context, step);
            Ok(())
        };
        Instruction { algorithm: "", scratch, run: Box::new(run) }
    }

    /// What a shard does where another one acts for all that the program hosts.
    pub(crate) fn nothing() -> Self {
        Instruction::fallible(Scratch::default(), |_| Ok(()))
    }

    /// An instruction that can fail, or in which all shards take part.
    pub(crate) fn fallible(
        scratch: Scratch,
        run: impl Fn(&mut Machine) -> Result<(), DeviceError> + Send + 'static,
    ) -> Self {
        Instruction { algorithm: "", scratch, run: Box::new(move |machine, _| run(machine)) }
    }

    /// The instruction with the name of the algorithm that it is carried out by.
    pub(crate) fn by(self, algorithm: &'static str) -> Self {
        Instruction { algorithm, ..self }
    }

    /// Carries the instruction out.
    ///
    /// # Safety
    /// The operands' memory is valid and used by nobody else, but for what belongs to sums under way.
    pub(crate) unsafe fn execute(&self, machine: &mut Machine, step: &StepValues) -> Result<(), DeviceError> {
        (self.run)(machine, step)
    }
}

/// An instruction that runs one kernel: `kernel!(scratch, context => unsafe call)`.
macro_rules! kernel {
    ($scratch:expr, $context:ident => $call:expr) => {
        $crate::instruction::kernel!($scratch, ($context, _step) => $call)
    };
    ($scratch:expr, ($context:ident, $step:ident) => $call:expr) => {
        $crate::instruction::Instruction::new($scratch, move |$context, $step| {
            // SAFETY: who executes the instruction answers for its memory; the plan keeps operands apart that must not
            // overlap.
            unsafe { $call }
        })
    };
}
pub(crate) use kernel;
