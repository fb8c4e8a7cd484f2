//! A graph: values, constants, and the nodes that compute values.

use std::collections::HashMap;

/// The element types in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit floating point.
    Float,
    /// Bytes.
    Uint8,
    /// 8-bit integers with a sign.
    Int8,
    /// 32-bit integers.
    Int32,
    /// 64-bit integers, which shapes and axes are.
    Int64,
}

/// A dimension of an input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Always the same.
    Fixed(usize),
    /// Chosen by who runs the model; dimensions of one name are equal.
    Named(&'static str),
}

/// A constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub(crate) element: ElementType,
    pub(crate) dims: Vec<usize>,
    /// The elements, little endian.
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    /// Numbers in row-major order.
    ///
    /// # Panics
    /// If the shape has another number of elements.
    pub fn floats(dims: &[usize], values: &[f32]) -> Self {
        assert_eq!(dims.iter().product::<usize>(), values.len(), "a tensor of shape {dims:?}");
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { element: ElementType::Float, dims: dims.to_vec(), bytes }
    }

    /// Bytes in row-major order, which are integers without a sign.
    pub fn bytes(dims: &[usize], values: &[u8]) -> Self {
        Tensor { element: ElementType::Uint8, dims: dims.to_vec(), bytes: values.to_vec() }
    }

    /// Integers of 8 bits in row-major order.
    pub fn int8s(dims: &[usize], values: &[i8]) -> Self {
        let bytes = values.iter().map(|value| value.cast_unsigned()).collect();
        Tensor { element: ElementType::Int8, dims: dims.to_vec(), bytes }
    }

    /// A list of integers of 32 bits.
    pub fn int32s(values: &[i32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { element: ElementType::Int32, dims: vec![values.len()], bytes }
    }

    /// An integer.
    pub fn integer(value: i64) -> Self {
        Tensor { dims: Vec::new(), ..Tensor::integers(&[value]) }
    }

    /// A list of integers.
    pub fn integers(values: &[i64]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { element: ElementType::Int64, dims: vec![values.len()], bytes }
    }
}

/// An attribute of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A number.
    Float(f32),
    /// An integer.
    Int(i64),
    /// Several integers.
    Ints(Vec<i64>),
}

impl Attribute {
    /// Several integers.
    pub fn ints(values: impl IntoIterator<Item = usize>) -> Self {
        Attribute::Ints(values.into_iter().map(|value| value as i64).collect())
    }
}

/// A value of the graph that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(pub(crate) String);

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) operator: &'static str,
    pub(crate) inputs: Vec<Value>,
    pub(crate) output: Value,
    pub(crate) attributes: Vec<(&'static str, Attribute)>,
}

/// An input or output.
#[derive(Clone, Debug)]
pub(crate) struct ValueInfo {
    pub(crate) value: Value,
    pub(crate) element: ElementType,
    pub(crate) dims: Vec<Dimension>,
}

/// What a model computes.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) inputs: Vec<ValueInfo>,
    pub(crate) outputs: Vec<ValueInfo>,
    pub(crate) constants: Vec<(Value, Tensor)>,
    pub(crate) nodes: Vec<Node>,
}

impl Graph {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }
}

/// Builds a [`Graph`] in the order in which it is computed.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    /// The part of the model to which new nodes belong.
    layer: String,
    /// How often each name was wanted.
    names: HashMap<String, usize>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: &str) -> Self {
        GraphBuilder { graph: Graph { name: name.to_owned(), ..Graph::default() }, ..GraphBuilder::default() }
    }

    /// Names the part of the model to which new nodes belong.
    pub fn enter(&mut self, layer: &str) {
        layer.clone_into(&mut self.layer);
    }

    /// Adds an input of the model.
    pub fn input(&mut self, name: &str, element: ElementType, dims: &[Dimension]) -> Value {
        let value = self.value(name);
        self.graph.inputs.push(ValueInfo { value: value.clone(), element, dims: dims.to_vec() });
        value
    }

    /// Adds a constant.
    pub fn constant(&mut self, name: &str, tensor: Tensor) -> Value {
        let value = self.value(name);
        self.graph.constants.push((value.clone(), tensor));
        value
    }

    /// Adds a node of one of ONNX's operators. Its first result is the value; others are left out.
    pub fn node(
        &mut self,
        operator: &'static str,
        inputs: &[&Value],
        attributes: &[(&'static str, Attribute)],
    ) -> Value {
        let Value(name) = self.value(&format!("{}/{operator}", self.layer));
        let output = Value(name.clone());
        self.add(name, operator, inputs, output.clone(), attributes.to_vec());
        output
    }

    /// Makes a value an output of the model, under this name.
    pub fn output(&mut self, name: &str, value: &Value, element: ElementType, dims: &[Dimension]) {
        let output = self.value(name);
        self.add(format!("{}/Identity", output.0), "Identity", &[value], output.clone(), Vec::new());
        self.graph.outputs.push(ValueInfo { value: output, element, dims: dims.to_vec() });
    }

    /// The graph.
    pub fn finish(self) -> Graph {
        self.graph
    }

    fn add(
        &mut self,
        name: String,
        operator: &'static str,
        inputs: &[&Value],
        output: Value,
        attributes: Vec<(&'static str, Attribute)>,
    ) {
        let inputs = inputs.iter().map(|&input| input.clone()).collect();
        self.graph.nodes.push(Node { name, operator, inputs, output, attributes });
    }

    /// A value of this name, or of it with a number if there is one already.
    fn value(&mut self, name: &str) -> Value {
        let mut unique = name.to_owned();
        loop {
            match self.names.get_mut(&unique) {
                None => {
                    self.names.insert(unique.clone(), 1);
                    return Value(unique);
                }
                Some(uses) => {
                    *uses += 1;
                    unique = format!("{unique}_{uses}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut graph = GraphBuilder::new("net");
        let mut name = |name: &str| graph.value(name).0;
        assert_eq!([name("a"), name("a"), name("a_2"), name("a"), name("b")], ["a", "a_2", "a_2_2", "a_3", "b"]);
        graph.enter("layer1.0");
        let x = graph.input("x", ElementType::Float, &[]);
        let found = [0, 1].map(|_| graph.node("Relu", &[&x], &[]).0);
        assert_eq!(found, ["layer1.0/Relu", "layer1.0/Relu_2"]);
    }
}
