//! Integers of 8 bits: `QuantizeLinear` and `DequantizeLinear` around what convolutions, linear layers and sums read, from which ONNX
//! Runtime makes kernels of integers.
//!
//! Activations are bytes over a range that calibration found. Weights are integers from -63 to 63 with a scale for each output: CPUs
//! without dot products of bytes add two products in 16 bits, which wider weights would overflow. Biases are integers of 32 bits.

use std::collections::HashMap;

use enmasse_graph::{Forward, ValueId, quantized_values};
use enmasse_onnx::{Attribute, Tensor, Value};

use crate::ExportError;
use crate::translation::Translation;

/// The greatest weight.
const MAX_WEIGHT: f32 = 63.0;
/// The greatest activation.
const MAX_ACTIVATION: f32 = 255.0;

/// How an activation is rounded: a byte b is `(b - zero) * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding {
    scale: f32,
    zero: u8,
}

impl Rounding {
    /// That of values from `least` to `greatest`. 0 is always among them, and exact.
    pub fn of_range([least, greatest]: [f32; 2]) -> Self {
        let [least, greatest] = [least.min(0.0), greatest.max(0.0)];
        let width = greatest - least;
        let scale = if width.is_normal() { width / MAX_ACTIVATION } else { 1.0 };
        Rounding { scale, zero: (-least / scale).round() as u8 }
    }
}

/// How each activation that is rounded is: `ranges` has the least and the greatest value of each of [`quantized_values`].
pub(crate) fn roundings(forward: &Forward, ranges: &[[f32; 2]]) -> Result<HashMap<ValueId, Rounding>, ExportError> {
    let values = quantized_values(forward);
    if values.len() != ranges.len() {
        return Err(ExportError::Ranges { expected: values.len(), found: ranges.len() });
    }
    Ok(values.into_iter().zip(ranges.iter().map(|range| Rounding::of_range(*range))).collect())
}

/// The weights of a layer, whose first dimension is that of outputs, as integers, and the scale of each output.
pub(crate) fn rounded(shape: &[usize], values: &[f32]) -> (Vec<i8>, Vec<f32>) {
    let inputs = values.len() / shape[0].max(1);
    let scale = |output: &[f32]| {
        let largest = output.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        if largest.is_normal() { largest / MAX_WEIGHT } else { 1.0 }
    };
    let scales: Vec<f32> = values.chunks(inputs.max(1)).map(scale).collect();
    let integers = values.iter().enumerate().map(|(at, value)| (value / scales[at / inputs.max(1)]).round() as i8);
    (integers.collect(), scales)
}

impl Translation<'_> {
    /// An activation, rounded if the model is one of integers.
    pub(crate) fn activation(&mut self, operand: usize) -> Result<Value, ExportError> {
        let x = self.operand(operand)?;
        let id = self.node.inputs[operand];
        let Some(&Rounding { scale, zero }) = self.roundings.get(&id) else { return Ok(x) };
        if let Some(value) = self.rounded.get(&id) {
            return Ok(value.clone());
        }
        let scale = self.constant("scale", Tensor::floats(&[], &[scale]));
        let zero = self.constant("zero", Tensor::bytes(&[], &[zero]));
        let bytes = self.plain("QuantizeLinear", &[&x, &scale, &zero]);
        let value = self.plain("DequantizeLinear", &[&bytes, &scale, &zero]);
        self.rounded.insert(id, value.clone());
        Ok(value)
    }

    /// Whether the layer's first operand is an activation that is rounded.
    pub(crate) fn is_rounded(&self) -> bool {
        self.roundings.contains_key(&self.node.inputs[0])
    }

    /// Weights whose first dimension is that of outputs, and the bias if there is one: operands 1 and 2.
    pub(crate) fn weights_and_bias(&mut self) -> Result<Vec<Value>, ExportError> {
        let Some(&Rounding { scale, .. }) = self.roundings.get(&self.node.inputs[0]) else {
            return (1..self.operands()).map(|operand| self.operand(operand)).collect();
        };
        let (shape, values) = self.weights(1)?;
        let (integers, scales) = rounded(&shape, values);
        let mut found = vec![self.dequantized(1, Tensor::int8s(&shape, &integers), &scales, 0)];
        if self.operands() > 2 {
            let scales: Vec<f32> = scales.iter().map(|of_weights| of_weights * scale).collect();
            let (_, values) = self.weights(2)?;
            let integers: Vec<i32> =
                values.iter().zip(&scales).map(|(value, scale)| (value / scale).round() as i32).collect();
            found.push(self.dequantized(2, Tensor::int32s(&integers), &scales, 0));
        }
        Ok(found)
    }

    /// An operand's integers as numbers, by a scale for each output, which are along this axis.
    pub(crate) fn dequantized(&mut self, operand: usize, integers: Tensor, scales: &[f32], axis: i64) -> Value {
        let name = self.graph.value(self.node.inputs[operand]).name.clone();
        let integers = self.onnx.constant(&name, integers);
        let scales = self.onnx.constant(&format!("{name}/scale"), Tensor::floats(&[scales.len()], scales));
        self.onnx.node("DequantizeLinear", &[&integers, &scales], &[("axis", Attribute::Int(axis))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_zero_exactly() {
        let check = |range: [f32; 2], scale: f32, zero: u8| {
            assert_eq!(Rounding::of_range(range), Rounding { scale, zero }, "{range:?}");
        };
        check([0.0, 255.0], 1.0, 0);
        check([3.0, 510.0], 2.0, 0);
        check([-255.0, -1.0], 1.0, 255);
        check([-1.0, 3.0], 4.0 / 255.0, 64);
        check([0.0, 0.0], 1.0, 0);
        check([f32::MIN, f32::MAX], 1.0, 255);
    }

    #[test]
    fn each_output_has_a_scale() {
        let (integers, scales) = rounded(&[3, 2], &[63.0, -31.6, 0.0, 0.0, -0.5, 0.5]);
        assert_eq!(integers, [63, -32, 0, 0, -63, 63]);
        assert_eq!(scales, [1.0, 1.0, 0.5 / 63.0]);
    }
}
