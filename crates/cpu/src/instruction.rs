//! Prepared instructions: operands are addresses, the work is already cut into tasks, and what is left is to run.

use enmasse_comm::{Group, Handle};
use enmasse_device::DeviceError;

use crate::scratch::{Context, Scratch};

/// What a step gives to instructions beside memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepValues {
    pub epoch: u64,
    pub learning_rate: f32,
    pub optimizer_step: u64,
    pub stop: bool,
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

    /// An instruction that can fail, or in which all ranks take part.
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
