//! A plan bound to the memory of all its shards.

use std::sync::Arc;

use enmasse_device::{DeviceError, Program, StepInputs, StepMetrics, Ticket};
use enmasse_graph::{Layout, Mode, Phase, Plans, Role, ValueId};
use enmasse_tensor::Shape;

use crate::shard::Shard;
use crate::step::Step;

/// Runs a plan for all its shards in f64, whatever element types it stores values in.
///
/// [`Program::submit`] takes the *global* batch, `shards x batch` samples, of which shard s sees the s-th contiguous
/// piece. [`Program::store`] reads state and gradients of shard 0; `logits` are those of the whole batch in its order,
/// `loss` and `correct` are summed over shards. A ticket names a step: all submissions from one forward phase to the
/// next share it.
#[derive(Debug)]
pub struct ReferenceProgram {
    plans: Arc<Plans>,
    shards: Vec<Shard>,
    /// The latest step, of the ticket `steps`, and the one before.
    latest: [Option<Step>; 2],
    /// Steps begun so far.
    steps: u64,
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
    /// Parameters and optimiser state are zero, buffers have their first values.
    pub fn new(plans: Plans) -> Self {
        ReferenceProgram::with(plans, false)
    }

    /// The same, but what a plan stores in bf16 is rounded to it, and so are weights that such maps are multiplied by: what
    /// a device computes whose sums are exact.
    pub fn rounding(plans: Plans) -> Self {
        ReferenceProgram::with(plans, true)
    }

    fn with(plans: Plans, rounds: bool) -> Self {
        let count = plans.train.iter().chain([&plans.evaluate]).map(|plan| plan.shards).max().unwrap_or(1);
        let shards = vec![Shard::new(&plans, rounds); count];
        ReferenceProgram { plans: Arc::new(plans), shards, latest: [None, None], steps: 0 }
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

    /// Reads a tensor of one shard, by any name that [`Program::store`] knows; nothing is summed.
    pub fn store_shard(&self, shard: usize, name: &str) -> Result<Vec<f64>, DeviceError> {
        let unknown = || DeviceError::Name(name.into());
        let memory = self.shards.get(shard).ok_or_else(unknown)?;
        if let Some(tensor) = self.plans.find(name) {
            let values = memory.state.get(name).ok_or_else(unknown)?;
            return Ok(to_torch(values, &tensor.shape, tensor.layout));
        }
        let (mode, id) = self.find(name).ok_or_else(unknown)?;
        let plan = self.plans.plan(mode).ok_or_else(unknown)?;
        let values = memory.read(plan, id)?;
        let layout = match plan.value(id).role {
            Role::Gradient { parameter } => self.plans.find(&plan.value(parameter).name).map(|tensor| tensor.layout),
            _ => None,
        };
        Ok(to_torch(values, plan.shape(id), layout.unwrap_or(Layout::Plain)))
    }

    /// Sets a state tensor of one shard, which makes shards differ: to test what is to notice it.
    pub fn load_shard(&mut self, shard: usize, name: &str, values: &[f64]) -> Result<(), DeviceError> {
        let unknown = || DeviceError::Name(name.into());
        let tensor = self.plans.find(name).ok_or_else(unknown)?;
        let expected = tensor.shape.elements();
        if values.len() != expected {
            return Err(DeviceError::Size { name: name.into(), expected, found: values.len() });
        }
        let mut stored = vec![0.0; expected];
        tensor.layout.for_each(&tensor.shape, |to, from| stored[to] = values[from]);
        self.shards.get_mut(shard).ok_or_else(unknown)?.state.insert(name.into(), stored);
        Ok(())
    }

    /// What beside state has a name: gradients of the training step, results of the step last submitted.
    fn find(&self, name: &str) -> Option<(Mode, ValueId)> {
        if name.starts_with("gradient.") {
            let gradient =
                |value: &enmasse_graph::Value| value.name == name && matches!(value.role, Role::Gradient { .. });
            return Some((Mode::Train, ValueId(self.plans.train.as_ref()?.values.iter().position(gradient)?)));
        }
        let mode = self.latest[0].as_ref()?.mode;
        let plan = self.plans.plan(mode)?;
        match name {
            "logits" => Some((mode, plan.logits)),
            "loss" => Some((mode, plan.loss)),
            "correct" => Some((mode, plan.correct)),
            _ => None,
        }
    }
}

fn to_torch(stored: &[f64], shape: &Shape, layout: Layout) -> Vec<f64> {
    let mut values = vec![0.0; stored.len()];
    layout.for_each(shape, |from, to| values[to] = stored[from]);
    values
}

impl Program for ReferenceProgram {
    fn plans(&self) -> &Plans {
        &self.plans
    }

    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError> {
        (0..self.shards.len()).try_for_each(|shard| self.load_shard(shard, name, values))
    }

    fn store(&self, name: &str) -> Result<Vec<f64>, DeviceError> {
        if !matches!(name, "logits" | "loss" | "correct") {
            return self.store_shard(0, name);
        }
        let shards =
            (self.latest[0].as_ref()).and_then(|step| self.plans.plan(step.mode)).map_or(1, |plan| plan.shards);
        let pieces = (0..shards).map(|shard| self.store_shard(shard, name)).collect::<Result<Vec<_>, _>>()?;
        Ok(if name == "logits" { pieces.concat() } else { crate::kernels::tree::sum(&pieces) })
    }

    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        let plans = self.plans.clone();
        let missing = || DeviceError::Unsupported("the program was compiled for evaluation alone".into());
        let plan = plans.plan(mode).ok_or_else(missing)?;
        let shards = &mut self.shards[..plan.shards];
        for &phase in phases {
            if phase == Phase::Forward {
                let step = Step::begin(plan, shards, inputs)?;
                let [latest, _] = std::mem::take(&mut self.latest);
                self.latest = [Some(step), latest];
                self.steps += 1;
            }
            let step = self.latest[0].as_mut().filter(|step| step.mode == mode).ok_or_else(|| {
                DeviceError::Unsupported(format!("phase {} goes on with a forward phase of its mode", phase.name()))
            })?;
            step.run(plan, shards, phase, inputs)?;
        }
        Ok(Ticket(self.steps))
    }

    fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError> {
        let age = self.steps.checked_sub(ticket.0).and_then(|age| usize::try_from(age).ok());
        let step = age.and_then(|age| self.latest.get(age)).and_then(Option::as_ref);
        let Some(step) = step else {
            return Err(DeviceError::Unsupported(format!("step {} is not among the last two", ticket.0)));
        };
        if let Some((shard, loss)) = step.failure {
            return Err(DeviceError::NonFinite { shard, loss });
        }
        let unknown = || DeviceError::Unsupported("the step has not yet run the phases that measure it".into());
        step.metrics.ok_or_else(unknown)
    }
}
