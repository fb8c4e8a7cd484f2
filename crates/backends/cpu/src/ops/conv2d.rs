//! Convolution on the CPU, and what linear layers share with it: the choice of the algorithm.
//!
//! It is the plan's choice, or else a function of only the shape, precision and instruction-set level. It never depends on
//! threads or time. `--exact` leaves Winograd out.

use enmasse_graph::ops::{Conv2d, Conv2dBackwardData, Conv2dBackwardWeights};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::algorithm::Algorithm;
use crate::conv::{
    ConvShape, GroupedGradient, Source, SourceNorm, Start, WeightGradient, WinogradGradient, grouped, winograd,
};
use crate::statistics::{self, Moments};
use crate::sweep::Rows;

/// Evaluates `$body` with `$conv` as the convolution by an algorithm that is known only at run time.
macro_rules! with_convolution {
    ($E:ty, $algorithm:expr, $shape:expr, $isa:expr, $backward:expr, $conv:ident => $body:expr) => {{
        macro_rules! by {
            ($type:ty) => {{
                let $conv = <$type>::new($shape, $isa, $backward);
                $body
            }};
        }
        match $algorithm {
            $crate::algorithm::Algorithm::Depthwise | $crate::algorithm::Algorithm::Grouped => {
                by!($crate::conv::Grouped)
            }
            $crate::algorithm::Algorithm::Winograd => by!($crate::conv::Winograd<$E>),
            $crate::algorithm::Algorithm::Direct if $crate::conv::pairs($shape, $backward) => {
                by!($crate::conv::Gather<$E, $E>)
            }
            $crate::algorithm::Algorithm::Direct => by!($crate::conv::Gather<$E, f32>),
        }
    }};
}
pub(super) use with_convolution;

impl OnCpu for Conv2d {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        o.forward::<E>(o.conv(*self, Side::Input(0), Side::Output(0))?)
    }
}

impl OnCpu for Conv2dBackwardData {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        o.backward_data::<E>(o.conv(self.0, Side::Output(0), Side::Input(0))?)
    }
}

impl OnCpu for Conv2dBackwardWeights {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        o.backward_weights::<E>(o.conv(self.0, Side::Input(0), Side::Input(1))?, None)
    }
}

impl Operand<'_> {
    /// The convolution between two tensors.
    pub(super) fn conv(&self, conv: Conv2d, x: Side, y: Side) -> Result<ConvShape, DeviceError> {
        let (batch, normalized) = (self.preparation.plan.batch, false);
        Ok(ConvShape { batch, input: self.size(x)?, output: self.size(y)?, conv, normalized })
    }

    /// The algorithm to use. If the plan's choice cannot compute the layer, this is one that can; the mismatch is
    /// refused later, as for all operations.
    pub(super) fn algorithm(&self, shape: &ConvShape, pays: fn(&ConvShape) -> bool) -> Algorithm {
        let winograd = !self.preparation.kernels.exact && winograd::applies(shape);
        match self.chosen {
            _ if shape.is_depthwise() => Algorithm::Depthwise,
            None | Some(Algorithm::Grouped) if grouped::applies(shape, self.preparation.kernels.isa) => {
                Algorithm::Grouped
            }
            Some(Algorithm::Winograd) if winograd => Algorithm::Winograd,
            None if winograd && pays(shape) => Algorithm::Winograd,
            _ => Algorithm::Direct,
        }
    }

    /// `(x, w, [bias]) -> (y, [mean, variance])`.
    pub(super) fn forward<E: Element>(&self, shape: ConvShape) -> Result<Instruction, DeviceError> {
        let start = self.optional(2)?.map_or(Start::Zero, Start::Bias);
        self.matmul::<E>(&shape, start, false, None)
    }

    /// `(dy, w, [base]) -> (dx)`.
    pub(super) fn backward_data<E: Element>(&self, shape: ConvShape) -> Result<Instruction, DeviceError> {
        let start = self.optional(2)?.map_or(Start::Zero, Start::Base);
        self.matmul::<E>(&shape, start, true, None)
    }

    /// Either direction: the source, the weights and the result are the same operands in both.
    pub(super) fn matmul<E: Element>(
        &self,
        shape: &ConvShape,
        start: Start<E>,
        backward: bool,
        norm: Option<SourceNorm>,
    ) -> Result<Instruction, DeviceError> {
        let data = self.input::<E>(0)?;
        let weights = self.input(1)?;
        let result = self.output(0)?;
        let algorithm = self.algorithm(shape, winograd::pays::<E>);
        let isa = self.preparation.kernels.isa;
        let statistics = match self.node.outputs.len() {
            3 => Some(Moments { mean: self.output(1)?, variance: self.output(2)? }),
            _ => None,
        };
        let [height, width, channels] = shape.output;
        let size = Rows { rows: shape.batch * height * width, channels };
        let instruction = with_convolution!(E, algorithm, shape, isa, backward, conv => match statistics {
            None => kernel!(SourceNorm::add(norm, conv.workspace()), c => {
                let source = Source::new(c, conv.workspace(), data, norm);
                conv.run(c, source, weights, result, start, None);
            }),
            Some(moments) => {
                let own = conv.workspace();
                let kept = statistics::workspace_of_places(conv.places(), channels);
                let with_places = Workspace { shared: own.shared + kept, ..own };
                kernel!(SourceNorm::add(norm, with_places), c => {
                    let source = Source::new(c, with_places, data, norm);
                    let places = c.shared.part(own.shared, kept);
                    statistics::statistics_of_pieces(c, size, result, moments, places, |c, epilogue| {
                        conv.run(c, source, weights, result, start, Some(epilogue));
                    });
                })
            }
        });
        Ok(instruction.by(algorithm.name()))
    }

    /// `(x, dy) -> (dw)`.
    pub(super) fn backward_weights<E: Element>(
        &self,
        shape: ConvShape,
        norm: Option<SourceNorm>,
    ) -> Result<Instruction, DeviceError> {
        let x = self.input::<E>(0)?;
        let dy = self.input(1)?;
        let dw = self.output(0)?;
        let algorithm = self.algorithm(&shape, winograd::gradient_pays::<E>);
        let isa = self.preparation.kernels.isa;
        macro_rules! by {
            ($gradient:expr) => {{
                let gradient = $gradient;
                kernel!(SourceNorm::add(norm, gradient.workspace()), c => {
                    let x = Source::new(c, gradient.workspace(), x, norm);
                    gradient.run(c, x, dy, dw);
                })
            }};
        }
        let instruction = match algorithm {
            Algorithm::Depthwise | Algorithm::Grouped => by!(GroupedGradient::new(&shape, isa)),
            Algorithm::Winograd => by!(WinogradGradient::<E>::new(&shape, isa)),
            Algorithm::Direct => by!(WeightGradient::<E>::new(&shape, isa)),
        };
        Ok(instruction.by(algorithm.name()))
    }
}
