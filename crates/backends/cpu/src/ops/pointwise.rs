//! Expressions at each element on the CPU.

use enmasse_graph::ops::Pointwise;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, kernel};
use crate::pointwise::{self, Steps};
use crate::region::Region;

impl OnCpu for Pointwise {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let formula = self.formula();
        let [inputs, outputs] = [&o.node.inputs, &o.node.outputs].map(Vec::len);
        if inputs < formula.operands() || outputs != formula.results().len() {
            return Err(o.unsupported());
        }
        let operands = (0..inputs).map(|index| o.input(index)).collect::<Result<Vec<Region<E>>, _>>()?;
        let results = (0..outputs).map(|index| o.output(index)).collect::<Result<Vec<Region<E>>, _>>()?;
        let steps = Steps::new(formula);
        Ok(kernel!(steps.workspace(), c => pointwise::pointwise(c, &steps, &operands, &results)))
    }
}
