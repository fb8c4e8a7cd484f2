//! Operations with attributes that no model of the zoo has, and what cannot be exported.

use enmasse_export::{ExportError, ImageInput, Outputs, to_onnx};
use enmasse_graph::ops::{Custom, CustomOperation, Parallel};
use enmasse_graph::{Builder, Conv, Expression, Forward, Linear, Mode, Pool, Tensor};
use enmasse_tensor::Shape;

use crate::common::{CLASSES, Runtime, compare};

fn end(x: Tensor) -> Tensor {
    x.flatten().linear("fc", CLASSES)
}

#[test]
fn onnx_runtime_computes_the_same() {
    let Some(mut runtime) = Runtime::start() else { return };
    let mut check = |name: &str, size: usize, model: &dyn Fn(Tensor) -> Tensor| {
        for channels in [3, 1] {
            compare(&mut runtime, name, size, &ImageInput::ALL, channels, model);
        }
    };
    check("groups, dilation, sides", 13, &|x| {
        let x = x.conv2d("a", Conv::new(6, 3).padding_sides([[0, 2], [1, 0]]));
        let x = x.conv2d("b", Conv::new(12, 3).groups(3).dilation(2).padding(2).stride(2).no_bias()).batch_norm("bn");
        end(x.conv2d("c", Conv::new(12, 3).groups(12).same()).silu())
    });
    check("pooling", 17, &|x| {
        let x = x.conv2d("a", Conv::new(5, 1));
        let x = x.max_pool(Pool::new(3).stride(2).padding_sides([[1, 0], [0, 1]]));
        end(x.avg_pool(Pool::new(2).stride(1).padding(1)).adaptive_avg_pool([4, 3]))
    });
    check("pooling of equal windows", 12, &|x| end(x.conv2d("a", Conv::new(5, 1)).adaptive_avg_pool([4, 6])));
    check("pooling to more", 3, &|x| end(x.conv2d("a", Conv::new(5, 1)).adaptive_avg_pool([5, 4])));
    check("flatten", 5, &|x| {
        x.flatten().linear("a", Linear::new(9).no_bias()).batch_norm("bn").relu6().linear("fc", CLASSES)
    });
    check("norms and factors of channels", 6, &|x| {
        let x = x.conv2d("a", Conv::new(8, 1)).layer_norm("ln", 1e-3).scale_channels("gamma", 0.5);
        let gate = x.clone().adaptive_avg_pool([1, 1]).flatten().linear("gate", 8).sigmoid();
        let pixels = x.clone().adaptive_avg_pool([1, 1]).conv2d("se", Conv::new(8, 1)).sigmoid();
        let x = x * gate.clone() * pixels;
        let x = x.tokens().batch_norm("bn").layer_norm("ln2", 1e-6).scale_channels("gamma2", 0.5) * gate;
        end(x.linear("b", Linear::new(6).no_bias()).images([6, 6]).hard_swish())
    });
    check("tokens", 8, &|x| {
        let x = x.patches("patches", 12, 2).prepend_tokens("cls", 2, 0.5).add_tokens("position", 0.5);
        let x = x.clone().linear("qkv", 36).attention(3) + x.gelu();
        let x = x.select_tokens(1..9);
        (x.clone().token(3).linear("fc0", 12).relu() + x.mean_tokens()).linear("fc", CLASSES)
    });
    check("functions", 4, &|x| {
        let [a, b] = Expression::operands();
        let many = Expression::where_above(&a, &b * 0.5, (&a - &b).tanh().abs(), a.minimum(&b).maximum(-1.0).erf());
        let more = many + (a.clone().abs() + 1.0).log() / (1.0 + (-&b).exp()) + (&b * &b + 0.1).sqrt().sigmoid();
        let more = more + (a.abs() + 0.5).power(1.7);
        let x = x.conv2d("a", Conv::new(4, 1));
        let y = x.clone().affine(0.5, 1.0).clamp_min(0.1).power(1.5).log().exp();
        end(y.pointwise(&more, &[x]))
    });
    check("classes", 4, &|x| {
        let x = x.flatten().linear("a", CLASSES).log_softmax();
        x.scale_classes(&[1.0, 2.0, 0.5, 1.5, 1.0, 0.7, 1.2]).linear("fc", CLASSES)
    });
}

#[derive(Debug)]
struct Twice;

impl CustomOperation for Twice {
    fn name(&self) -> &'static str {
        "twice"
    }

    fn shape(&self, operands: &[Shape]) -> Result<Shape, String> {
        Ok(operands[0].clone())
    }

    fn compute(&self, operands: &[&[f32]], result: &mut [f32], _: &Parallel) {
        result.iter_mut().zip(operands[0]).for_each(|(y, x)| *y = 2.0 * x);
    }
}

#[test]
fn what_cannot_be_exported_is_named() {
    let export = |model: &dyn Fn(Tensor) -> Tensor| {
        let builder = Builder::new(1, [4, 4], Mode::Evaluate, 0);
        let logits = model(builder.pixels(&[0.5], &[0.25]));
        let forward: Forward = builder.finish(&logits, CLASSES).unwrap();
        to_onnx("net", &forward, &[], ImageInput::default(), &Outputs::Softmax { temperature: 1.0 }).unwrap_err()
    };
    let error = export(&|x| end(x.custom(Custom::new(Twice), &[])));
    assert_eq!(error, ExportError::Operation { operation: "twice", layer: "input".into() });
    let said = "layer input: its operation \"twice\" cannot be exported, as ONNX has no nodes for it";
    assert_eq!(error.to_string(), said);
    let error = export(&end);
    assert_eq!(error.to_string(), "the weights have no fc.weight with the model's 112 numbers");
}
