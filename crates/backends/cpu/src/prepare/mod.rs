//! Turns a plan into prepared instructions: operands become addresses, and every matmul is divided into tasks.

mod operand;

use std::ops::Range;

use enmasse_comm::ShardMap;
use enmasse_device::{DeviceError, ShardSchedule};
use enmasse_graph::{Arena, FilterOrder, Node, Plan, Precision, with_op};
use enmasse_tensor::{Bf16, DType};

use crate::algorithm::Algorithm;
use crate::element::Element;
use crate::instruction::Instruction;
use crate::isa::Isa;
use crate::ops::OnCpu;
use crate::region::Region;
use crate::workspace::Workspace;
pub(crate) use operand::{Operand, Side};

/// The options that decide which kernels a plan gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelOptions {
    pub isa: Isa,
    /// See [`crate::CpuOptions::exact`].
    pub exact: bool,
}

/// A plan ready to run.
pub(crate) struct Prepared {
    /// The instructions of each local shard, parallel to those of the plan. An instruction that runs once for all
    /// shards is in the first shard's list, and the other lists have an empty one in its place.
    pub shards: Vec<Vec<Instruction>>,
    /// Workspace that is enough for any instruction.
    pub workspace: Workspace,
}

/// The data, apart from the plan, that determines an operand's address.
pub(crate) struct Preparation<'a> {
    pub plan: &'a Plan,
    /// Where each arena begins; for gradients and activations, the first one.
    pub start: &'a dyn Fn(Arena) -> *mut u8,
    pub kernels: KernelOptions,
    pub schedule: &'a ShardSchedule,
    /// Bytes from one arena of gradients, and of activations, to the next.
    pub strides: [usize; 2],
    /// All shards over all ranks.
    pub map: ShardMap,
}

impl<'a> Preparation<'a> {
    /// A preparation for inspecting or measuring instructions: of one shard, in arenas that begin at given addresses.
    pub(crate) fn sample(
        plan: &'a Plan,
        start: &'a dyn Fn(Arena) -> *mut u8,
        kernels: KernelOptions,
        schedule: &'a ShardSchedule,
    ) -> Result<Self, DeviceError> {
        let map = ShardMap::new(plan.shards, 1).map_err(|error| DeviceError::Unsupported(error.to_string()))?;
        Ok(Preparation { plan, start, kernels, schedule, strides: [0; 2], map })
    }

    /// Prepares every instruction of the plan for every local shard.
    pub(crate) fn run(&self) -> Result<Prepared, DeviceError> {
        let plan = self.plan;
        if plan.filters != FilterOrder::Hwio {
            let (found, own) = (plan.filters, FilterOrder::Hwio);
            let reason = format!("the cpu keeps filters in the order {own}, not {found}: compile for the cpu's target");
            return Err(DeviceError::Unsupported(reason));
        }
        if let Precision::Tf32 | Precision::F16 = plan.precision {
            let reason = format!("the cpu has no {}: use `precision = bf16` or f32", plan.precision);
            return Err(DeviceError::Unsupported(reason));
        }
        let prepare = |local: usize, index: usize, node: &Node| {
            if local > 0 && (node.op.is_joint() || !node.phase.is_of_a_shard()) {
                return Ok(Instruction::nothing());
            }
            let chosen = Algorithm::chosen(plan, index)?;
            let operand = Operand { preparation: self, local, node, chosen };
            let instruction = match operand.stores(DType::Bf16) {
                true => self.instruction::<Bf16>(&operand),
                false => self.instruction::<f32>(&operand),
            }?;
            match chosen {
                Some(chosen) if chosen.name() != instruction.algorithm => Err(operand.unsupported()),
                _ => Ok(instruction),
            }
        };
        let of_shard = |local: usize| {
            let nodes = plan.instructions.iter().enumerate();
            nodes.map(|(index, node)| prepare(local, index, node)).collect::<Result<Vec<_>, _>>()
        };
        let shards = self.local().map(of_shard).collect::<Result<Vec<_>, _>>()?;
        let workspace = shards.iter().flatten().fold(Workspace::default(), |workspace, i| workspace.max(i.workspace));
        Ok(Prepared { shards, workspace })
    }

    /// The local shards, as indices into the schedule.
    pub(crate) fn local(&self) -> Range<usize> {
        0..self.schedule.shards.len()
    }

    /// Where an arena of a local shard begins.
    pub(crate) fn arena(&self, arena: Arena, local: usize) -> *mut u8 {
        let [gradients, activations] = self.strides;
        let offset = match arena {
            Arena::Gradients => gradients * self.schedule.shards[local].slot,
            Arena::Activations => activations * self.schedule.activations_of(local),
            Arena::Input | Arena::Cache => 0,
            Arena::Parameters | Arena::Buffers | Arena::Optimizer(_) | Arena::Average => 0,
            Arena::LossScale | Arena::Residuals | Arena::Teacher => 0,
        };
        (self.start)(arena).wrapping_add(offset)
    }

    /// `elements` f32 values of a local shard's arena, from `start`.
    pub(crate) fn range(&self, arena: Arena, local: usize, start: usize, elements: usize) -> Region<f32> {
        Region::new(self.arena(arena, local).cast::<f32>().wrapping_add(start), elements)
    }

    /// The instruction of a node whose activations are stored as `E`.
    fn instruction<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        if !o.node.op.takes(o.node.inputs.len(), o.node.outputs.len()) {
            return Err(o.unsupported());
        }
        with_op!(&o.node.op, op => op.prepare::<E>(o))
    }
}
