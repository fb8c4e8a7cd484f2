//! Operations on images: from bytes to numbers, convolutions and pooling.

use enmasse_graph::Window;
use enmasse_graph::ops::{AdaptiveAvgPool, AvgPool, Conv2d, MaxPool, Normalize};
use enmasse_onnx::{Attribute, Tensor, Value};

use super::ToOnnx;
use crate::translation::Translation;
use crate::{ExportError, ImageInput};

impl ToOnnx for Normalize {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let mut x = node.operand(0)?;
        let mut scale = 1.0;
        if node.input == ImageInput::Uint8Nhwc {
            x = node.onnx.node("Cast", &[&x], &[("to", Attribute::Int(1))]);
            x = node.transpose(&x, &[0, 3, 1, 2]);
            scale = 255.0;
        }
        // One product and one sum, with constants that are rounded once.
        let channels = self.mean.iter().zip(&self.std).map(|(mean, std)| (f64::from(*mean), f64::from(*std)));
        let (factors, shifts): (Vec<f32>, Vec<f32>) =
            channels.map(|(mean, std)| ((1.0 / (scale * std)) as f32, (-mean / std) as f32)).unzip();
        let dims = [self.mean.len(), 1, 1];
        let factors = node.constant("factors", Tensor::floats(&dims, &factors));
        let shifts = node.constant("shifts", Tensor::floats(&dims, &shifts));
        let product = node.plain("Mul", &[&x, &factors]);
        let y = node.plain("Add", &[&product, &shifts]);
        node.give(y)
    }
}

impl ToOnnx for Conv2d {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.activation(0)?;
        let operands: Vec<Value> = [x].into_iter().chain(node.weights_and_bias()?).collect();
        let mut attributes = window(&self.window);
        attributes.push(("dilations", Attribute::ints(self.window.dilation)));
        attributes.push(("group", Attribute::Int(self.groups as i64)));
        let y = node.onnx.node("Conv", &operands.iter().collect::<Vec<_>>(), &attributes);
        node.give(y)
    }
}

impl ToOnnx for MaxPool {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let mut attributes = window(&self.0);
        attributes.push(("dilations", Attribute::ints(self.0.dilation)));
        let y = node.onnx.node("MaxPool", &[&x], &attributes);
        node.give(y)
    }
}

impl ToOnnx for AvgPool {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let mut attributes = window(&self.0);
        attributes.push(("count_include_pad", Attribute::Int(1)));
        let y = node.onnx.node("AveragePool", &[&x], &attributes);
        node.give(y)
    }
}

impl ToOnnx for AdaptiveAvgPool {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let input = [node.shape(0)[1], node.shape(0)[2]];
        let y = if self.output == [1, 1] {
            node.plain("GlobalAveragePool", &[&x])
        } else if [0, 1].iter().all(|&axis| input[axis].is_multiple_of(self.output[axis])) {
            let kernel = [0, 1].map(|axis| input[axis] / self.output[axis]);
            let attributes = ["kernel_shape", "strides"].map(|name| (name, Attribute::ints(kernel)));
            node.onnx.node("AveragePool", &[&x], &attributes)
        } else {
            // Windows of several sizes: the mean over a rectangle is a mean over columns of means over rows.
            let [rows, columns] = [0, 1].map(|axis| means(input[axis], self.output[axis]));
            let rows = node.constant("rows", Tensor::floats(&[self.output[0], input[0]], &rows));
            let columns = node.constant("columns", Tensor::floats(&[self.output[1], input[1]], &columns));
            let columns = node.transpose(&columns, &[1, 0]);
            let narrow = node.plain("MatMul", &[&x, &columns]);
            node.plain("MatMul", &[&rows, &narrow])
        };
        node.give(y)
    }
}

/// The matrix `[output, input]` of means over one axis, as [`AdaptiveAvgPool`] has them.
fn means(input: usize, output: usize) -> Vec<f32> {
    let row = |i: usize| {
        let range = i * input / output..((i + 1) * input).div_ceil(output);
        let share = 1.0 / range.len() as f32;
        (0..input).map(move |place| if range.contains(&place) { share } else { 0.0 })
    };
    (0..output).flat_map(row).collect()
}

/// The attributes that convolutions and pooling share.
fn window(window: &Window) -> Vec<(&'static str, Attribute)> {
    let Window { kernel, stride, padding: [[top, bottom], [left, right]], .. } = *window;
    vec![
        ("kernel_shape", Attribute::ints(kernel)),
        ("strides", Attribute::ints(stride)),
        ("pads", Attribute::ints([top, left, bottom, right])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_those_of_adaptive_pooling() {
        let third = 1.0 / 3.0;
        assert_eq!(means(5, 2), [third, third, third, 0.0, 0.0, 0.0, 0.0, third, third, third]);
        assert_eq!(means(1, 2), [1.0, 1.0]);
    }
}
