//! Prepared instructions: operands are addresses and the work is divided into tasks, so all that remains is to run.

use enmasse_comm::Handle;
use enmasse_device::{DeviceError, ProgramGroups, StepBatch, StepInputs};
use enmasse_tensor::AlignedBuffer;

use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// One shard's part of a batch. Its address is known when a step begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FromBatch<T> {
    pub all: fn(&dyn StepBatch) -> Region<T>,
    pub start: usize,
    pub len: usize,
}

impl<T> FromBatch<T> {
    /// The part in this step's batch, which the program holds while the step runs. Instructions only read it.
    pub(crate) fn of(&self, step: &StepInputs) -> Region<T> {
        (self.all)(step.batch.as_ref()).part(self.start, self.len)
    }
}

/// The memory from which a value travels to another stage.
pub(crate) struct SentCopy {
    /// Declared before the memory, because dropping it waits for the end.
    pub transfer: Option<Handle>,
    pub memory: AlignedBuffer,
}

/// The resources that instructions run with.
pub(crate) struct Machine {
    pub context: Context,
    pub groups: ProgramGroups,
    /// The sums in progress, by bucket.
    pub handles: Vec<Option<Handle>>,
    /// Copies of what a stage sends: of each sending instruction for each micro-batch in flight.
    pub sent: Vec<SentCopy>,
}

type Run = dyn Fn(&mut Machine, &StepInputs) -> Result<(), DeviceError> + Send;

/// An instruction of a plan.
pub(crate) struct Instruction {
    /// The chosen algorithm; empty if there is no choice.
    pub algorithm: &'static str,
    /// Required workspace.
    pub workspace: Workspace,
    /// Relies on the conditions of [`Instruction::execute`].
    run: Box<Run>,
}

impl Instruction {
    /// An instruction; see [`kernel`] and [`fallible`].
    pub(crate) fn new(
        workspace: Workspace,
        run: impl Fn(&mut Machine, &StepInputs) -> Result<(), DeviceError> + Send + 'static,
    ) -> Self {
        Instruction { algorithm: "", workspace, run: Box::new(run) }
    }

    /// That of a shard for which another shard acts on behalf of all that the program hosts, or of a result that is in
    /// its place already.
    pub(crate) fn nothing() -> Self {
        Instruction::new(Workspace::default(), |_, _| Ok(()))
    }

    /// Sets the name of the algorithm that computes the instruction.
    pub(crate) fn by(self, algorithm: &'static str) -> Self {
        Instruction { algorithm, ..self }
    }

    /// Executes the instruction.
    ///
    /// # Safety
    /// The operands' memory is valid, and no other code uses it, except the memory of sums in progress.
    pub(crate) unsafe fn execute(&self, machine: &mut Machine, step: &StepInputs) -> Result<(), DeviceError> {
        (self.run)(machine, step)
    }
}

/// An instruction that runs one kernel: `kernel!(workspace, context => unsafe call)`.
macro_rules! kernel {
    ($workspace:expr, $context:ident => $call:expr) => {
        $crate::instruction::kernel!($workspace, ($context, _step) => $call)
    };
    ($workspace:expr, ($context:ident, $step:ident) => $call:expr) => {
        $crate::instruction::Instruction::new($workspace, move |machine, $step| {
            let $context = &mut machine.context;
            // SAFETY: the caller of `execute` is responsible for the memory; the plan separates operands that must not
            // overlap.
            unsafe { $call };
            Ok(())
        })
    };
}
pub(crate) use kernel;

/// An instruction that can fail, or in which all shards take part: `fallible!(workspace, machine => unsafe call)`.
macro_rules! fallible {
    ($workspace:expr, $machine:ident => $call:expr) => {
        $crate::instruction::Instruction::new($workspace, move |$machine, _| {
            // SAFETY: as for `kernel`.
            unsafe { $call }
        })
    };
}
pub(crate) use fallible;
