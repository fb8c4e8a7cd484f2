//! A node on its way: its operands as values of ONNX, and short forms of the nodes that operations use.

use std::collections::HashMap;

use enmasse_graph::{Graph, Node, Role, Value as GraphValue, ValueId};
use enmasse_onnx::{Attribute, GraphBuilder, Tensor, Value};
use enmasse_tensor::Shape;

use crate::quantize::{Rounding, rounded};
use crate::{ExportError, ImageInput, Weights};

/// Parameters and running statistics by name.
pub(crate) type Constants<'a> = HashMap<&'a str, Weights<'a>>;

/// One node of a forward pass.
pub(crate) struct Translation<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) node: &'a Node,
    pub(crate) input: ImageInput,
    pub(crate) constants: &'a Constants<'a>,
    /// The values that are known so far.
    pub(crate) values: &'a mut HashMap<ValueId, Value>,
    pub(crate) onnx: &'a mut GraphBuilder,
    /// How activations are rounded; empty if none is.
    pub(crate) roundings: &'a HashMap<ValueId, Rounding>,
    /// The activations that have been rounded so far.
    pub(crate) rounded: &'a mut HashMap<ValueId, Value>,
}

impl Translation<'_> {
    /// The number of operands.
    pub(crate) fn operands(&self) -> usize {
        self.node.inputs.len()
    }

    /// The shape of an operand, in our order.
    pub(crate) fn shape(&self, operand: usize) -> &Shape {
        self.graph.shape(self.node.inputs[operand])
    }

    /// The shape of the first result, in our order.
    pub(crate) fn result_shape(&self) -> &Shape {
        self.graph.shape(self.node.outputs[0])
    }

    /// An operand.
    pub(crate) fn operand(&mut self, operand: usize) -> Result<Value, ExportError> {
        let id = self.node.inputs[operand];
        if let Some(value) = self.values.get(&id) {
            return Ok(value.clone());
        }
        let name = &self.graph.value(id).name;
        let (shape, values) = self.weights(operand)?;
        let value = self.onnx.constant(name, Tensor::floats(&shape, values));
        self.values.insert(id, value.clone());
        Ok(value)
    }

    /// The weights of a linear layer as `[inputs, outputs]`.
    pub(crate) fn transposed_weights(&mut self, operand: usize) -> Result<Value, ExportError> {
        let id = self.node.inputs[operand];
        let name = &self.graph.value(id).name;
        let (shape, values) = self.weights(operand)?;
        let turned = [shape[1], shape[0]];
        if self.is_rounded() {
            let (integers, scales) = rounded(&shape, values);
            let integers = Tensor::int8s(&turned, &transposed(&shape, &integers));
            return Ok(self.dequantized(operand, integers, &scales, 1));
        }
        Ok(self.onnx.constant(name, Tensor::floats(&turned, &transposed(&shape, values))))
    }

    /// A parameter or running statistic, in PyTorch's order.
    pub(crate) fn weights(&self, operand: usize) -> Result<(Vec<usize>, &[f32]), ExportError> {
        let GraphValue { name, shape, role, .. } = self.graph.value(self.node.inputs[operand]);
        let dims = match role {
            Role::Parameter(parameter) => parameter.layout.torch_shape(shape),
            _ => shape.clone(),
        };
        let found = self.constants.get(name.as_str()).filter(|weights| weights.shape == &dims[..]);
        let found = found.filter(|weights| weights.values.len() == shape.elements());
        let none = || ExportError::Weights { name: name.clone(), elements: shape.elements() };
        Ok((dims.to_vec(), found.ok_or_else(none)?.values))
    }

    /// Sets the first result.
    pub(crate) fn give(&mut self, value: Value) -> Result<(), ExportError> {
        self.give_result(0, value)
    }

    /// Sets a result.
    pub(crate) fn give_result(&mut self, result: usize, value: Value) -> Result<(), ExportError> {
        self.values.insert(self.node.outputs[result], value);
        Ok(())
    }

    /// The operation cannot be exported.
    pub(crate) fn refuse(&self) -> Result<(), ExportError> {
        Err(ExportError::Operation { operation: self.node.op.name(), layer: self.node.layer.clone() })
    }

    /// A node without attributes.
    pub(crate) fn plain(&mut self, operator: &'static str, inputs: &[&Value]) -> Value {
        self.onnx.node(operator, inputs, &[])
    }

    /// A constant of this layer.
    pub(crate) fn constant(&mut self, kind: &str, tensor: Tensor) -> Value {
        self.onnx.constant(&format!("{}/{kind}", self.node.layer), tensor)
    }

    pub(crate) fn scalar(&mut self, value: f32) -> Value {
        self.constant("number", Tensor::floats(&[], &[value]))
    }

    pub(crate) fn integers(&mut self, values: &[i64]) -> Value {
        self.constant("integers", Tensor::integers(values))
    }

    /// A value plus, minus, times or to the power of a number, and other functions of two.
    pub(crate) fn with_number(&mut self, operator: &'static str, x: &Value, number: f32) -> Value {
        let number = self.scalar(number);
        self.plain(operator, &[x, &number])
    }

    pub(crate) fn transpose(&mut self, x: &Value, order: &[usize]) -> Value {
        let order = Attribute::ints(order.iter().copied());
        self.onnx.node("Transpose", &[x], &[("perm", order)])
    }

    /// The same elements as rows of other dimensions of each sample: the batch stays.
    pub(crate) fn reshape(&mut self, x: &Value, dims: &[usize]) -> Value {
        let dims: Vec<i64> = std::iter::once(0).chain(dims.iter().map(|dim| *dim as i64)).collect();
        let dims = self.integers(&dims);
        self.plain("Reshape", &[x, &dims])
    }

    /// New dimensions of 1 at these places of the result.
    pub(crate) fn unsqueeze(&mut self, x: &Value, axes: &[i64]) -> Value {
        let axes = self.integers(axes);
        self.plain("Unsqueeze", &[x, &axes])
    }

    /// `x` with its channels last, as `operation` wants it; its result goes back to the order of images.
    pub(crate) fn channels_last(&mut self, x: &Value, operation: impl FnOnce(&mut Self, &Value) -> Value) -> Value {
        if self.shape(0).len() != 4 {
            return operation(self, x);
        }
        let x = self.transpose(x, &[0, 2, 3, 1]);
        let y = operation(self, &x);
        self.transpose(&y, &[0, 3, 1, 2])
    }
}

/// A matrix with its rows as columns.
fn transposed<T: Copy>(shape: &[usize], values: &[T]) -> Vec<T> {
    let [rows, columns] = [shape[0], shape[1]];
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}
