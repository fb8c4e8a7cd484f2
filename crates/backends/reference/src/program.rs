//! The reference program: plans bound to the memory of the local shards.

use enmasse_comm::Group;
use enmasse_device::{
    DeviceError, Hosting, Ledger, Program, ProgramGroups, ProgramTensor, StepInputs, StepMetrics, Ticket,
    check_same_state, find_state, find_tensor, from_torch, to_torch,
};
use enmasse_graph::{Layout, Mode, Phase, Plan, Plans};

use crate::exchange::Exchange;
use crate::shard::Shard;
use crate::step::Step;
use crate::tree;

/// Runs plans in f64, independent of the element types in the plan: for all shards in one process, or for a rank's part of
/// them.
///
/// [`Program::submit`] takes the samples of the local shards. The s-th of these shards gets the s-th contiguous piece.
/// [`Program::store`] reads state and gradients from the first local shard. `logits` are those of all local shards, in the
/// order of the batch; `loss` and `correct` are sums over these shards.
#[derive(Debug)]
pub struct ReferenceProgram {
    plans: Plans,
    exchange: Exchange,
    rounds: bool,
    shards: Vec<Shard>,
    ledger: Ledger,
    /// The step last begun.
    step: Option<Step>,
}

/// The first tensor in which a shard differs from shard 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub tensor: String,
    /// The shard that differs from shard 0.
    pub shard: usize,
}

impl ReferenceProgram {
    /// Makes a program for this rank's part of the shards, or for all shards without a group. Parameters and optimiser state
    /// are zero; buffers have their initial values.
    ///
    /// # Errors
    /// There are more ranks than shards.
    pub fn new(plans: Plans, group: Option<Group>) -> Result<Self, DeviceError> {
        ReferenceProgram::with(plans, group, false)
    }

    /// Makes a program that rounds values to bf16 or f16 if the plan stores them so, and also weights that multiply such activations.
    /// It computes what a device with exact sums would.
    ///
    /// # Errors
    /// There are more ranks than shards.
    pub fn rounding(plans: Plans, group: Option<Group>) -> Result<Self, DeviceError> {
        ReferenceProgram::with(plans, group, true)
    }

    fn with(plans: Plans, group: Option<Group>, rounds: bool) -> Result<Self, DeviceError> {
        let groups = ProgramGroups::new(&plans, group)?;
        let hosting = Hosting::new(&plans, groups.replicas.as_ref())?;
        let shards = vec![Shard::new(&plans, rounds); hosting.count()];
        let exchange = Exchange { hosting, groups };
        Ok(ReferenceProgram { plans, exchange, rounds, shards, ledger: Ledger::default(), step: None })
    }

    /// The first state tensor, in the order of [`Plans::state`], whose bits are not the same on all shards.
    pub fn first_difference(&self) -> Option<Difference> {
        let (first, others) = self.shards.split_first()?;
        let bits = |shard: &Shard, name: &str| -> Option<Vec<u64>> {
            shard.state.get(name).map(|values| values.iter().map(|value| value.to_bits()).collect())
        };
        self.plans.state.iter().find_map(|tensor| {
            let expected = bits(first, &tensor.name);
            let differs = others.iter().position(|shard| bits(shard, &tensor.name) != expected)?;
            Some(Difference { tensor: tensor.name.clone(), shard: differs + 1 })
        })
    }

    /// Reads a tensor of one local shard, by any name that [`Program::store`] accepts, without summing over shards.
    ///
    /// # Errors
    /// There is no such shard or tensor, or no step has computed it yet.
    pub fn store_shard(&self, shard: usize, name: &str) -> Result<Vec<f64>, DeviceError> {
        let unknown = || DeviceError::Name(name.into());
        let memory = self.shards.get(shard).ok_or_else(unknown)?;
        match find_tensor(&self.plans, self.latest_plan(), name).ok_or_else(unknown)? {
            ProgramTensor::State(tensor) => {
                Ok(to_torch(memory.state.get(name).ok_or_else(unknown)?, &tensor.shape, tensor.layout))
            }
            ProgramTensor::Gradient { plan, value, layout } => {
                Ok(to_torch(memory.read(plan, value)?, plan.shape(value), layout))
            }
            ProgramTensor::Result { plan, value } => {
                Ok(to_torch(memory.read(plan, value)?, plan.shape(value), Layout::Plain))
            }
        }
    }

    /// Ends sums in progress.
    fn drain(&mut self) {
        if let (Some(step), Some(plan)) = (&mut self.step, self.ledger.mode().and_then(|mode| self.plans.plan(mode))) {
            step.drain(plan, &mut self.shards);
        }
    }

    /// The plan of the latest step.
    fn latest_plan(&self) -> Option<&Plan> {
        self.plans.plan(self.ledger.mode()?)
    }

    /// Sets a state tensor of one shard only. Tests use it to make shards differ.
    ///
    /// # Errors
    /// There is no such shard or state tensor, or it has another number of elements. Nothing changes then.
    pub fn load_shard(&mut self, shard: usize, name: &str, values: &[f64]) -> Result<(), DeviceError> {
        let tensor = find_state(&self.plans, name, values.len())?;
        let mut stored = vec![0.0; values.len()];
        from_torch(values, &tensor.shape, tensor.layout, |to, value| stored[to] = value);
        let memory = self.shards.get_mut(shard).ok_or_else(|| DeviceError::Name(name.into()))?;
        memory.state.insert(name.into(), stored);
        Ok(())
    }
}

impl Program for ReferenceProgram {
    fn plans(&self) -> &Plans {
        &self.plans
    }

    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError> {
        self.drain();
        (0..self.shards.len()).try_for_each(|shard| self.load_shard(shard, name, values))
    }

    fn store(&mut self, name: &str) -> Result<Vec<f64>, DeviceError> {
        self.drain();
        if !matches!(name, "logits" | "loss" | "correct") {
            return self.store_shard(0, name);
        }
        let shards = 0..self.shards.len();
        let pieces = shards.map(|shard| self.store_shard(shard, name)).collect::<Result<Vec<_>, _>>()?;
        Ok(if name == "logits" { pieces.concat() } else { tree::sum(&pieces) })
    }

    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        let plan = self.plans.plan(mode).ok_or_else(DeviceError::only_evaluates)?;
        for &phase in phases {
            if phase == Phase::Forward {
                self.step = Some(Step::begin(plan, &mut self.shards, inputs)?);
                self.ledger.begin(mode);
            }
            self.ledger.go_on(mode, phase)?;
            let Some(step) = self.step.as_mut().filter(|_| !self.ledger.is_void()) else { continue };
            match step.run(plan, &mut self.shards, &self.exchange, phase, inputs) {
                Ok(measured) => measured.into_iter().for_each(|metrics| self.ledger.measured(metrics)),
                Err(DeviceError::NonFinite { shard, loss }) => self.ledger.fail(shard, loss),
                Err(error) => return Err(error),
            }
        }
        self.ledger.latest()
    }

    fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError> {
        self.ledger.metrics(ticket)
    }

    fn rejoin(&mut self, plans: Plans, group: Option<Group>) -> Result<(), DeviceError> {
        check_same_state(&self.plans, &plans)?;
        // All shards hold the same state, so that of the first serves all.
        let mut fresh = ReferenceProgram::with(plans, group, self.rounds)?;
        fresh.shards.iter_mut().for_each(|shard| shard.state.clone_from(&self.shards[0].state));
        *self = fresh;
        Ok(())
    }
}
