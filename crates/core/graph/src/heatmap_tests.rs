//! Tests of heatmaps: which map they are of, what is refused, and what their plans consist of.

use super::*;
use crate::{Conv, Pool, compile_evaluation};

fn heatmaps(model: &dyn Fn(Tensor) -> Tensor, size: usize) -> Result<HeatmapPlans, GraphError> {
    Target::default().compile_heatmaps(model, &CompileOptions::new("net", 2, size, 10))
}

fn head(x: Tensor) -> Tensor {
    x.adaptive_avg_pool([1, 1]).flatten().linear("fc", 10)
}

/// Halves each side, beside a shortcut that does so, too.
fn block(x: Tensor, name: &str) -> Tensor {
    let conv = |x: Tensor, part: &str, kernel: usize, stride: usize| {
        let window = Conv::new(8, kernel).stride(stride).padding(kernel / 2).no_bias();
        x.conv2d(&format!("{name}.{part}"), window).batch_norm(&format!("{name}.{part}_bn"))
    };
    let y = conv(conv(x.clone(), "a", 3, 1).relu(), "b", 3, 2);
    (y + conv(x, "shortcut", 1, 2)).relu()
}

#[test]
fn the_map_is_the_last_one_of_several_pixels_from_which_all_follows() {
    let blocks = |x: Tensor| head(block(block(block(x, "one"), "two"), "three"));
    let check = |model: &dyn Fn(Tensor) -> Tensor, size: usize, grid: [usize; 2], layer: &str| {
        let found = heatmaps(model, size).unwrap();
        assert_eq!((found.grid, found.method), (grid, HeatmapMethod::GradCam), "{layer} {size}");
        let plan = &found.plans.evaluate;
        let product = plan.instructions.iter().rfind(|node| matches!(node.op, Op::Multiply(_))).unwrap();
        let map = plan.instructions.iter().find(|node| node.outputs.contains(&product.inputs[0])).unwrap();
        assert_eq!(map.layer, layer, "{size}\n{plan}");
        assert_eq!(**plan.shape(plan.logits), [2, grid[0] * grid[1]]);
    };
    check(&blocks, 32, [4, 4], "three.shortcut_bn");
    check(&blocks, 16, [2, 2], "three.shortcut_bn");
    // The last block makes a single pixel of a map that both of its branches read; inside it no map has all.
    check(&blocks, 8, [2, 2], "two.shortcut_bn");
    // A gate of the whole image is no map, nor is what a pooling to a fixed size makes of one.
    let gated = |x: Tensor| {
        let x = x.conv2d("conv", Conv::new(8, 3)).relu();
        let gate = x.clone().adaptive_avg_pool([1, 1]).conv2d("gate", Conv::new(8, 1)).sigmoid();
        (x * gate).max_pool(Pool::new(2)).adaptive_avg_pool([2, 2]).flatten().linear("fc", 10)
    };
    check(&gated, 18, [8, 8], "gate");
}

#[test]
fn models_without_maps_are_refused() {
    let check = |model: &dyn Fn(Tensor) -> Tensor, expected: &str| {
        assert_eq!(heatmaps(model, 16).unwrap_err().to_string(), expected);
    };
    let no_map = "the model has no map of features between its images and its classes, so no heatmap";
    check(&|x: Tensor| x.flatten().linear("fc", 10), no_map);
    check(&|x: Tensor| head(x.conv2d("conv", Conv::new(8, 16))), no_map);
    let no_token = "the model has attention without a class token after it that reads patches, so no attention rollout";
    let attending = |x: Tensor| x.linear("qkv", 24).attention(2);
    check(&|x: Tensor| attending(x.patches("patches", 8, 4)).mean_tokens().linear("fc", 10), no_token);
    check(&|x: Tensor| attending(x.patches("patches", 8, 4)).token(0).linear("fc", 10), no_token);
}

#[test]
fn heatmaps_have_the_tensors_of_the_model_and_run_as_an_evaluation() {
    let rollout = |x: Tensor| {
        let x = x.patches("patches", 8, 4).prepend_tokens("cls_token", 1, 0.1);
        let y = x.clone().linear("qkv", 24).attention(2);
        (x + y).linear("qkv2", 24).attention(2).token(0).linear("fc", 10)
    };
    let convolutions = |x: Tensor| head(block(x, "one").dropout("drop", 0.5));
    for model in [&rollout as &dyn Fn(Tensor) -> Tensor, &convolutions] {
        let found = heatmaps(model, 16).unwrap();
        let options = CompileOptions::new("net", 2, 16, 10);
        assert_eq!(found.plans.state, compile_evaluation(model, &options).unwrap().state);
        let plan = &found.plans.evaluate;
        assert!(plan.instructions.iter().all(|node| node.phase <= Phase::Loss), "{plan}");
        assert!(plan.instructions.is_sorted_by_key(|node| node.phase), "{plan}");
        // No gradient of a parameter is computed.
        assert!(!plan.to_string().contains("backward_weights"), "{plan}");
        assert_eq!(plan.classes, 10);
    }
    assert_eq!(heatmaps(&rollout, 16).unwrap().method, HeatmapMethod::AttentionRollout);
    // Precision and metrics of a run do not matter.
    let options = CompileOptions {
        precision: Precision::Bf16,
        metrics: vec![crate::Metric::Top(5)],
        ..CompileOptions::new("net", 2, 16, 10)
    };
    let found = Target::default().compile_heatmaps(&convolutions, &options).unwrap();
    assert_eq!(found.plans, heatmaps(&convolutions, 16).unwrap().plans);
}
