//! Statistics and sums over all shards, on the CPU.

use enmasse_graph::ops::{SyncStatistics, SyncSum};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, fallible};
use crate::collectives::{StatisticsExchange, SumExchange};
use crate::statistics::Moments;

impl OnCpu for SyncStatistics {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let moments = |side: fn(usize) -> Side| -> Result<Vec<Moments>, DeviceError> {
            let [means, variances] = [o.of_all(side(0))?, o.of_all(side(1))?];
            Ok(means.into_iter().zip(variances).map(|(mean, variance)| Moments { mean, variance }).collect())
        };
        let (own, all) = (moments(Side::Input)?, moments(Side::Output)?);
        let exchange = StatisticsExchange::new(&o.preparation.map, self.count, own, all);
        Ok(fallible!(exchange.workspace(), machine => exchange.run(machine)))
    }
}

impl OnCpu for SyncSum {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let values = [o.of_all(Side::Input(0))?, o.of_all(Side::Input(1))?];
        let sums = [o.of_all(Side::Output(0))?, o.of_all(Side::Output(1))?];
        let shards = o.preparation.map.shards();
        let partials = o.preparation.schedule.partials.clone();
        let exchange = SumExchange { shards, partials, values, sums };
        Ok(fallible!(exchange.workspace(), machine => exchange.run(machine)))
    }
}
