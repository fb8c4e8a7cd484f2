//! Convolution and the batch norm after it on the CPU: each piece of the result is normalised while it is in cache. So are the pieces of
//! several of them, of which only the last has its result stored.

use enmasse_graph::Op;
use enmasse_graph::ops::Conv2dBatchNorm;

use super::conv2d::with_convolution;
use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::algorithm::Algorithm;
use crate::batch_norm::{self, Forward};
use crate::conv::{Link, Start, Strips, has_whole_pieces, winograd};
use crate::statistics::Moments;
use crate::sweep::Rows;

impl OnCpu for Conv2dBatchNorm {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let Link { shape, weights: w, norm } = link::<E>(self, o)?;
        let algorithm = o.algorithm(&shape, winograd::pays::<E>);
        if o.is_in_cache(Side::Output(0))? {
            // The last convolution of the chain computes all of them.
            return Ok(Instruction::nothing().by(algorithm.name()));
        }
        if o.is_in_cache(Side::Input(0))? {
            return Ok(chain::<E>(o)?.by(algorithm.name()));
        }
        let x = o.input::<E>(0)?;
        let y = norm.y;
        let size = norm.size;
        let channels = norm.size.channels;
        let isa = o.preparation.kernels.isa;
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

/// The operands of a node, but for what it reads.
fn link<E: Element>(op: &Conv2dBatchNorm, o: &Operand) -> Result<Link<E>, DeviceError> {
    let Conv2dBatchNorm { conv, epsilon, activation } = *op;
    let shape = o.conv(conv, Side::Input(0), Side::Output(0))?;
    let (weights, y) = (o.input(1)?, o.output(0)?);
    let moments = Moments { mean: o.input(2)?, variance: o.input(3)? };
    let (weight, bias, residual) = (o.input(4)?, o.input(5)?, o.optional(6)?);
    let [height, width, channels] = shape.output;
    let size = Rows { rows: shape.batch * height * width, channels };
    let norm = Forward { size, x: y, moments, weight, bias, residual, y, epsilon, activation };
    Ok(Link { shape, weights, norm })
}

/// The instruction of the last node of a chain.
fn chain<E: Element>(o: &Operand) -> Result<Instruction, DeviceError> {
    let mut links = Vec::new();
    let mut next = Some(Operand { ..*o });
    let mut x = o.input(0)?;
    while let Some(o) = next {
        let Op::Conv2dBatchNorm(op) = &o.node.op else { return Err(o.unsupported()) };
        links.insert(0, link::<E>(op, &o)?);
        x = o.input(0)?;
        next = if o.is_in_cache(Side::Input(0))? { o.producer(0) } else { None };
    }
    let strips = Strips::new(links, o.preparation.kernels.isa);
    Ok(kernel!(strips.workspace(), c => strips.run(c, x)))
}
