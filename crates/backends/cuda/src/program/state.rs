//! State tensors: read and written as f32 in stored order.

use enmasse_graph::StateTensor;

use super::arenas::State;
use crate::CudaError;
use crate::driver::Stream;

impl State {
    /// Sets a tensor, after all work of the stream.
    pub fn write(&self, stream: &Stream, tensor: &StateTensor, values: &[f32]) -> Result<(), CudaError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.arena(tensor.slot.arena)?.write(stream, tensor.slot.offset, &bytes)
    }

    /// Reads a tensor, after all work of the stream.
    pub fn read(&self, stream: &Stream, tensor: &StateTensor) -> Result<Vec<f32>, CudaError> {
        let mut bytes = vec![0; tensor.shape.elements() * size_of::<f32>()];
        self.arena(tensor.slot.arena)?.read(stream, tensor.slot.offset, &mut bytes)?;
        Ok(floats(&bytes))
    }
}

/// The floats that bytes hold.
pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| f32::from_ne_bytes(*word)).collect()
}
