//! The memory of one shard: its copy of the state, and the values of the latest step of each mode.

use std::collections::HashMap;

use enmasse_device::DeviceError;
use enmasse_graph::{Arena, Init, Mode, Plan, Plans, Role, StateTensor, ValueId};
use enmasse_tensor::{Bf16, DType, F16};

/// One shard's memory: a separate vector for every tensor, in stored order.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    /// State tensors by name.
    pub state: HashMap<String, Vec<f64>>,
    /// Whether values that the plan stores in 16 bits are rounded to them.
    rounds: bool,
    /// The values that have been written in the latest step of each mode.
    values: HashMap<(Mode, ValueId), Vec<f64>>,
}

impl Shard {
    /// Initial memory: parameters and optimiser state are zero, buffers and the loss scale have their initial values.
    pub fn new(plans: &Plans, rounds: bool) -> Self {
        let tensor = |tensor: &StateTensor| {
            let value = match (tensor.slot.arena, tensor.init) {
                (Arena::Buffers | Arena::LossScale, Init::Constant(value)) => f64::from(value),
                _ => 0.0,
            };
            (tensor.name.clone(), vec![value; tensor.shape.elements()])
        };
        let state = plans.state.iter().map(tensor).collect();
        Shard { state, rounds, values: HashMap::new() }
    }

    /// Clears the values of the mode's previous step. A gradient that no instruction writes belongs to a parameter that
    /// does not reach the loss, and is zero.
    pub fn begin(&mut self, plan: &Plan) {
        self.values.retain(|&(mode, _), _| mode != plan.mode);
        for (index, value) in plan.values.iter().enumerate() {
            if matches!(value.role, Role::Gradient { .. }) {
                self.values.insert((plan.mode, ValueId(index)), vec![0.0; value.shape.elements()]);
            }
        }
        for &output in plan.instructions.iter().flat_map(|node| &node.outputs) {
            self.values.remove(&(plan.mode, output));
        }
    }

    /// A value. It is an error if it has not been written, or if a collective holds it.
    pub fn read(&self, plan: &Plan, id: ValueId) -> Result<&[f64], DeviceError> {
        let value = match state_name(plan, id) {
            Some(name) => self.state.get(name),
            None => self.values.get(&(plan.mode, id)),
        };
        value.map(Vec::as_slice).ok_or_else(|| {
            let name = &plan.value(id).name;
            DeviceError::Unsupported(format!("{name} (%{}) is read before it is written: run the earlier phases", id.0))
        })
    }

    /// Writes a value.
    pub fn write(&mut self, plan: &Plan, id: ValueId, value: Vec<f64>) {
        debug_assert_eq!(value.len(), plan.shape(id).elements(), "{}", plan.value(id).name);
        let value = self.rounded(plan.value(id).dtype, &value).unwrap_or(value);
        match state_name(plan, id) {
            Some(name) => self.state.insert(name.into(), value),
            None => self.values.insert((plan.mode, id), value),
        };
    }

    /// Values rounded to a type of 16 bits; `None` for other types, or if nothing is rounded.
    pub fn rounded(&self, dtype: DType, values: &[f64]) -> Option<Vec<f64>> {
        let round: fn(f32) -> f32 = match dtype {
            DType::Bf16 => |value| Bf16::from_f32(value).to_f32(),
            DType::F16 => |value| F16::from_f32(value).to_f32(),
            DType::F32 | DType::F64 | DType::U8 | DType::I32 | DType::I64 => return None,
        };
        self.rounds.then(|| values.iter().map(|&value| round(value as f32).into()).collect())
    }

    /// Hands a value over to a collective. It cannot be read until it is written again.
    pub fn take(&mut self, plan: &Plan, id: ValueId) -> Result<Vec<f64>, DeviceError> {
        let value = self.read(plan, id)?.to_vec();
        self.values.remove(&(plan.mode, id));
        Ok(value)
    }
}

/// The name of a value that outlives the step.
fn state_name(plan: &Plan, id: ValueId) -> Option<&str> {
    match plan.value(id).role {
        Role::Parameter(_)
        | Role::Buffer { .. }
        | Role::Optimizer { .. }
        | Role::Average { .. }
        | Role::LossScale { .. }
        | Role::Residual { .. }
        | Role::Teacher { .. } => Some(&plan.value(id).name),
        Role::Input | Role::Activation | Role::Gradient { .. } | Role::Carried => None,
    }
}
