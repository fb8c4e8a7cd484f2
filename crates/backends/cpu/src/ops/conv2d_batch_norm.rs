//! Convolution and the batch norm after it on the CPU: each piece of the result is normalised while it is in cache.

use enmasse_graph::ops::Conv2dBatchNorm;

use super::conv2d::with_convolution;
use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::algorithm::Algorithm;
use crate::batch_norm::{self, Forward};
use crate::conv::{Start, has_whole_pieces, winograd};
use crate::statistics::Moments;
use crate::sweep::Rows;

impl OnCpu for Conv2dBatchNorm {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let Conv2dBatchNorm { conv, epsilon, activation } = *self;
        let shape = o.conv(conv, Side::Input(0), Side::Output(0))?;
        let (x, w, y) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
        let moments = Moments { mean: o.input(2)?, variance: o.input(3)? };
        let (weight, bias, residual) = (o.input(4)?, o.input(5)?, o.optional(6)?);
        let [height, width, channels] = shape.output;
        let size = Rows { rows: shape.batch * height * width, channels };
        let norm = Forward { size, x: y, moments, weight, bias, residual, y, epsilon, activation };
        let (algorithm, isa) = (o.algorithm(&shape, winograd::pays::<E>), o.preparation.kernels.isa);
        let in_pieces = algorithm != Algorithm::Direct || has_whole_pieces(&shape, isa);
        let instruction = with_convolution!(E, algorithm, &shape, isa, false, conv => if in_pieces {
            let Workspace { shared, private } = conv.workspace();
            kernel!(Workspace { shared: shared + channels, private }, c => {
                batch_norm::normalize_pieces(&norm, c.shared.part(shared, channels), |epilogue| {
                    conv.run(c, x, w, y, Start::Zero, Some(epilogue));
                });
            })
        } else {
            kernel!(conv.workspace().max(size.workspace()), c => {
                conv.run(c, x, w, y, Start::Zero, None);
                batch_norm::normalize(c, &norm);
            })
        });
        Ok(instruction.by(algorithm.name()))
    }
}
