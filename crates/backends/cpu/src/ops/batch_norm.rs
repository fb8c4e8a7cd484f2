//! Batch norm on the CPU.

use enmasse_graph::Activation;
use enmasse_graph::ops::{
    BatchNormBackward, BatchNormNormalize, BatchNormReduce, BatchNormStatistics, NormStatistics, RunningShare,
    RunningUpdate,
};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::batch_norm::{self, Forward, Gate, Gradient};
use crate::statistics::{self, Moments};

impl OnCpu for BatchNormStatistics {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let moments = Moments { mean: o.output(0)?, variance: o.output(1)? };
        let size = o.rows(0)?;
        let x = o.input::<E>(0)?;
        Ok(kernel!(size.workspace(), c => statistics::statistics(c, size, x, moments)))
    }
}

impl OnCpu for BatchNormNormalize {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let BatchNormNormalize { epsilon, activation, .. } = *self;
        let moments = moments(o, 1)?;
        let weight = o.input(3)?;
        let bias = o.input(4)?;
        let residual = o.optional(5)?;
        let size = o.rows(0)?;
        let x = o.input::<E>(0)?;
        let y = o.output(0)?;
        let forward = Forward { size, x, moments, weight, bias, residual, y, epsilon, activation };
        Ok(kernel!(size.workspace(), c => batch_norm::normalize(c, &forward)))
    }
}

impl OnCpu for BatchNormReduce {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let gradient = gradient::<E>(o, self.epsilon, self.activation, 4)?;
        let (dbias, dweight) = (o.output(0)?, o.output(1)?);
        Ok(kernel!(gradient.size.workspace(), c => batch_norm::reduce(c, &gradient, dbias, dweight)))
    }
}

impl OnCpu for BatchNormBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (sums, gate) = match self.statistics {
            NormStatistics::Batch { count } => (Some((o.input(5)?, o.input(6)?, count)), 7),
            NormStatistics::Running => (None, 5),
        };
        let gradient = gradient::<E>(o, self.epsilon, self.activation, gate)?;
        let (weight, dx) = (o.input(4)?, o.output(0)?);
        let dresidual = if self.residual { Some(o.output(1)?) } else { None };
        Ok(kernel!(gradient.size.workspace(), c => {
            batch_norm::backward(c, &gradient, weight, sums, dx, dresidual);
        }))
    }
}

impl OnCpu for RunningShare {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let RunningShare { count, shards } = *self;
        let moments = moments(o, 0)?;
        let share = o.output(0)?;
        Ok(kernel!(Workspace::default(), _c => batch_norm::running_share(moments, count, shards, share)))
    }
}

impl OnCpu for RunningUpdate {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let momentum = self.momentum;
        let update = o.input::<f32>(0)?;
        let mean = o.input(1)?;
        let variance = o.input(2)?;
        let channels = update.len() / 2;
        let [means, variances] = [0, channels].map(|start| update.part(start, channels));
        Ok(kernel!(Workspace::default(), _c => {
            batch_norm::running_update(means, mean, momentum);
            batch_norm::running_update(variances, variance, momentum);
        }))
    }
}

fn moments(o: &Operand, index: usize) -> Result<Moments, DeviceError> {
    Ok(Moments { mean: o.input(index)?, variance: o.input(index + 1)? })
}

/// The operands of a batch norm's gradient; `gate` is the index of the first operand of its gate, if it has one.
fn gradient<E: Element>(
    o: &Operand,
    epsilon: f32,
    activation: Option<Activation>,
    gate: usize,
) -> Result<Gradient<E>, DeviceError> {
    let gate = match (activation, o.optional(gate + 1)?) {
        (None, _) => None,
        (Some(activation), None) if activation.is_relu() => Some((activation, Gate::Stored(o.input(gate)?))),
        (Some(_), None) => return Err(o.unsupported()),
        (Some(activation), Some(bias)) => Some((activation, Gate::Recomputed { weight: o.input(gate)?, bias })),
    };
    let size = o.rows(0)?;
    let moments = moments(o, 2)?;
    Ok(Gradient { size, dy: o.input(0)?, x: o.input(1)?, moments, gate, epsilon })
}
