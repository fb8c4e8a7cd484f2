//! The plan that every rank runs: instructions in order, and each value's place in an arena sized before the first step.
//!
//! A plan prints itself as text. That text is the debugging tool, and ranks compare it before the first step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use enmasse_tensor::{DType, Shape};

use crate::options::TREE;
use crate::{
    Arena, Bucket, Choices, FilterOrder, Init, Layout, Measured, MixtureInputs, Mode, Node, Op, Partition, Per, Phase,
    Precision, Recomputed, Role, Slot, Stage, TensorParallel, Update, UpdateOperands, Value, ValueId,
};

/// A tensor that outlives the step.
#[derive(Clone, Debug, PartialEq)]
pub struct StateTensor {
    /// Its name, derived from PyTorch's: `layer1.0.conv1.weight`, `layer1.0.bn1.running_mean`,
    /// `optimizer.momentum_buffer.layer1.0.conv1.weight`, `ema.layer1.0.conv1.weight`, `teacher.layer1.0.conv1.weight`.
    pub name: String,
    /// Stored shape.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// How the order of its elements relates to PyTorch's.
    pub layout: Layout,
    /// Its place.
    pub slot: Slot,
    /// Its initial values.
    pub init: Init,
}

/// A flat list of instructions over values whose places are known.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The model's name.
    pub model: String,
    /// The plan's purpose.
    pub mode: Mode,
    /// Samples per shard.
    pub batch: usize,
    /// Classes of the classifier, or outputs of a model of values.
    pub classes: usize,
    /// Shards of the global batch.
    pub shards: usize,
    /// The stage that it is of a model that several ranks compute one after another; `None` if it is the whole model.
    pub stage: Option<Stage>,
    /// The layers of which each rank has a part; `None` if each rank has all of them.
    pub tensor_parallel: Option<TensorParallel>,
    /// The precision in which activations are stored. The element type of each value reflects it.
    pub precision: Precision,
    /// The order in which the weights of convolutions are stored. Their shapes reflect it.
    pub filters: FilterOrder,
    /// All values, in the table that the instructions index.
    pub values: Vec<Value>,
    /// The place of each value; parallel to `values`.
    pub slots: Vec<Slot>,
    /// The instructions, in order; phases ascend.
    pub instructions: Vec<Node>,
    /// Algorithms chosen by measuring, by index of the instruction, under the device's names. The device chooses the others
    /// itself, by shapes.
    pub algorithms: BTreeMap<usize, Arc<str>>,
    /// The algorithm of the gradient sums over ranks.
    pub all_reduce: &'static str,
    /// Ranges of the gradient arena, in the order in which their sums start. Empty for a single shard.
    pub buckets: Vec<Bucket>,
    /// How the update is divided among ranks; `None` if each rank updates everything, or the first one alone.
    pub partition: Option<Partition>,
    /// Number of elements, from the start of the parameter, gradient and optimiser arenas, that the optimiser updates.
    pub trainable: usize,
    /// Size of each arena in bytes.
    pub arenas: Vec<(Arena, usize)>,
    /// Bytes that activations would need if none shared memory.
    pub unshared_activations: usize,
    /// What backward computes again; `None` where that was not asked for.
    pub recomputed: Option<Recomputed>,
    /// `u8 [batch, height, width, 3]`.
    pub images: ValueId,
    /// `i32 [batch]`; below 0 for a place without a sample.
    pub labels: ValueId,
    /// `i64 [batch]`.
    pub sample_indices: ValueId,
    /// Training on mixtures: their further inputs. `None` in evaluation.
    pub mixture: Option<MixtureInputs>,
    /// The values that the model is to predict of each sample, `f32 [batch, values]`; `None` if it predicts classes.
    pub targets: Option<ValueId>,
    /// Training on batches that may not be full: `f32 [1]`, the places of a global batch by its samples. The loss is the mean over the
    /// samples. `None` in evaluation.
    pub loss_weight: Option<ValueId>,
    /// `f32 [batch, classes]`; valid after the step in evaluation. Of [`crate::HeatmapPlans`] the heatmaps.
    pub logits: ValueId,
    /// Training: the result of [`crate::ops::ShareMetrics`], summed over shards after the reduce phase. `None` in evaluation:
    /// see `loss`, `correct` and `measured`.
    pub metrics: Option<ValueId>,
    /// This shard's loss, `f32 [1]`.
    pub loss: ValueId,
    /// This shard's hits, `f32 [1]`; `None` of values as targets.
    pub correct: Option<ValueId>,
    /// Other metrics, in the order of the options. Evaluation has only per-sample metrics.
    pub measured: Vec<Measured>,
    /// Activations that stay valid after the step, as [`Plan::KEPT`] with their place in this list.
    pub kept: Vec<ValueId>,
}

impl Plan {
    /// Every value starts at a multiple of this many bytes.
    pub const ALIGNMENT: usize = 64;

    /// The beginning of the names under which a program knows [`Plan::kept`]: `kept.0`, `kept.1`, ...
    pub const KEPT: &str = "kept.";

    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// Whether a result has elements of each sample, rather than one number for the shard.
    pub fn is_of_samples(&self, result: ValueId) -> bool {
        result == self.logits || self.kept.contains(&result)
    }

    /// The shape of a value.
    pub fn shape(&self, id: ValueId) -> &Shape {
        &self.values[id.0].shape
    }

    /// The place of a value.
    pub fn slot(&self, id: ValueId) -> Slot {
        self.slots[id.0]
    }

    /// The size of an arena in bytes; 0 if the plan does not have it.
    pub fn arena_bytes(&self, arena: Arena) -> usize {
        self.arenas.iter().find(|(a, _)| *a == arena).map_or(0, |(_, bytes)| *bytes)
    }

    /// The results of each shard for its own samples, `f32 [1]` each: loss, hits, and per-sample metrics.
    pub fn of_samples(&self) -> impl Iterator<Item = ValueId> {
        let metrics = self.measured.iter().filter(|metric| metric.per == Per::Sample);
        [self.loss].into_iter().chain(self.correct).chain(metrics.map(|metric| metric.value))
    }

    /// The norm of all gradients before clipping, `f32 [1]`; valid after the reduce phase. `None` if the plan neither clips
    /// by it nor measures it.
    pub fn gradient_norm(&self) -> Option<ValueId> {
        let node = self.instructions.iter().find(|node| matches!(node.op, Op::GradientNorm(_)))?;
        node.outputs.first().copied()
    }

    /// What [`crate::ops::Unscale`] found of the step, `f32 [2]`; valid after the reduce phase. `None` if the loss is not scaled.
    pub fn unscale(&self) -> Option<ValueId> {
        let node = self.instructions.iter().find(|node| matches!(node.op, Op::UpdateScale(_)))?;
        node.inputs.first().copied()
    }

    /// Bytes of the gradient arena, from its start, that these values fill without gaps but for alignment; `None` if they do
    /// not.
    pub fn adjacent_gradients(&self, values: &[ValueId]) -> Option<usize> {
        values.iter().try_fold(0, |end, &id| {
            let next = Slot { arena: Arena::Gradients, offset: end };
            let fits = self.slot(id) == next && self.value(id).dtype == DType::F32;
            fits.then(|| end + aligned_bytes(self.shape(id), DType::F32))
        })
    }

    /// The instructions of one phase.
    pub fn phase(&self, phase: Phase) -> &[Node] {
        let start = self.instructions.partition_point(|node| node.phase < phase);
        let end = self.instructions.partition_point(|node| node.phase <= phase);
        &self.instructions[start..end]
    }

    /// Height, width and channels of an image.
    pub fn image(&self) -> [usize; 3] {
        let shape = self.shape(self.images);
        [shape[1], shape[2], shape[3]]
    }

    /// Describes what a node of this plan computes, independent of its layer: its operation with the types of its operands
    /// and results, and `in tf32` after a matmul whose operands a device may round so. Without the statistics that a convolution gives
    /// beside its result: what is measured, and chosen by that, is the convolution.
    pub fn signature(&self, node: &Node) -> String {
        let types = |ids: &[ValueId]| {
            let types = ids.iter().map(|&id| format!("{}{}", self.value(id).dtype, self.shape(id)));
            types.collect::<Vec<_>>().join(", ")
        };
        let rounds = self.precision == Precision::Tf32 && node.op.matmuls().is_some();
        let precision = if rounds { " in tf32" } else { "" };
        let results = if node.op.may_give_statistics() { &node.outputs[..1] } else { &node.outputs };
        format!("{} ({}) -> ({}){precision}", node.op, types(&node.inputs), types(results))
    }

    /// Replaces the plan's choices with those of `choices` that apply to its operations.
    pub fn choose(&mut self, choices: &Choices) {
        let chosen = (self.instructions.iter().enumerate())
            .filter_map(|(index, node)| Some((index, choices.get(&self.signature(node))?.into())));
        self.algorithms = chosen.collect();
    }

    fn write_operand(&self, f: &mut fmt::Formatter<'_>, id: ValueId) -> fmt::Result {
        let value = self.value(id);
        match value.role {
            Role::Parameter(_)
            | Role::Buffer { .. }
            | Role::Optimizer { .. }
            | Role::Average { .. }
            | Role::LossScale { .. }
            | Role::Residual { .. }
            | Role::Teacher { .. }
            | Role::Input => f.write_str(&value.name),
            Role::Activation | Role::Gradient { .. } | Role::Carried => write!(f, "%{}", id.0),
        }
    }
}

/// Bytes of a tensor, rounded up to the alignment of arenas.
pub(crate) fn aligned_bytes(shape: &Shape, dtype: DType) -> usize {
    (shape.elements() * dtype.size()).next_multiple_of(Plan::ALIGNMENT)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &|_| "")
    }
}

impl Plan {
    /// The plan's text with a word after each instruction, such as the algorithm that a device chose. A choice by measuring
    /// replaces the word, and an empty word adds nothing.
    pub fn annotated<'a>(&'a self, words: &'a [String]) -> impl fmt::Display + 'a {
        fmt::from_fn(|f| self.write(f, &|index| words.get(index).map_or("", String::as_str)))
    }

    fn write<'a>(&self, f: &mut fmt::Formatter<'_>, word: &dyn Fn(usize) -> &'a str) -> fmt::Result {
        let mode = match self.mode {
            Mode::Train => "train",
            Mode::Evaluate => "evaluate",
        };
        let [height, width, channels] = self.image();
        write!(f, "plan {} {mode}: batch {} x {height}x{width}x{channels}, ", self.model, self.batch)?;
        match self.targets {
            None => write!(f, "classes {}", self.classes)?,
            Some(targets) => write!(f, "outputs {}, target values {}", self.classes, self.shape(targets).last())?,
        }
        write!(f, ", shards {}, precision {}, filters {}", self.shards, self.precision, self.filters)?;
        match self.all_reduce {
            TREE => writeln!(f)?,
            algorithm => writeln!(f, ", all-reduce {algorithm}")?,
        }
        if let Some(stage) = &self.stage {
            writeln!(f, "{stage}")?;
        }
        if let Some(cut) = &self.tensor_parallel {
            writeln!(f, "{cut}")?;
        }
        for (arena, bytes) in &self.arenas {
            writeln!(f, "arena {arena} {bytes} bytes")?;
        }
        if let Some(recomputed) = &self.recomputed {
            writeln!(f, "{recomputed}")?;
        }
        for (index, bucket) in self.buckets.iter().enumerate() {
            write!(f, "bucket {index} gradients[{}..{}]", bucket.start, bucket.end())?;
            if bucket.is_compressed() {
                write!(f, " in {} between nodes", bucket.sent)?;
            }
            if let Some(partition) = self.partition.as_ref().filter(|partition| index < partition.borders.len()) {
                for rank in 0..partition.ranks() {
                    let part = partition.part(index, rank);
                    write!(f, "{} rank {rank} {}..{}", if rank == 0 { ":" } else { "," }, part.start, part.end)?;
                }
            }
            writeln!(f)?;
        }
        for Measured { name, value, .. } in &self.measured {
            writeln!(f, "metric {name} %{}", value.0)?;
        }
        let mut phase = None;
        for (index, node) in self.instructions.iter().enumerate() {
            if phase != Some(node.phase) {
                phase = Some(node.phase);
                writeln!(f, "{}:", node.phase.name())?;
            }
            f.write_str("  ")?;
            for (i, &output) in node.outputs.iter().enumerate() {
                let (value, slot) = (self.value(output), self.slot(output));
                let comma = if i > 0 { ", " } else { "" };
                write!(f, "{comma}%{} {}{} @{}", output.0, value.dtype, value.shape, slot.arena)?;
                if slot.arena != Arena::Cache {
                    write!(f, "+{}", slot.offset)?;
                }
            }
            write!(f, "{}{} (", if node.outputs.is_empty() { "" } else { " = " }, node.op)?;
            for (i, &input) in node.inputs.iter().enumerate() {
                if i > 0 {
                    f.write_str(", ")?;
                }
                self.write_operand(f, input)?;
            }
            write!(f, ") # {}", node.layer)?;
            match (self.algorithms.get(&index), word(index)) {
                (Some(chosen), _) => writeln!(f, " by {chosen}, measured")?,
                (None, "") => writeln!(f)?,
                (None, word) => writeln!(f, " by {word}")?,
            }
        }
        Ok(())
    }
}

impl Update {
    /// The operands in `plan`, and the number of elements, from the start of the arenas, among which they are. State lies as
    /// [`Plan::updated_parts`] say.
    ///
    /// # Errors
    /// What a device cannot update: operands that do not lie as ranges of the arenas say.
    pub fn in_plan<'a>(&self, plan: &Plan, inputs: &'a [ValueId]) -> Result<(UpdateOperands<'a>, usize), String> {
        let kept = self.optimizer.state_names().len();
        let arity = || format!("{} operands, for {kept} tensors of state per parameter", inputs.len());
        let operands = self.operands(inputs).ok_or_else(arity)?;
        let offset = |&id: &ValueId| plan.slot(id).offset;
        let parts = plan.updated_parts();
        let of_state = |offset: usize| {
            let part = parts.iter().find(|part| part.elements.contains(&(offset / DType::F32.size())))?;
            Some(offset - part.elements.start * DType::F32.size() + part.state * DType::F32.size())
        };
        let lies = |ids: &[ValueId], arena: Arena, of: &dyn Fn(usize) -> Option<usize>| {
            let here = |id: &ValueId| plan.slot(*id).arena == arena && plan.value(*id).dtype == DType::F32;
            let expected = operands.parameters.iter().map(|id| of(offset(id)));
            ids.iter().all(here) && ids.iter().map(|id| Some(offset(id))).eq(expected)
        };
        let states = operands.state.iter().enumerate().all(|(slot, ids)| lies(ids, Arena::Optimizer(slot), &of_state));
        let [parameters, gradients] =
            [(operands.parameters, Arena::Parameters), (operands.gradients, Arena::Gradients)]
                .map(|(ids, arena)| lies(ids, arena, &Some));
        if !(parameters && gradients && states) {
            return Err("its operands lie at different offsets".into());
        }
        let ends = operands.parameters.iter().map(|id| offset(id) / DType::F32.size() + plan.shape(*id).elements());
        let end = ends.max().unwrap_or(0);
        if self.ranges.iter().any(|range| range.end() > end) {
            return Err("a range ends beyond its operands".into());
        }
        Ok((operands, end))
    }
}

/// The plans of one model. They share parameters and buffers, which have the same places in each plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plans {
    /// The training step; `None` if compiled for evaluation only.
    pub train: Option<Plan>,
    /// The evaluation step.
    pub evaluate: Plan,
    /// Tensors that outlive a step: parameters, buffers, optimiser state, averages.
    pub state: Vec<StateTensor>,
}

impl Plans {
    /// The plan of a mode.
    pub fn plan(&self, mode: Mode) -> Option<&Plan> {
        match mode {
            Mode::Train => self.train.as_ref(),
            Mode::Evaluate => Some(&self.evaluate),
        }
    }

    /// Calls [`Plan::choose`] on all plans.
    pub fn choose(&mut self, choices: &Choices) {
        self.train.iter_mut().chain([&mut self.evaluate]).for_each(|plan| plan.choose(choices));
    }

    /// Bytes that a device needs for an arena that serves all plans.
    pub fn arena_bytes(&self, arena: Arena) -> usize {
        self.train.iter().chain([&self.evaluate]).map(|plan| plan.arena_bytes(arena)).max().unwrap_or(0)
    }

    /// All arenas that any of the plans uses, with their sizes in bytes.
    pub fn arenas(&self) -> Vec<(Arena, usize)> {
        let plans = self.train.iter().chain([&self.evaluate]);
        let arenas: BTreeSet<Arena> = plans.flat_map(|plan| plan.arenas.iter().map(|(arena, _)| *arena)).collect();
        arenas.into_iter().map(|arena| (arena, self.arena_bytes(arena))).collect()
    }

    /// Bytes that all arenas take together, for one shard.
    pub fn bytes(&self) -> usize {
        self.arenas().into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// The model's classifier: the top-level module of its last parameter ([`crate::classifier_of`]).
    pub fn classifier(&self) -> Option<&str> {
        let parameters = self.state.iter().filter(|tensor| tensor.slot.arena == Arena::Parameters);
        crate::classifier_of(parameters.map(|tensor| tensor.name.as_str()))
    }

    /// The model's head: the layer of its last parameter.
    pub fn head(&self) -> Option<&str> {
        let last = self.state.iter().rfind(|tensor| tensor.slot.arena == Arena::Parameters)?;
        last.name.rsplit_once('.').map(|(layer, _)| layer)
    }

    /// The state tensor named `name`.
    pub fn find(&self, name: &str) -> Option<&StateTensor> {
        self.state.iter().find(|tensor| tensor.name == name)
    }
}
