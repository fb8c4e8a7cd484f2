//! Gradients of every operation against central finite differences of the loss, through small models.
//!
//! The gradient that a layer passes to earlier layers is checked by the parameters of those layers.

use crate::common::{Batch, Model, TO_GRADIENTS, TO_LOSS, program, submit};
use enmasse_device::Program;
use enmasse_graph::{
    CompileOptions, Conv, Expression, Freeze, Loss, Mode, PerSample, Pool, Role, TargetKind, Tensor, Window,
};
use enmasse_reference::ReferenceProgram;

/// Half the distance of the two points. Rounding causes an error of about 1e-10, and hardly any ReLU changes sides.
const STEP: f64 = 3e-6;

/// The maximum number of elements to check in each parameter, evenly spaced from the first. The last is checked as well.
const ELEMENTS: usize = 16;

fn loss(program: &mut ReferenceProgram, batch: &Batch) -> f64 {
    submit(program, Mode::Train, &TO_LOSS, batch, 1, 0.0);
    program.store("loss").unwrap()[0]
}

fn check_batch(model: Model, options: &CompileOptions, change: impl Fn(&mut Batch)) {
    let mut program = program(model, options);
    let mut batch = Batch::random(&program, 0);
    change(&mut batch);
    submit(&mut program, Mode::Train, &TO_GRADIENTS, &batch, 1, 0.0);
    let plan = program.plans().train.clone().unwrap();
    let trainable = plan.values.iter().filter_map(|value| match value.role {
        Role::Gradient { parameter } => Some(plan.value(parameter).name.clone()),
        _ => None,
    });
    let gradients: Vec<(String, Vec<f64>)> = trainable
        .map(|name| {
            let gradient = program.store(&format!("gradient.{name}")).unwrap();
            (name, gradient)
        })
        .collect();
    assert!(!gradients.is_empty());
    for (name, gradient) in gradients {
        let largest = gradient.iter().fold(0f64, |a, g| a.max(g.abs()));
        assert!(largest > 1e-5, "{name}: a gradient this small proves nothing: {largest}");
        let values = program.store(&name).unwrap();
        let stride = values.len().div_ceil(ELEMENTS);
        for element in (0..values.len()).step_by(stride).chain([values.len() - 1]) {
            let mut moved = values.clone();
            let mut at = |offset: f64| {
                moved[element] = values[element] + offset;
                program.load(&name, &moved).unwrap();
                loss(&mut program, &batch)
            };
            let difference = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let error = (difference - gradient[element]).abs() / largest.max(1e-3);
            assert!(error <= 1e-6, "{name}[{element}]: {} against {difference}: {error:e}", gradient[element]);
        }
        program.load(&name, &values).unwrap();
    }
}

/// Images of 7x9 pixels, three samples, four classes.
fn options() -> CompileOptions {
    CompileOptions { size: [7, 9], ..CompileOptions::new("net", 3, 7, 4) }
}

fn check(model: Model) {
    check_batch(model, &options(), |_| {});
}

fn conv(channels: usize, kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2]) -> Conv {
    let padding = padding.map(|padding| [padding; 2]);
    Conv::new(channels, 1).window(Window { kernel, stride, padding, dilation })
}

/// A classifier after `x`.
fn head(x: Tensor) -> Tensor {
    x.flatten().linear("fc", 4)
}

/// A first layer, so that the layers after it need a gradient of their input.
fn stem(x: Tensor, channels: usize) -> Tensor {
    x.conv2d("stem", Conv::new(channels, 3).padding(1))
}

#[test]
fn linear_and_relu() {
    check(&|x| head(x));
    check(&|x| x.flatten().linear("a", 7).relu().linear("b", 5).relu().linear("c", 4));
}

#[test]
fn relu6() {
    // Multiplies by eight, so that many values reach the ceiling.
    let large = |x: Tensor| (0..3).fold(x, |x, _| x.clone() + x);
    check(&|x| head(large(stem(x, 6)).relu6()));
    let norm = |x: Tensor| x.conv2d("a", Conv::new(5, 3).padding(1).no_bias()).batch_norm("bn");
    check(&|x| head(norm(large(stem(x, 3))).relu6()));
    check(&|x| {
        let x = large(stem(x, 5));
        head((norm(x.clone()) + x).relu6())
    });
}

#[test]
fn convolution() {
    let layer = |conv: Conv| check(&move |x| head(stem(x, 6).relu().conv2d("conv", conv).relu()));
    layer(Conv::new(5, 3));
    layer(Conv::new(5, 1));
    layer(Conv::new(5, 1).stride(2).no_bias());
    layer(Conv::new(5, 3).stride(2).padding(1));
    layer(Conv::new(5, 3).dilation(2).padding(2));
    layer(Conv::new(4, 3).groups(2).padding(1).no_bias());
    layer(Conv::new(12, 3).groups(6).stride(2).padding(1));
    layer(Conv::new(3, 2).groups(3).dilation(3));
    layer(Conv::new(5, 5).stride(3).padding(4));
    layer(conv(5, [3, 2], [2, 1], [1, 2], [1, 2]));
    layer(conv(4, [1, 5], [1, 2], [0, 2], [1, 1]).groups(2));
    layer(conv(4, [7, 9], [1, 1], [0, 0], [1, 1]));
    layer(Conv::new(5, 3).padding_sides([[0, 2], [1, 0]]));
    layer(Conv::new(6, 5).stride(2).same());
    layer(Conv::new(6, 4).stride(3).dilation(2).groups(6).same());
}

#[test]
fn pools() {
    check(&|x| head(stem(x, 3).max_pool(Pool::new(2))));
    check(&|x| head(stem(x, 3).relu().max_pool(Pool::new(3).stride(2).padding(1))));
    check(&|x| head(stem(x, 3).max_pool(Pool::new(3).stride(1))));
    check(&|x| head(stem(x, 3).avg_pool(Pool::new(2))));
    check(&|x| head(stem(x, 3).avg_pool(Pool::new(3).stride(2).padding(1))));
    check(&|x| head(stem(x, 3).max_pool(Pool::new(2).stride(2).same())));
    check(&|x| head(stem(x, 3).avg_pool(Pool::new(3).stride(2).padding_sides([[0, 1], [1, 0]]))));
    for output in [[1, 1], [2, 3], [7, 9], [3, 4], [9, 2]] {
        check(&|x| head(stem(x, 3).adaptive_avg_pool(output)));
    }
}

#[test]
fn dropout() {
    check(&|x| head(stem(x, 3).dropout("drop", 0.3)));
    check(&|x| {
        let x = stem(x, 3);
        head(x.clone().relu().drop_path("drop", 0.4) + x)
    });
    check(&|x| x.flatten().linear("a", 9).relu().dropout("drop", 0.5).linear("b", 4));
}

#[test]
fn batch_norm() {
    let conv = |x: Tensor, name: &str| x.conv2d(name, Conv::new(5, 3).padding(1).no_bias());
    check(&|x| head(conv(x, "a").batch_norm("bn")));
    check(&|x| head(conv(x, "a").batch_norm("bn").relu()));
    // Without parameters before it, and after a layer that is not a convolution.
    check(&|x| head(x.batch_norm("bn").relu()));
    check(&|x| x.flatten().linear("a", 6).relu().batch_norm("bn").linear("b", 4));
    // Residuals with and without ReLU, on either side of the sum, and through a projection.
    check(&|x| {
        let x = conv(x, "a").batch_norm("bn_a").relu();
        head(conv(x.clone(), "b").batch_norm("bn_b") + x)
    });
    check(&|x| {
        let x = conv(x, "a").batch_norm("bn_a").relu();
        head((x.clone() + conv(x, "b").batch_norm("bn_b")).relu())
    });
    check(&|x| {
        let x = conv(x, "a").batch_norm("bn_a").relu();
        let side = x.clone().conv2d("side", Conv::new(5, 1).stride(2).no_bias()).batch_norm("bn_side");
        let x = x.conv2d("b", Conv::new(5, 3).stride(2).padding(1).no_bias()).batch_norm("bn_b").relu();
        head((conv(x, "c").batch_norm("bn_c") + side).relu())
    });
}

#[test]
fn values_with_many_uses() {
    check(&|x| {
        let x = stem(x, 4);
        head(x.clone() + x)
    });
    check(&|x| {
        let x = stem(x, 4);
        head(x.clone().relu() + x)
    });
    check(&|x| {
        let x = stem(x, 4);
        head(x.clone().conv2d("a", Conv::new(4, 1)) + x)
    });
    check(&|x| {
        let x = stem(x, 4).relu();
        let conv = |x: &Tensor, name: &str| x.clone().conv2d(name, Conv::new(4, 3).padding(1));
        let y = conv(&x, "a") + conv(&x, "b") + x.clone().avg_pool(Pool::new(3).stride(1).padding(1));
        head((y.clone() + conv(&y, "c") + x).relu() + y)
    });
    // The batch norm's output is used twice, so that nothing fuses.
    check(&|x| {
        let x = stem(x, 4).relu();
        let y = x.clone().conv2d("a", Conv::new(4, 1).no_bias()).batch_norm("bn");
        head(y.clone().relu() + y + x)
    });
    // One input, two branches that end in different layers.
    check(&|x| {
        let x = stem(x, 3).relu();
        let a = x.clone().flatten().linear("a", 4);
        a + x.max_pool(Pool::new(2)).flatten().linear("b", 4)
    });
}

#[test]
fn products() {
    check(&|x| {
        let x = stem(x, 4);
        head(x.clone() * x.clone().relu() + x)
    });
    check(&|x| {
        let x = stem(x, 4);
        head(x.clone() * x)
    });
}

#[test]
fn products_with_a_factor_for_each_channel() {
    check(&|x| head(stem(x, 4).scale_channels("layer.scale", 0.5).relu()));
    check(&|x| {
        let x = stem(x, 4);
        let gate = x.clone().adaptive_avg_pool([1, 1]).conv2d("gate", Conv::new(4, 1));
        head(x * gate)
    });
    check(&|x| {
        let x = stem(x, 4);
        let gate = x.clone().flatten().linear("gate", 4);
        head(x * gate)
    });
}

#[test]
fn smooth_activations() {
    check(&|x| head(stem(x, 4).sigmoid()));
    check(&|x| head(stem(x, 4).silu()));
    check(&|x| head(stem(x, 4).gelu()));
    check(&|x| head(stem(x, 4).affine(4.0, 0.0).hard_swish()));
}

#[test]
fn layer_norm() {
    check(&|x| head(stem(x, 5).layer_norm("norm", 1e-2)));
    check(&|x| x.flatten().linear("a", 6).layer_norm("norm", 1e-5).relu().linear("b", 4));
    // Without parameters before it.
    check(&|x| head(x.layer_norm("norm", 1e-3)));
}

#[test]
fn tokens() {
    check(&|x| stem(x, 5).tokens().linear("a", 6).gelu().linear("b", 3).images([7, 9]).flatten().linear("c", 4));
    check(&|x| stem(x, 5).tokens().layer_norm("norm", 1e-2).mean_tokens().linear("a", 4));
    check(&|x| {
        let x = stem(x, 5).tokens();
        let gate = x.clone().mean_tokens().linear("gate", 5);
        (x.clone().linear("a", 5) * x * gate).mean_tokens().linear("b", 4)
    });
}

#[test]
fn attention() {
    let small = |x: Tensor| x.conv2d("stem", Conv::new(6, 3).stride(2)).tokens();
    for heads in [1, 2, 3] {
        check(&|x| small(x).linear("qkv", 18).attention(heads).linear("proj", 5).mean_tokens().linear("fc", 4));
    }
    // One token, whose query and key do not matter.
    check_batch(
        &|x| x.conv2d("qkv", Conv::new(6, 1)).tokens().attention(1).mean_tokens().linear("fc", 4),
        &CompileOptions { size: [2, 1], ..options() },
        |_| {},
    );
    // Residual, normed and twice.
    check(&|x| {
        let block = |x: Tensor, name: &str| {
            let y = x.clone().layer_norm(&format!("{name}.norm"), 1e-2).linear(&format!("{name}.qkv"), 18).attention(3);
            x + y.linear(&format!("{name}.proj"), 6)
        };
        block(block(small(x), "a"), "b").mean_tokens().linear("fc", 4)
    });
}

#[test]
fn trained_and_selected_tokens() {
    let block = |x: Tensor| x.linear("qkv", 18).attention(2);
    let small = |x: Tensor| x.conv2d("stem", Conv::new(6, 3).stride(3)).tokens();
    check(&|x| {
        block(small(x).prepend_tokens("cls_token", 1, 0.5).add_tokens("pos_embed", 0.5)).token(0).linear("fc", 4)
    });
    check(&|x| {
        let x = small(x).add_tokens("pos_embed", 0.5).prepend_tokens("reg_token", 3, 0.5);
        block(x.prepend_tokens("cls_token", 1, 0.5)).select_tokens(1..3).mean_tokens().linear("fc", 4)
    });
    // The gradient of the middle tokens alone, and of all.
    check(&|x| small(x).linear("a", 5).select_tokens(2..5).gelu().mean_tokens().linear("fc", 4));
    check(&|x| small(x).linear("a", 5).select_tokens(0..6).gelu().mean_tokens().linear("fc", 4));
    // A batch of one sample.
    let options = CompileOptions { batch: 1, ..options() };
    check_batch(
        &|x| block(small(x).prepend_tokens("cls_token", 1, 0.5).add_tokens("pos_embed", 0.5)).token(0).linear("fc", 4),
        &options,
        |_| {},
    );
}

fn residual_net(x: Tensor) -> Tensor {
    let conv = |x: Tensor, name: &str| x.conv2d(name, Conv::new(5, 3).padding(1).no_bias());
    let x = conv(x, "a").batch_norm("bn_a").relu();
    let y = conv(x.clone(), "b").batch_norm("bn_b").relu();
    head((conv(y, "c").batch_norm("bn_c") + x).relu())
}

/// Ensures that gradient tests of the residual net cover fused operations.
#[test]
fn the_residual_net_is_fused() {
    let program = program(&residual_net, &options());
    let text = program.plans().train.as_ref().unwrap().to_string();
    assert!(text.contains("batch of 189 relu residual"), "{text}");
    assert!(!text.contains("= relu") && !text.contains("= add"), "{text}");
}

#[test]
fn frozen_parts() {
    let frozen = |patterns: &[&str]| {
        let freeze = Freeze::Patterns(patterns.iter().map(ToString::to_string).collect());
        check_batch(&residual_net, &CompileOptions { freeze, ..options() }, |_| {});
    };
    frozen(&["bn_a", "bn_b", "bn_c"]);
    frozen(&["bn_c"]);
    frozen(&["bn_b.weight"]);
    frozen(&["bn_b.bias", "b.weight"]);
    frozen(&["a", "bn_a"]);
    frozen(&["a", "bn_a", "b", "bn_b", "c", "bn_c"]);
    frozen(&["fc.bias", "c.weight"]);
}

#[test]
fn label_smoothing_and_places_without_a_sample() {
    let smoothed =
        |smoothing| CompileOptions { loss: Loss::CrossEntropy { smoothing, weights: Vec::new() }, ..options() };
    check_batch(&residual_net, &smoothed(0.1), |_| {});
    check_batch(&residual_net, &options(), |batch| batch.labels[1] = -1);
    check_batch(&|x| head(stem(x, 3)), &smoothed(0.3), |b| b.labels[0] = -1);
}

#[test]
fn global_batches_that_are_not_full() {
    let weighted = CompileOptions { weighted_loss: true, shards: 2, ..options() };
    check_batch(&residual_net, &weighted, |_| {});
    let log_p = |x: Tensor, y: Tensor| (x.log_softmax() * y).sum_classes().affine(-1.0, 0.0);
    let loss = Loss::Custom(PerSample::new(log_p));
    check_batch(&residual_net, &CompileOptions { loss, ..weighted }, |_| {});
}

#[test]
fn mixtures_of_two_samples() {
    let mixed =
        CompileOptions { mixed: true, loss: Loss::CrossEntropy { smoothing: 0.1, weights: Vec::new() }, ..options() };
    check_batch(&residual_net, &mixed, |_| {});
    check_batch(&residual_net, &CompileOptions { shards: 3, ..mixed.clone() }, |batch| batch.labels[1] = -1);
    let log_p = |x: Tensor, y: Tensor| (x.log_softmax() * y).sum_classes().affine(-1.0, 0.0);
    let loss = Loss::Custom(PerSample::new(log_p));
    check_batch(&residual_net, &CompileOptions { loss, ..mixed }, |batch| batch.labels[2] = -1);
}

#[test]
fn values_as_targets() {
    let error = |x: Tensor, y: Tensor| (x.sum_classes() + y.sum_classes().affine(-1.0, 0.0)).power(2.0);
    let loss = Loss::Custom(PerSample::new(error));
    let target = TargetKind::Values(2);
    let options = CompileOptions { loss, target, weighted_loss: true, shards: 2, ..options() };
    check_batch(&residual_net, &options, |_| {});
    check_batch(&|x| x.flatten().linear("fc", 1), &CompileOptions { classes: 1, ..options }, |batch| {
        batch.labels[0] = -1
    });
}

/// Each function of logits is used as a loss, also with a place without a sample, where the function may be infinite.
#[test]
fn losses_of_functions() {
    let check = |function: fn(Tensor, Tensor) -> Tensor| {
        let options = CompileOptions { loss: Loss::Custom(PerSample::new(function)), ..options() };
        let model = |x: Tensor| head(stem(x, 3).relu());
        check_batch(&model, &options, |_| {});
        check_batch(&model, &options, |batch| batch.labels[1] = -1);
        check_batch(&model, &CompileOptions { batch: 2, shards: 3, ..options }, |batch| batch.labels[3] = -1);
    };
    check(|x, y| (x.log_softmax() * y).sum_classes());
    check(|x, y| (x.log_softmax().exp() * y).sum_classes().log());
    check(|x, y| (x.clone() * x).sum_classes() + y.sum_classes().affine(2.0, -1.0));
    check(|x, _| x.affine(-0.5, 0.25).power(3.0).sum_classes());
    check(|x, y| (x.power(2.0) * y).sum_classes().power(0.25));
    check(|x, _| x.clamp_min(0.1).sum_classes());
    check(|x, _| x.scale_classes(&[1.0, -0.5, 3.0, 0.25]).sum_classes().power(2.0));
    check(|x, y| {
        let log_p = (x.log_softmax() * y).sum_classes();
        log_p.clone().exp().affine(-1.0, 1.0).power(2.0) * log_p.affine(-1.0, 0.0)
    });
}

/// Of one value twice, of several, and of one that wants no gradient.
#[test]
fn expressions() {
    let [x, y] = Expression::operands();
    let softplus = x.maximum(0.0) + (1.0 + (-&x).minimum(&x).exp()).log();
    let of_one = [
        &x * softplus.tanh(),
        0.5 * &x * (1.0 + (&x * std::f32::consts::FRAC_1_SQRT_2).erf()),
        &x * (&x + 3.0).clamp(0.0, 6.0) / 6.0,
        Expression::where_above(&x, 0.1, &x, x.exp() - 1.0),
        (1.0 + &x * &x).sqrt().power(-1.5),
    ];
    for expression in of_one {
        check(&|image| head(stem(image, 3).pointwise(&expression, &[])));
    }
    let of_two = [&x * y.sigmoid(), &x / (1.0 + &y * &y), x.minimum(&y) - 0.5 * &x, &x - 2.0 * &y];
    for expression in of_two {
        check(&|image| {
            let [a, b] = [1, 3].map(|kernel| {
                let conv = Conv::new(3, kernel).padding(kernel / 2);
                image.clone().conv2d(&format!("conv{kernel}"), conv)
            });
            head(a.clone().pointwise(&expression, &[b]).pointwise(&expression, &[a]))
        });
        check(&|image| {
            let x = image.clone().conv2d("conv", Conv::new(3, 3).padding(1)).pointwise(&expression, &[image]);
            head(x.clone().pointwise(&expression, &[x]))
        });
    }
}

/// With several shards the loss and the gradients are sums over all shards.
#[test]
fn shards_with_and_without_synchronised_batch_norm() {
    for shards in [2, 3, 5] {
        for sync_batch_norm in [false, true] {
            let options = CompileOptions { batch: 2, shards, sync_batch_norm, ..options() };
            check_batch(&residual_net, &options, |_| {});
            let freeze = Freeze::Patterns(vec!["bn_b".into()]);
            check_batch(&residual_net, &CompileOptions { freeze, ..options }, |_| {});
        }
    }
}
