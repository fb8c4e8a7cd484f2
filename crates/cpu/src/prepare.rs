//! From a plan to prepared instructions: operands become addresses, and every product is cut into tasks.

use std::ops::Range;

use enmasse_device::DeviceError;
use enmasse_graph::{Arena, Node, NormStatistics, Op, Phase, Plan, Rectifier, ValueId};
use enmasse_tensor::random::key;

use crate::batch_norm::{Forward, Gradient, Moments, Rows};
use crate::conv::{
    ConvShape, Depthwise, DepthwiseGradient, Gather, Start, WeightGradient, Winograd, WinogradGradient, winograd,
};
use crate::elementwise::{Dropout, NormalizeTable};
use crate::instruction::Instruction;
use crate::isa::Isa;
use crate::loss::CrossEntropy;
use crate::optimizer::Operands;
use crate::pooling::{Average, PoolShape};
use crate::region::Region;
use crate::scratch::Scratch;

/// A plan ready to run.
pub(crate) struct Prepared {
    pub instructions: Vec<Instruction>,
    /// Which instructions each phase has, by its place in [`Phase::ALL`].
    pub phases: [Range<usize>; 6],
    /// Scratch that serves every instruction.
    pub scratch: Scratch,
}

/// What an operand's address depends on beside the plan.
pub(crate) struct Preparation<'a> {
    pub plan: &'a Plan,
    /// Where each arena begins.
    pub arena: &'a dyn Fn(Arena) -> *mut u8,
    pub isa: Isa,
    /// Whether convolutions are direct sums, whatever is faster.
    pub exact: bool,
    /// The shard this program hosts.
    pub shard: usize,
}

impl Preparation<'_> {
    /// Prepares every instruction of the plan.
    pub(crate) fn run(&self) -> Result<Prepared, DeviceError> {
        let plan = self.plan;
        let instructions = plan.instructions.iter().map(|node| self.node(node)).collect::<Result<Vec<_>, _>>()?;
        let scratch = instructions.iter().fold(Scratch::default(), |scratch, i| scratch.max(i.scratch()));
        let phases = Phase::ALL.map(|phase| {
            let start = plan.instructions.partition_point(|node| node.phase < phase);
            start..plan.instructions.partition_point(|node| node.phase <= phase)
        });
        Ok(Prepared { instructions, phases, scratch })
    }

    /// The memory of a value.
    pub(crate) fn region<T>(&self, id: ValueId) -> Region<T> {
        let slot = self.plan.slot(id);
        Region::new((self.arena)(slot.arena).wrapping_add(slot.offset).cast(), self.plan.shape(id).elements())
    }

    /// The first `elements` f32 values of an arena, from `start` on.
    fn range(&self, arena: Arena, start: usize, elements: usize) -> Region<f32> {
        Region::new((self.arena)(arena).cast::<f32>().wrapping_add(start), elements)
    }

    fn node(&self, node: &Node) -> Result<Instruction, DeviceError> {
        let operands = Operand { preparation: self, node };
        let o = &operands;
        let instruction = match &node.op {
            Op::Normalize { mean, deviation } => {
                let table = NormalizeTable::new(mean, deviation).ok_or_else(|| o.unsupported())?;
                if (o.input_size(0)?[2], o.output_size(0)?[2]) != (3, mean.len()) {
                    return Err(o.unsupported());
                }
                Instruction::Normalize { table, x: o.typed(0)?, y: o.output(0)? }
            }
            Op::Conv2d(_) | Op::Linear => {
                let shape = o.conv(Side::Input(0), Side::Output(0))?;
                let start = o.optional(2).map_or(Start::Zero, Start::Bias);
                let (source, weights, result) = (o.input(0)?, o.input(1)?, o.output(0)?);
                if shape.is_depthwise() {
                    let conv = Depthwise::forward(&shape, self.isa);
                    return Ok(Instruction::Depthwise { conv, source, weights, result, start });
                }
                if !self.exact && winograd::pays(&shape) {
                    let conv = Winograd::forward(&shape, self.isa);
                    return Ok(Instruction::Winograd { conv, source, weights, result, start });
                }
                let product = Gather::forward(&shape, self.isa);
                Instruction::Gather { product, source, weights, result, start }
            }
            Op::Conv2dBackwardData(_) | Op::LinearBackwardData => {
                let shape = o.conv(Side::Output(0), Side::Input(0))?;
                let start = o.optional(2).map_or(Start::Zero, Start::Base);
                let (source, weights, result) = (o.input(0)?, o.input(1)?, o.output(0)?);
                if shape.is_depthwise() {
                    let conv = Depthwise::backward_data(&shape, self.isa);
                    return Ok(Instruction::Depthwise { conv, source, weights, result, start });
                }
                if !self.exact && winograd::pays(&shape) {
                    let conv = Winograd::backward_data(&shape, self.isa);
                    return Ok(Instruction::Winograd { conv, source, weights, result, start });
                }
                let product = Gather::backward_data(&shape, self.isa);
                Instruction::Gather { product, source, weights, result, start }
            }
            Op::Conv2dBackwardWeights(_) | Op::LinearBackwardWeights => {
                let shape = o.conv(Side::Input(0), Side::Input(1))?;
                let (x, dy, dw) = (o.input(0)?, o.input(1)?, o.output(0)?);
                if shape.is_depthwise() {
                    let gradient = DepthwiseGradient::new(&shape, self.isa);
                    return Ok(Instruction::DepthwiseGradient { gradient, x, dy, dw });
                }
                if !self.exact && winograd::gradient_pays(&shape) {
                    let gradient = WinogradGradient::new(&shape, self.isa);
                    return Ok(Instruction::WinogradGradient { gradient, x, dy, dw });
                }
                Instruction::WeightGradient { product: WeightGradient::new(&shape, self.isa), x, dy, dw }
            }
            Op::BiasBackward => Instruction::BiasBackward { size: o.rows(0)?, dy: o.input(0)?, sums: o.output(0)? },
            Op::BatchNormStatistics => {
                let moments = Moments { mean: o.output(0)?, variance: o.output(1)? };
                Instruction::Statistics { size: o.rows(0)?, x: o.input(0)?, moments }
            }
            &Op::BatchNormNormalize { epsilon, rectifier, .. } => Instruction::BatchNorm(Forward {
                size: o.rows(0)?,
                x: o.input(0)?,
                moments: o.moments(1)?,
                weight: o.input(3)?,
                bias: o.input(4)?,
                residual: o.optional(5),
                y: o.output(0)?,
                epsilon,
                rectifier,
            }),
            &Op::BatchNormReduce { epsilon, rectifier } => Instruction::BatchNormReduce {
                gradient: o.gradient(epsilon, rectifier, 4)?,
                dbias: o.output(0)?,
                dweight: o.output(1)?,
            },
            &Op::BatchNormBackward { epsilon, statistics, rectifier, residual } => {
                let (sums, y) = match statistics {
                    NormStatistics::Batch { count } => (Some((o.input(5)?, o.input(6)?, count)), 7),
                    NormStatistics::Running => (None, 5),
                };
                Instruction::BatchNormBackward {
                    gradient: o.gradient(epsilon, rectifier, y)?,
                    weight: o.input(4)?,
                    sums,
                    dx: o.output(0)?,
                    dresidual: if residual { Some(o.output(1)?) } else { None },
                }
            }
            &Op::RunningShare { count, shards } => {
                Instruction::RunningShare { moments: o.moments(0)?, count, shards, share: o.output(0)? }
            }
            &Op::RunningUpdate { momentum } => {
                let (mean, variance) = (o.input(1)?, o.input(2)?);
                Instruction::RunningUpdate { update: o.input(0)?, mean, variance, momentum }
            }
            &Op::Rectify(rectifier) => Instruction::Rectify { rectifier, x: o.input(0)?, y: o.output(0)? },
            &Op::RectifyBackward(rectifier) => {
                Instruction::RectifyBackward { rectifier, dy: o.input(0)?, y: o.input(1)?, dx: o.output(0)? }
            }
            Op::MaxPool(window) => {
                let shape = o.pool(o.input_size(0)?, o.output_size(0)?);
                if window.kernel[0] * window.kernel[1] > usize::from(u8::MAX) {
                    return Err(o.unsupported());
                }
                let (x, y, position) = (o.input(0)?, o.output(0)?, o.typed_output(1)?);
                Instruction::MaxPool { shape, window: *window, x, y, position }
            }
            Op::MaxPoolBackward(window) => {
                let shape = o.pool(o.output_size(0)?, o.input_size(0)?);
                let (dy, position, dx) = (o.input(0)?, o.typed(1)?, o.output(0)?);
                Instruction::MaxPoolBackward { shape, window: *window, dy, position, dx }
            }
            Op::AvgPool(window) => {
                let average = Average::window(o.pool(o.input_size(0)?, o.output_size(0)?), window);
                Instruction::AveragePool { average, x: o.input(0)?, y: o.output(0)? }
            }
            Op::AdaptiveAvgPool(_) => {
                let average = Average::adaptive(o.pool(o.input_size(0)?, o.output_size(0)?));
                Instruction::AveragePool { average, x: o.input(0)?, y: o.output(0)? }
            }
            Op::AvgPoolBackward(window) => {
                let average = Average::window(o.pool(o.output_size(0)?, o.input_size(0)?), window);
                Instruction::AveragePoolBackward { average, dy: o.input(0)?, dx: o.output(0)? }
            }
            Op::AdaptiveAvgPoolBackward(_) => {
                let average = Average::adaptive(o.pool(o.output_size(0)?, o.input_size(0)?));
                Instruction::AveragePoolBackward { average, dy: o.input(0)?, dx: o.output(0)? }
            }
            Op::Dropout { probability, seed, layer } => {
                let layer = Dropout { key: key(*seed, &format!("dropout {layer}")), probability: *probability };
                Instruction::Dropout { layer, samples: o.typed(1)?, x: o.input(0)?, y: o.output(0)? }
            }
            Op::Add => Instruction::Add { a: o.input(0)?, b: o.input(1)?, c: o.output(0)? },
            Op::Flatten => {
                let [height, width, channels] = o.input_size(0)?;
                let sizes = [self.plan.batch, height * width, channels];
                Instruction::Transpose { sizes, x: o.input(0)?, y: o.output(0)? }
            }
            Op::FlattenBackward => {
                let [height, width, channels] = o.output_size(0)?;
                let sizes = [self.plan.batch, channels, height * width];
                Instruction::Transpose { sizes, x: o.input(0)?, y: o.output(0)? }
            }
            &Op::CrossEntropy { scale, smoothing } => Instruction::CrossEntropy {
                c: o.cross_entropy(scale, smoothing)?,
                logits: o.input(0)?,
                labels: o.typed(1)?,
                probabilities: o.output(0)?,
                loss: o.output(1)?,
                correct: o.output(2)?,
            },
            &Op::CrossEntropyBackward { scale, smoothing } => Instruction::CrossEntropyBackward {
                c: o.cross_entropy(scale, smoothing)?,
                probabilities: o.input(0)?,
                labels: o.typed(1)?,
                dlogits: o.output(0)?,
            },
            Op::ShareMetrics { .. } => {
                let (loss, correct, metrics) = (o.input(0)?, o.input(1)?, o.output(0)?);
                Instruction::ShareMetrics { shard: self.shard, loss, correct, metrics }
            }
            &Op::SyncStatistics { count } => {
                let all = Moments { mean: o.output(0)?, variance: o.output(1)? };
                Instruction::SyncStatistics { count, shards: self.plan.shards, own: o.moments(0)?, all }
            }
            Op::SyncSum => {
                Instruction::SyncSum { values: [o.input(0)?, o.input(1)?], sums: [o.output(0)?, o.output(1)?] }
            }
            &Op::AllReduceStart { bucket } => {
                let range = self.plan.buckets.get(bucket).ok_or_else(|| o.unsupported())?;
                Instruction::AllReduceStart { bucket, range: self.range(Arena::Gradients, range.start, range.len) }
            }
            &Op::AllReduceWait { bucket } => Instruction::AllReduceWait { bucket },
            Op::CheckFinite => Instruction::CheckFinite { losses: o.input(0)?.part(0, self.plan.shards) },
            Op::Update(optimizer) => {
                let trainable = |arena| self.range(arena, 0, self.plan.trainable);
                let state = (0..optimizer.state_names().len()).map(|slot| trainable(Arena::Optimizer(slot))).collect();
                let (weights, gradients) = (trainable(Arena::Parameters), trainable(Arena::Gradients));
                Instruction::Update { optimizer: *optimizer, operands: Operands { weights, gradients, state } }
            }
        };
        Ok(instruction)
    }
}

/// An operand or a result.
#[derive(Clone, Copy)]
enum Side {
    Input(usize),
    Output(usize),
}

/// The operands of one node.
struct Operand<'a> {
    preparation: &'a Preparation<'a>,
    node: &'a Node,
}

impl Operand<'_> {
    fn unsupported(&self) -> DeviceError {
        let Node { op, layer, inputs, outputs, .. } = self.node;
        let shapes =
            |ids: &[ValueId]| ids.iter().map(|&id| self.preparation.plan.shape(id).to_string()).collect::<Vec<_>>();
        let (inputs, outputs) = (shapes(inputs).join(", "), shapes(outputs).join(", "));
        DeviceError::Unsupported(format!("layer {layer}: the cpu cannot run {op} ({inputs}) -> ({outputs})"))
    }

    fn id(&self, side: Side) -> Result<ValueId, DeviceError> {
        let id = match side {
            Side::Input(index) => self.node.inputs.get(index),
            Side::Output(index) => self.node.outputs.get(index),
        };
        id.copied().ok_or_else(|| self.unsupported())
    }

    fn typed<T>(&self, index: usize) -> Result<Region<T>, DeviceError> {
        Ok(self.preparation.region(self.id(Side::Input(index))?))
    }

    fn typed_output<T>(&self, index: usize) -> Result<Region<T>, DeviceError> {
        Ok(self.preparation.region(self.id(Side::Output(index))?))
    }

    fn input(&self, index: usize) -> Result<Region<f32>, DeviceError> {
        self.typed(index)
    }

    fn output(&self, index: usize) -> Result<Region<f32>, DeviceError> {
        self.typed_output(index)
    }

    fn optional(&self, index: usize) -> Option<Region<f32>> {
        self.input(index).ok()
    }

    /// Height, width and channels; a matrix is a map of one pixel.
    fn size(&self, side: Side) -> Result<[usize; 3], DeviceError> {
        let plan = self.preparation.plan;
        match plan.shape(self.id(side)?)[..] {
            [batch, height, width, channels] if batch == plan.batch => Ok([height, width, channels]),
            [batch, channels] if batch == plan.batch => Ok([1, 1, channels]),
            _ => Err(self.unsupported()),
        }
    }

    fn input_size(&self, index: usize) -> Result<[usize; 3], DeviceError> {
        self.size(Side::Input(index))
    }

    fn output_size(&self, index: usize) -> Result<[usize; 3], DeviceError> {
        self.size(Side::Output(index))
    }

    fn pool(&self, input: [usize; 3], [height, width, _]: [usize; 3]) -> PoolShape {
        PoolShape { batch: self.preparation.plan.batch, input, output: [height, width] }
    }

    /// The convolution, or the linear layer, between two tensors.
    fn conv(&self, x: Side, y: Side) -> Result<ConvShape, DeviceError> {
        let batch = self.preparation.plan.batch;
        let (input, output) = (self.size(x)?, self.size(y)?);
        match self.node.op {
            Op::Conv2d(conv) | Op::Conv2dBackwardData(conv) | Op::Conv2dBackwardWeights(conv) => {
                Ok(ConvShape { batch, input, output, conv })
            }
            _ => Ok(ConvShape::linear(batch, input[2], output[2])),
        }
    }

    /// Rows and channels of an operand of any number of dimensions.
    fn rows(&self, index: usize) -> Result<Rows, DeviceError> {
        let shape = self.preparation.plan.shape(self.id(Side::Input(index))?);
        Ok(Rows { rows: shape.elements() / shape.last().max(1), channels: shape.last() })
    }

    fn moments(&self, index: usize) -> Result<Moments, DeviceError> {
        Ok(Moments { mean: self.input(index)?, variance: self.input(index + 1)? })
    }

    fn gradient(&self, epsilon: f32, rectifier: Option<Rectifier>, y: usize) -> Result<Gradient, DeviceError> {
        let gate = rectifier.map(|rectifier| self.input(y).map(|y| (rectifier, y))).transpose()?;
        Ok(Gradient {
            size: self.rows(0)?,
            dy: self.input(0)?,
            x: self.input(1)?,
            moments: self.moments(2)?,
            gate,
            epsilon,
        })
    }

    fn cross_entropy(&self, scale: f32, smoothing: f32) -> Result<CrossEntropy, DeviceError> {
        let Rows { rows, channels } = self.rows(0)?;
        Ok(CrossEntropy { samples: rows, classes: channels, scale, smoothing })
    }
}
