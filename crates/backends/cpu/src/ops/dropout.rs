//! Dropout and drop path on the CPU.

use enmasse_graph::ops::Dropout;
use enmasse_tensor::random::key;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::elementwise::{self, RowPart};
use crate::region::Region;
use crate::sweep::Piece;

impl OnCpu for Dropout {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let key = key(self.seed, &format!("dropout {}", self.layer));
        let layer = elementwise::Dropout { key, probability: self.probability };
        let samples = o.batch_input(1, |batch| Region::of(batch.sample_indices()).cast())?;
        let x = o.input::<E>(0)?;
        let y = o.output(0)?;
        if self.per_sample {
            let batch = o.preparation.plan.batch;
            let elements = x.len() / o.preparation.plan.batch.max(1);
            let pieces = Piece::cut((0..batch).map(|sample| sample * elements..(sample + 1) * elements));
            return Ok(kernel!(Workspace::default(), (c, step) => {
                elementwise::drop_path(c, layer, step.epoch, samples.of(step), &pieces, [x, y]);
            }));
        }
        if let Some(whole) = self.cut_channels {
            let count = o.shape(Side::Input(0))?.last();
            return Ok(Instruction::new(Workspace::default(), move |machine, step| {
                let part = RowPart { first: machine.groups.parts()?.rank() * count, count, whole };
                // SAFETY: as for `kernel`.
                unsafe {
                    elementwise::dropout_part(&mut machine.context, layer, step.epoch, samples.of(step), part, x, y);
                }
                Ok(())
            }));
        }
        Ok(
            kernel!(Workspace::default(), (c, step) => elementwise::dropout(c, layer, step.epoch, samples.of(step), x, y)),
        )
    }
}
