//! The messages of `onnx.proto`, with the numbers of their fields.

use enmasse_protobuf::Message;

use crate::graph::{Attribute, Dimension, ElementType, Node, Tensor, ValueInfo};
use crate::{Graph, IR_VERSION, Model, OPSET};

impl Model<'_> {
    /// `ModelProto`.
    pub(crate) fn encode(&self) -> Message<'_> {
        let model = Message::new()
            .varint(1, IR_VERSION)
            .bytes(2, self.producer)
            .bytes(3, self.version)
            .message(7, graph(&self.graph))
            // OperatorSetIdProto: the default domain has no name.
            .message(8, Message::new().bytes(1, "").varint(2, OPSET));
        // StringStringEntryProto.
        let entry = |(key, value): &(String, String)| Message::new().bytes(1, key).bytes(2, value);
        self.metadata.iter().map(entry).fold(model, |model, entry| model.message(14, entry))
    }
}

/// `GraphProto`.
fn graph(graph: &Graph) -> Message<'_> {
    let message = graph.nodes.iter().map(node).fold(Message::new(), |message, node| message.message(1, node));
    let message = message.bytes(2, &graph.name);
    let tensors = graph.constants.iter().map(|(value, constant)| tensor(&value.0, constant));
    let message = tensors.fold(message, |message, tensor| message.message(5, tensor));
    let message = graph.inputs.iter().map(value_info).fold(message, |message, input| message.message(11, input));
    graph.outputs.iter().map(value_info).fold(message, |message, output| message.message(12, output))
}

/// `NodeProto`.
fn node(node: &Node) -> Message<'_> {
    let message = node.inputs.iter().fold(Message::new(), |message, input| message.bytes(1, &input.0));
    let message = message.bytes(2, &node.output.0).bytes(3, &node.name).bytes(4, node.operator);
    let attributes = node.attributes.iter().map(|(name, value)| attribute(name, value));
    attributes.fold(message, |message, attribute| message.message(5, attribute))
}

/// `AttributeProto`.
fn attribute<'a>(name: &str, value: &Attribute) -> Message<'a> {
    let message = Message::new().bytes(1, name);
    // A negative number is the same as an unsigned one of 64 bits.
    match value {
        Attribute::Float(value) => message.float(2, *value).varint(20, 1),
        Attribute::Int(value) => message.varint(3, *value as u64).varint(20, 2),
        Attribute::Ints(values) => {
            values.iter().fold(message, |message, value| message.varint(8, *value as u64)).varint(20, 7)
        }
    }
}

/// `TensorProto`.
fn tensor<'a>(name: &str, tensor: &'a Tensor) -> Message<'a> {
    let message = tensor.dims.iter().fold(Message::new(), |message, dim| message.varint(1, *dim as u64));
    message.varint(2, data_type(tensor.element)).bytes(8, name).long_bytes(9, &tensor.bytes)
}

/// `ValueInfoProto`, with `TypeProto`, `TensorShapeProto` and its dimensions.
fn value_info(info: &ValueInfo) -> Message<'_> {
    let dimension = |dimension: &Dimension| match dimension {
        Dimension::Fixed(size) => Message::new().varint(1, *size as u64),
        Dimension::Named(name) => Message::new().bytes(2, name),
    };
    let shape = info.dims.iter().map(dimension).fold(Message::new(), |shape, dimension| shape.message(1, dimension));
    let tensor = Message::new().varint(1, data_type(info.element)).message(2, shape);
    Message::new().bytes(1, &info.value.0).message(2, Message::new().message(1, tensor))
}

/// `TensorProto.DataType`.
fn data_type(element: ElementType) -> u64 {
    match element {
        ElementType::Float => 1,
        ElementType::Uint8 => 2,
        ElementType::Int8 => 3,
        ElementType::Int32 => 6,
        ElementType::Int64 => 7,
    }
}
