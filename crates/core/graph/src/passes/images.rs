//! Gives normalised images channels of zeros, for devices that multiply several channels at a time.

use enmasse_tensor::DType;

use crate::passes::Precision;
use crate::{Graph, Node, Op, ValueId};

/// Makes the channels of normalised images a multiple of `multiple`, in a forward graph of 16 bits whose images only convolutions of
/// [`takes_zeros`] read.
pub(crate) fn pad_images(graph: &mut Graph, multiple: usize, precision: Precision) {
    if precision.activations() == DType::F32 {
        return;
    }
    let normalised = graph.nodes.iter().filter(|node| matches!(node.op, Op::Normalize(_)));
    let images: Vec<ValueId> = normalised.map(|node| node.outputs[0]).collect();
    for y in images {
        let mut readers = graph.nodes.iter().filter(|node| node.inputs.contains(&y)).peekable();
        if readers.peek().is_some() && readers.all(takes_zeros) {
            let mut shape = graph.shape(y).to_vec();
            shape.iter_mut().skip(3).for_each(|channels| *channels = channels.next_multiple_of(multiple));
            graph.values[y.0].shape = shape.into();
        }
    }
}

/// Whether zeros as further channels change no result of a reader and save time: of a convolution of one group whose windows overlap.
/// Patch embeddings are matmuls of whole patches, which zeros would only lengthen.
fn takes_zeros(reader: &Node) -> bool {
    let Op::Conv2d(conv) = reader.op else { return false };
    let overlap = conv.window.kernel.iter().zip(conv.window.stride).all(|(&kernel, stride)| kernel > stride);
    conv.groups == 1 && overlap
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompileOptions, Conv, Mode, Plan, Target, Tensor, compile};

    fn plan(model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions, mode: Mode) -> Plan {
        let target = Target { image_channels: Some(8), ..Target::default() };
        target.compile(model, options).unwrap().plan(mode).unwrap().clone()
    }

    fn options(precision: Precision) -> CompileOptions {
        CompileOptions { precision, ..CompileOptions::new("net", 4, 8, 3) }
    }

    fn with_stem(stem: Conv) -> impl Fn(Tensor) -> Tensor {
        move |x: Tensor| x.conv2d("stem", stem).relu().flatten().linear("fc", 3)
    }

    #[test]
    fn images_of_16_bits_that_convolutions_read() {
        let net = with_stem(Conv::new(6, 3).stride(2).padding(1));
        for precision in [Precision::Bf16, Precision::F16] {
            for mode in [Mode::Train, Mode::Evaluate] {
                let plan = plan(&net, &options(precision), mode);
                let of = |name: &str| plan.instructions.iter().find(|node| node.op.name() == name).unwrap();
                let images = of("normalize").outputs[0];
                let conv = of("conv2d");
                assert_eq!(images, conv.inputs[0]);
                assert_eq!(plan.shape(images)[..], [4, 8, 8, 8]);
                assert_eq!(plan.shape(conv.inputs[1])[..], [3, 3, 3, 6]);
                if mode == Mode::Train {
                    assert_eq!(of("conv2d_backward_weights").inputs[0], images);
                }
            }
        }
    }

    #[test]
    fn images_of_one_channel() {
        let net = with_stem(Conv::new(6, 5));
        let grey = CompileOptions { mean: vec![0.5], std: vec![0.5], ..options(Precision::Bf16) };
        assert!(plan(&net, &grey, Mode::Train).to_string().contains("bf16[4,8,8,8]"));
    }

    /// Such plans are those of a target that pads nothing.
    #[test]
    fn other_images_keep_their_channels() {
        let check = |model: &dyn Fn(Tensor) -> Tensor, precision: Precision| {
            let options = options(precision);
            for mode in [Mode::Train, Mode::Evaluate] {
                let usual = compile(model, &options).unwrap().plan(mode).unwrap().to_string();
                assert_eq!(plan(model, &options, mode).to_string(), usual);
            }
        };
        let overlapping = Conv::new(6, 3).padding(1);
        check(&with_stem(overlapping), Precision::F32);
        check(&with_stem(overlapping), Precision::Tf32);
        check(&with_stem(overlapping.groups(3)), Precision::Bf16);
        check(&with_stem(Conv::new(6, 4).stride(4)), Precision::Bf16);
        check(&|x| x.flatten().linear("fc", 3), Precision::Bf16);
        let two_readers = |x: Tensor| {
            let pooled = x.clone().adaptive_avg_pool([1, 1]).flatten().linear("of_mean", 3);
            with_stem(overlapping)(x) + pooled
        };
        check(&two_readers, Precision::Bf16);
    }
}
