//! Marks the values between convolutions by constant statistics that a device computes together, a strip of rows at a time.

use crate::ops::Conv2dBatchNorm;
use crate::{Graph, Node, Op, ValueId};

/// Marks what only the next convolution reads ([`crate::Value::in_cache`]) where a depthwise [`Conv2dBatchNorm`] follows one whose window is
/// a pixel, precedes one, or both, and `pays` says so of these convolutions. The last of them may add a residual. The values in `keep`
/// must be stored.
pub fn chain(graph: &mut Graph, keep: &[ValueId], pays: impl Fn(&Graph, &[&Node]) -> bool) {
    let mut uses = graph.uses();
    keep.iter().for_each(|id| uses[id.0] += 1);
    let producers = graph.producers();
    let mut taken = vec![false; graph.nodes.len()];
    let mut between = Vec::new();
    let is_link = |id: ValueId| uses[id.0] == 1 && !graph.value(id).checkpoint;
    let adds = |index: usize| graph.nodes[index].inputs.len() > 6;
    for index in (0..graph.nodes.len()).filter(|&index| is_depthwise(graph, &graph.nodes[index])) {
        let (x, y) = (graph.nodes[index].inputs[0], graph.nodes[index].outputs[0]);
        let is_free = |&other: &usize| is_of_pixels(&graph.nodes[other]) && !taken[other];
        let before = producers[x.0].filter(is_free).filter(|&before| is_link(x) && !adds(before));
        let reader = graph.nodes.iter().position(|node| node.inputs.first() == Some(&y));
        let after = reader.filter(is_free).filter(|_| is_link(y) && !adds(index));
        let links: Vec<usize> = before.into_iter().chain([index]).chain(after).collect();
        let nodes: Vec<&Node> = links.iter().map(|&link| &graph.nodes[link]).collect();
        if let [inner @ .., _] = &nodes[..]
            && !inner.is_empty()
            && pays(graph, &nodes)
        {
            between.extend(inner.iter().map(|node| node.outputs[0]));
            links.iter().for_each(|&link| taken[link] = true);
        }
    }
    between.into_iter().for_each(|id| graph.values[id.0].in_cache = true);
}

/// Whether each channel has its own kernel, of which a part meets the image at every place.
fn is_depthwise(graph: &Graph, node: &Node) -> bool {
    let Op::Conv2dBatchNorm(Conv2dBatchNorm { conv, .. }) = node.op else { return false };
    let [channels, results] = [node.inputs[0], node.outputs[0]].map(|id| graph.shape(id).last());
    let least = conv.window.padding[0].iter().all(|&padding| padding < conv.window.kernel[0]);
    conv.groups > 1 && (conv.groups, conv.groups) == (channels, results) && least
}

/// Whether the window is one pixel, at each place of the image.
fn is_of_pixels(node: &Node) -> bool {
    let Op::Conv2dBatchNorm(Conv2dBatchNorm { conv, .. }) = node.op else { return false };
    let window = conv.window;
    (conv.groups, window.kernel, window.stride, window.padding) == (1, [1; 2], [1; 2], [[0; 2]; 2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::{fuse, fuse_convolutions};
    use crate::{Builder, Conv, Mode, Tensor};

    /// Checks the layers whose results are in cache.
    fn check(model: impl Fn(Tensor) -> Tensor, pays: bool, expected: &[&str]) {
        let builder = Builder::new(2, [6, 6], Mode::Evaluate, 0);
        let logits = model(builder.pixels(&[0.0; 3], &[1.0; 3])).flatten().linear("fc", 2);
        let mut forward = builder.finish(&logits, 2).unwrap();
        let keep = [forward.logits];
        let graph = &mut forward.graph;
        fuse(graph, &keep);
        fuse_convolutions(graph, &keep, Mode::Evaluate);
        chain(graph, &keep, |_, links| {
            assert!(links.len() > 1 && links.windows(2).all(|pair| pair[0].outputs[0] == pair[1].inputs[0]));
            pays
        });
        let is_in_cache = |node: &&Node| graph.value(node.outputs[0]).in_cache;
        let layers: Vec<&str> = graph.nodes.iter().filter(is_in_cache).map(|node| node.layer.as_str()).collect();
        assert_eq!(layers, expected);
    }

    fn conv(x: Tensor, name: &str, conv: Conv) -> Tensor {
        x.conv2d(name, conv.no_bias()).batch_norm(&format!("{name}.bn")).relu()
    }

    fn pixels(x: Tensor, name: &str, channels: usize) -> Tensor {
        conv(x, name, Conv::new(channels, 1))
    }

    fn deep(x: Tensor, name: &str) -> Tensor {
        let channels = x.shape().last();
        conv(x, name, Conv::new(channels, 3).padding(1).groups(channels))
    }

    #[test]
    fn depthwise_layers_are_computed_with_those_of_pixels_beside_them() {
        let block = |x: Tensor| pixels(deep(pixels(x, "expand", 8), "deep"), "project", 4);
        check(block, true, &["expand", "deep"]);
        check(block, false, &[]);
        let adds = |x: Tensor| {
            let y = deep(pixels(x.clone(), "expand", 8), "deep");
            y.conv2d("project", Conv::new(3, 1).no_bias()).batch_norm("bn") + x
        };
        check(adds, true, &["expand", "deep"]);
        // Each is in one chain.
        let separable = |x: Tensor| pixels(deep(pixels(deep(x, "a"), "b", 4), "c"), "d", 5);
        check(separable, true, &["a", "c"]);
        check(|x| pixels(deep(deep(x, "a"), "b"), "c", 4), true, &["b"]);
        check(|x| pixels(pixels(x, "a", 4), "b", 5), true, &[]);
    }

    #[test]
    fn values_that_others_read_are_stored() {
        let twice = |x: Tensor| {
            let y = deep(pixels(x, "expand", 4), "deep");
            pixels(y.clone(), "project", 4) + y
        };
        check(twice, true, &["expand"]);
        let sum = |x: Tensor| {
            let y = pixels(x.clone(), "expand", 4);
            pixels(deep(y.clone(), "deep"), "project", 4) + y
        };
        check(sum, true, &["deep"]);
        let larger = |x: Tensor| deep(conv(x, "larger", Conv::new(4, 3).padding(1)), "deep");
        check(larger, true, &[]);
        check(|x| deep(conv(x, "strided", Conv::new(4, 1).stride(2)), "deep"), true, &[]);
        let beside = |x: Tensor| pixels(conv(x, "beside", Conv::new(3, 1).padding(1).groups(3)), "a", 4);
        check(beside, true, &[]);
    }
}
