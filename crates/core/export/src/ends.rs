//! What a model takes and gives: images as a program has them, and what it wants to know of them.

use enmasse_graph::{Forward, Op};
use enmasse_onnx::{Attribute, Dimension, ElementType, GraphBuilder, Tensor, Value};

/// The dimension of images.
const BATCH: Dimension = Dimension::Named("batch");

/// How a model takes images of its size. It normalises them itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageInput {
    /// Bytes `[batch, height, width, channels]`: pixels as decoders give them.
    #[default]
    Uint8Nhwc,
    /// Numbers from 0 to 1, `[batch, channels, height, width]`: what torchvision's `ToTensor` gives.
    FloatNchw,
}

impl ImageInput {
    /// All of them.
    pub const ALL: [ImageInput; 2] = [ImageInput::Uint8Nhwc, ImageInput::FloatNchw];

    /// The name in options and metadata.
    pub const fn name(self) -> &'static str {
        match self {
            ImageInput::Uint8Nhwc => "uint8-nhwc",
            ImageInput::FloatNchw => "float-nchw",
        }
    }

    /// Adds the input `images`, with as many channels as the model reads.
    pub(crate) fn add(self, onnx: &mut GraphBuilder, forward: &Forward) -> Value {
        let shape = forward.graph.shape(forward.images);
        let channels = forward.graph.nodes.iter().find_map(|node| match &node.op {
            Op::Normalize(normalize) => Some(normalize.mean.len()),
            _ => None,
        });
        let [height, width] = [shape[1], shape[2]].map(Dimension::Fixed);
        let channels = Dimension::Fixed(channels.unwrap_or(shape[3]));
        match self {
            ImageInput::Uint8Nhwc => onnx.input("images", ElementType::Uint8, &[BATCH, height, width, channels]),
            ImageInput::FloatNchw => onnx.input("images", ElementType::Float, &[BATCH, channels, height, width]),
        }
    }
}

/// What a model gives for each image, and how it follows from the logits.
#[derive(Clone, Debug, PartialEq)]
pub enum Outputs {
    /// `probabilities`: the softmax of the logits divided by a temperature.
    Softmax {
        /// The divisor.
        temperature: f64,
    },
    /// `probabilities`: the sigmoid of each logit divided by a temperature.
    Sigmoid {
        /// The divisor.
        temperature: f64,
    },
    /// `values`: each output times a std plus a mean.
    Values {
        /// Added to each.
        mean: Vec<f64>,
        /// Factor of each.
        std: Vec<f64>,
    },
}

impl Outputs {
    /// The name of the output.
    pub const fn name(&self) -> &'static str {
        match self {
            Outputs::Softmax { .. } | Outputs::Sigmoid { .. } => "probabilities",
            Outputs::Values { .. } => "values",
        }
    }

    /// Adds the output, `[batch, classes]`.
    pub(crate) fn add(&self, onnx: &mut GraphBuilder, logits: &Value, classes: usize) {
        onnx.enter(self.name());
        let mut divided = |temperature: f64| match temperature {
            1.0 => logits.clone(),
            temperature => {
                let factor = onnx.constant("inverse_temperature", Tensor::floats(&[], &[(1.0 / temperature) as f32]));
                onnx.node("Mul", &[logits, &factor], &[])
            }
        };
        let result = match self {
            Outputs::Softmax { temperature } => {
                let logits = divided(*temperature);
                onnx.node("Softmax", &[&logits], &[("axis", Attribute::Int(1))])
            }
            Outputs::Sigmoid { temperature } => {
                let logits = divided(*temperature);
                onnx.node("Sigmoid", &[&logits], &[])
            }
            Outputs::Values { mean, std } => {
                let [std, mean] = [("std", std), ("mean", mean)].map(|(name, values)| {
                    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
                    onnx.constant(name, Tensor::floats(&[values.len()], &values))
                });
                let scaled = onnx.node("Mul", &[logits, &std], &[]);
                onnx.node("Add", &[&scaled, &mean], &[])
            }
        };
        onnx.output(self.name(), &result, ElementType::Float, &[BATCH, Dimension::Fixed(classes)]);
    }
}
