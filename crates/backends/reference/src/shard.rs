//! The memory of one shard: its copy of the state, and the values of the latest step of each mode.

use std::collections::HashMap;

use enmasse_device::DeviceError;
use enmasse_graph::{Arena, Init, Mode, Node, Op, Plan, Plans, Role, StateTensor, ValueId};
use enmasse_tensor::{Bf16, DType, F16};

/// One shard's memory: a separate vector for every tensor, in stored order.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    /// State tensors by name.
    pub state: HashMap<String, Vec<f64>>,
    /// Whether values that the plan stores in 16 bits are rounded to them.
    pub rounds: bool,
    /// Values of the latest training step, parallel to the plan's values; `None` for values that have not been written.
    train: Vec<Option<Vec<f64>>>,
    /// The same for the latest evaluation step.
    evaluate: Vec<Option<Vec<f64>>>,
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
        Shard { state, rounds, train: Vec::new(), evaluate: Vec::new() }
    }

    fn values(&self, mode: Mode) -> &[Option<Vec<f64>>] {
        match mode {
            Mode::Train => &self.train,
            Mode::Evaluate => &self.evaluate,
        }
    }

    fn values_mut(&mut self, mode: Mode) -> &mut Vec<Option<Vec<f64>>> {
        match mode {
            Mode::Train => &mut self.train,
            Mode::Evaluate => &mut self.evaluate,
        }
    }

    /// Clears the values of the mode's previous step. A gradient that no instruction writes belongs to a parameter that
    /// does not reach the loss, and is zero.
    pub fn begin(&mut self, plan: &Plan) {
        let values = self.values_mut(plan.mode);
        *values = vec![None; plan.values.len()];
        for (slot, value) in values.iter_mut().zip(&plan.values) {
            if matches!(value.role, Role::Gradient { .. }) {
                *slot = Some(vec![0.0; value.shape.elements()]);
            }
        }
        for output in plan.instructions.iter().flat_map(|node| &node.outputs) {
            values[output.0] = None;
        }
    }

    /// A value, if it has been written and no collective holds it.
    pub fn get(&self, plan: &Plan, id: ValueId) -> Option<&[f64]> {
        match plan.value(id).role {
            Role::Parameter(_)
            | Role::Buffer { .. }
            | Role::Optimizer { .. }
            | Role::Average { .. }
            | Role::LossScale { .. } => self.state.get(&plan.value(id).name).map(Vec::as_slice),
            Role::Input | Role::Activation | Role::Gradient { .. } | Role::Carried => {
                self.values(plan.mode).get(id.0)?.as_deref()
            }
        }
    }

    /// The same, except that a missing value is an error.
    pub fn read(&self, plan: &Plan, id: ValueId) -> Result<&[f64], DeviceError> {
        self.get(plan, id).ok_or_else(|| {
            let name = &plan.value(id).name;
            DeviceError::Unsupported(format!("{name} (%{}) is read before it is written: run the earlier phases", id.0))
        })
    }

    /// Writes a value.
    pub fn write(&mut self, plan: &Plan, id: ValueId, mut value: Vec<f64>) {
        debug_assert_eq!(value.len(), plan.shape(id).elements(), "{}", plan.value(id).name);
        if self.rounds {
            value = rounded(plan.value(id).dtype, &value).unwrap_or(value);
        }
        self.values_mut(plan.mode)[id.0] = Some(value);
    }

    /// Writes a value, or a tensor that outlives the step.
    pub fn set(&mut self, plan: &Plan, id: ValueId, value: Vec<f64>) {
        match self.state.get_mut(&plan.value(id).name) {
            Some(state) => *state = value,
            None => self.write(plan, id, value),
        }
    }

    /// The weights of a convolution over 16-bit activations, rounded as devices round them; `None` for operands used unchanged.
    pub fn rounded_operand(&self, plan: &Plan, node: &Node, operand: usize) -> Option<Vec<f64>> {
        let activations = plan.value(*node.inputs.first()?).dtype;
        let weights = operand == 1 && matches!(node.op, Op::Conv2d(_) | Op::Conv2dBackwardData(_));
        if self.rounds && weights { rounded(activations, self.get(plan, node.inputs[operand])?) } else { None }
    }

    /// Hands a value over to a collective. It cannot be read until it is written again.
    pub fn take(&mut self, plan: &Plan, id: ValueId) -> Result<Vec<f64>, DeviceError> {
        let value = self.read(plan, id)?.to_vec();
        self.values_mut(plan.mode)[id.0] = None;
        Ok(value)
    }
}

/// Each value rounded to a type of 16 bits; `None` for other types.
fn rounded(dtype: DType, values: &[f64]) -> Option<Vec<f64>> {
    let round: fn(f32) -> f32 = match dtype {
        DType::Bf16 => |value| Bf16::from_f32(value).to_f32(),
        DType::F16 => |value| F16::from_f32(value).to_f32(),
        DType::F32 | DType::F64 | DType::U8 | DType::I32 | DType::I64 => return None,
    };
    Some(values.iter().map(|&value| round(value as f32).into()).collect())
}
