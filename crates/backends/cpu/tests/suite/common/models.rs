//! Models that the tests of every device train: each kind of layer, a loss of functions, layers in any order.
#![allow(dead_code, reason = "each test file compiles this module for itself and uses a part of it")]

use enmasse_graph::{Conv, Expression, Pool, Tensor};
use enmasse_tensor::RandomStream;

/// Every kind of layer of a ResNet, at a small scale.
pub fn residual(x: Tensor) -> Tensor {
    let block = |x: Tensor, name: &str, channels, stride| {
        let conv = |i: usize| format!("{name}.conv{i}");
        let bn = |i: usize| format!("{name}.bn{i}");
        let y = x.clone().conv2d(&conv(1), Conv::new(channels, 3).padding(1).stride(stride).no_bias());
        let y = y.batch_norm(&bn(1)).relu();
        let y = y.conv2d(&conv(2), Conv::new(channels, 3).padding(1).no_bias()).batch_norm(&bn(2));
        let x = if stride == 1 {
            x
        } else {
            x.conv2d(&conv(3), Conv::new(channels, 1).stride(stride).no_bias()).batch_norm(&bn(3))
        };
        (y + x).relu()
    };
    let x = x.conv2d("conv1", Conv::new(20, 7).stride(2).padding(3).no_bias()).batch_norm("bn1").relu();
    let x = x.max_pool(Pool::new(3).stride(2).padding(1));
    let x = block(x, "layer1", 20, 1);
    let x = block(x, "layer2", 36, 2);
    let x = block(x, "layer3", 40, 2);
    x.adaptive_avg_pool([1, 1]).flatten().dropout("drop", 0.2).drop_path("path", 0.2).linear("fc", 7)
}

/// Every kind of convolution after a batch norm: of each algorithm, odd numbers of channels, groups, strides, unequal padding, and
/// pixels that no tap meets.
pub fn normalized(x: Tensor) -> Tensor {
    let conv = |x: Tensor, name: &str, conv: Conv| x.conv2d(name, conv).batch_norm(&format!("{name}.bn"));
    let x = conv(x, "stem", Conv::new(18, 3).no_bias()).relu6();
    let x = conv(x, "depthwise", Conv::new(18, 5).padding(2).groups(18).no_bias()).relu();
    let x = conv(x, "winograd", Conv::new(35, 3).padding(1).no_bias()).relu6();
    let x = conv(x, "project", Conv::new(20, 1).no_bias());
    let x = conv(x, "wide", Conv::new(36, 3).padding(1).groups(2)).relu();
    let x = conv(x, "bordered", Conv::new(34, 1).padding(1).no_bias()).relu();
    let x = conv(x, "narrow", Conv::new(64, 3).padding_sides([[0, 1], [2, 0]]).no_bias());
    let x = conv(x, "grouped", Conv::new(64, 3).padding(1).groups(16).no_bias()).relu6();
    let x = conv(x, "strided", Conv::new(32, 3).padding(1).stride(2).no_bias());
    x.conv2d("downsample", Conv::new(33, 1).stride(2)).relu().adaptive_avg_pool([1, 1]).flatten().linear("fc", 7)
}

/// Inverted residuals with squeeze-excitation and smooth activations, odd numbers of channels, and batch norms that convolutions of each
/// algorithm read.
pub fn smooth(x: Tensor) -> Tensor {
    let conv = |x: Tensor, name: &str, conv: Conv| x.conv2d(name, conv.no_bias()).batch_norm(&format!("{name}.bn"));
    let x = conv(x, "stem", Conv::new(18, 3).stride(2).padding(1)).silu();
    let y = conv(x.clone(), "expand", Conv::new(67, 1)).silu();
    let y = conv(y, "deep", Conv::new(67, 5).padding(2).groups(67)).silu();
    let scale = y.clone().adaptive_avg_pool([1, 1]).conv2d("squeeze", Conv::new(67, 1)).sigmoid();
    let x = conv(y * scale, "project", Conv::new(18, 1)) + x;
    let y = conv(x, "winograd", Conv::new(35, 3).padding(1)).hard_swish();
    let y = conv(y, "wide", Conv::new(80, 3).padding(1)).silu();
    let y = conv(y, "pixels", Conv::new(33, 1)).hard_swish();
    let y = conv(y, "strided", Conv::new(33, 3).stride(2).padding(1).groups(33)).hard_swish();
    let y = conv(y, "last", Conv::new(130, 1)).silu();
    y.adaptive_avg_pool([1, 1]).flatten().linear("fc1", 20).batch_norm("fc1.bn").silu().linear("fc2", 7)
}

/// Layer norms, smooth activations, and factors per channel: of all samples, and of each one as images and as a matrix.
pub fn modern(x: Tensor) -> Tensor {
    let x = x.conv2d("stem", Conv::new(24, 3).stride(2).padding(1)).layer_norm("norm1", 1e-6);
    let y = x.clone().conv2d("dw", Conv::new(24, 5).padding(2).groups(24)).layer_norm("norm2", 1e-6).gelu();
    let x = y.scale_channels("scale.gamma", 0.5) + x;
    let y = x.clone().conv2d("expand", Conv::new(24, 1).no_bias()).batch_norm("bn").silu();
    let pooled = y.clone().adaptive_avg_pool([1, 1]);
    let y = y * pooled.clone().conv2d("squeeze", Conv::new(24, 1)).sigmoid();
    let y = y * pooled.flatten().linear("gate", 24).sigmoid();
    (x + y).hard_swish().adaptive_avg_pool([2, 2]).flatten().layer_norm("norm3", 1e-5).gelu().linear("fc", 7)
}

/// Tokens of patches: a block of a transformer without its attention, a gate for each sample, images again, and the mean.
/// Images are 20 x 24 pixels.
pub fn tokens(x: Tensor) -> Tensor {
    let x = x.conv2d("patches", Conv::new(24, 4).stride(4)).tokens();
    let y = x.clone().layer_norm("norm1", 1e-6).linear("fc1", 35).gelu().dropout("drop", 0.2).linear("fc2", 24);
    let x = y.scale_channels("scale.gamma", 0.5) + x;
    let gate = x.clone().mean_tokens().linear("gate", 24).sigmoid();
    let y = x.clone().images([5, 6]).conv2d("dw", Conv::new(24, 3).padding(1).groups(24)).tokens();
    let x = (x * gate + y).layer_norm("norm2", 1e-5).linear("fc3", 33).silu();
    x.mean_tokens().linear("fc", 7)
}

/// Max pooling by windows of 16 x 16 elements, the most whose positions fit a byte. Of the first windows in a row or column only
/// the second half lies in the feature map.
pub fn largest_windows(x: Tensor) -> Tensor {
    let x = x.conv2d("stem", Conv::new(18, 3).padding(1)).max_pool(Pool::new(16).stride(8).padding(8));
    x.flatten().linear("fc", 5)
}

/// The focal loss with class weights, clamped below: uses every function of logits.
pub fn focal(logits: Tensor, targets: Tensor) -> Tensor {
    let log_p = logits.log_softmax();
    let p = (log_p.clone() * targets.clone()).sum_classes().exp();
    let weighted = (log_p.scale_classes(&[1.0, 0.5, 2.0, 1.5, 0.25, 3.0, 1.0]) * targets).sum_classes();
    p.clone().affine(-1.0, 1.0).power(2.0) * weighted.affine(-1.0, 0.0) + p.clamp_min(0.125).log().affine(-0.1, 0.0)
}

/// Mish and a gated unit as expressions, of one tensor and of two.
pub fn expressive(x: Tensor) -> Tensor {
    let [a, b] = Expression::operands();
    let mish = &a * (a.maximum(0.0) + (1.0 + (-&a).minimum(&a).exp()).log()).tanh();
    let x = x.conv2d("stem", Conv::new(10, 3)).pointwise(&mish, &[]);
    let gate = x.clone().conv2d("gate", Conv::new(10, 3).padding(1));
    x.pointwise(&(a * b.sigmoid()), &[gate]).flatten().linear("fc", 7)
}

/// The mean Huber loss of seven outputs from seven values, as an expression.
pub fn huber(outputs: Tensor, values: Tensor) -> Tensor {
    let [a, b] = Expression::operands();
    let error = (a - b).abs();
    let huber = Expression::where_above(1.0, &error, 0.5 * &error * &error, &error - 0.5);
    outputs.pointwise(&huber, &[values]).mean_classes()
}

/// The mean squared error of seven outputs from seven values.
pub fn squared_error(outputs: Tensor, values: Tensor) -> Tensor {
    (outputs + values.affine(-1.0, 0.0)).power(2.0).sum_classes().affine(1.0 / 7.0, 0.0)
}

/// Layers in random order, with values used once, many times or never.
pub fn random(x: Tensor, seed: u64) -> Tensor {
    let mut stream = RandomStream::new(seed, "model", 0, 0);
    let mut values = vec![x.conv2d("stem", Conv::new(4, 3).padding(1))];
    for index in 0..10 {
        let mut pick = || values[values.len() - 1 - stream.below(values.len().min(4) as u64) as usize].clone();
        let (x, other) = (pick(), pick());
        let name = format!("layer{index}");
        let pool = Pool::new(3).stride(1).padding(1);
        values.push(match stream.below(12) {
            0 => x.conv2d(&name, Conv::new(4, 3).padding(1)),
            1 => x.conv2d(&name, Conv::new(4, 1).groups(2).no_bias()),
            2 | 3 => x.batch_norm(&name),
            4 => x.batch_norm(&name).relu(),
            5 => (x.batch_norm(&name) + other).relu(),
            6 => x + other,
            7 => x.dropout(&name, 0.2),
            8 => x.avg_pool(pool),
            9 => x.max_pool(pool),
            10 => ((x.clone() + x.clone()) + (other.clone() + other)).relu6(),
            _ => x.relu(),
        });
    }
    let mut ends = values.into_iter().rev();
    let (Some(a), Some(b)) = (ends.next(), ends.next()) else { unreachable!("there are eleven values") };
    a.max_pool(Pool::new(2)).flatten().linear("a", 3) + b.adaptive_avg_pool([2, 2]).flatten().linear("b", 3)
}
