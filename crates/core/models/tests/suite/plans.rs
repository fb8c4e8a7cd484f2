//! Every model of the zoo compiles to valid plans, for any size, shards and passes.

use enmasse_graph::{CompileOptions, Freeze, GraphError, Op, Phase, Plans, Precision, compile, compile_evaluation};
use enmasse_models::{Model, ViT, find, models};
use enmasse_reference::aliasing_is_safe;
use proptest::prelude::*;

use crate::common::near;

fn check(model: &Model, options: &CompileOptions) {
    let forward = |x| model.forward(x, options.classes);
    let plans = compile(&forward, options).unwrap_or_else(|error| panic!("{} {options:?}: {error}", model.name()));
    let Plans { train, evaluate, .. } = &plans;
    for plan in train.iter().chain([evaluate]) {
        assert_eq!(aliasing_is_safe(plan), Ok(()), "{} {options:?}", model.name());
    }
    let alone = compile_evaluation(&forward, options).unwrap();
    assert_eq!(aliasing_is_safe(&alone.evaluate), Ok(()), "{} {options:?}", model.name());
    // Evaluating a run and evaluating bare weights use the same arithmetic.
    let work = |plans: &Plans| -> Vec<_> {
        plans.evaluate.instructions.iter().map(|node| (node.op.clone(), node.layer.clone())).collect()
    };
    assert_eq!(work(&plans), work(&alone), "{}", model.name());
}

#[test]
fn shards_sync_batch_norm_and_frozen_layers() {
    let step = if test_support::time() { 1 } else { 2 };
    let head = |plans: Plans| plans.state[0].name.split('.').next().unwrap_or_default().to_string();
    for model in models() {
        let alone =
            compile_evaluation(&|x| model.forward(x, 10), &CompileOptions::new(model.name(), 4, near(64, model), 10))
                .unwrap();
        let first = Freeze::Patterns(vec![head(alone)]);
        let freezes = [Freeze::default(), first, Freeze::AllButClassifier(Vec::new())];
        let shared = [(1, false), (1, true), (4, false), (4, true)];
        let all = shared.into_iter().flat_map(|shared| freezes.iter().map(move |freeze| (shared, freeze.clone())));
        // Every second pair still has each value of both.
        for ((shards, sync_batch_norm), freeze) in all.step_by(step) {
            let options = CompileOptions::new(model.name(), 4, near(64, model), 10);
            check(model, &CompileOptions { shards, sync_batch_norm, freeze, ..options });
        }
    }
}

#[test]
fn drop_path_grows_over_the_blocks_of_a_vision_transformer() {
    let check = |depth: usize, own: f32, drop_path: Option<f32>, expected: &[(&str, f32)]| {
        let vit = ViT::new(16, 48, 3).depth(depth).drop_path(own);
        let options = CompileOptions { drop_path, ..CompileOptions::new("vit", 2, 64, 5) };
        let plan = compile(&|x| vit.forward(x, 5), &options).unwrap().train.unwrap();
        let found: Vec<(&str, f32)> = plan
            .phase(Phase::Forward)
            .iter()
            .filter_map(|node| match &node.op {
                Op::Dropout(drop) => Some((drop.layer.as_str(), drop.probability)),
                _ => None,
            })
            .collect();
        assert_eq!(found, expected, "{depth} {own} {drop_path:?}");
    };
    check(2, 0.0, None, &[]);
    check(1, 0.5, None, &[]);
    let [first, second] = [0.25, 0.5];
    let names = ["blocks.1.drop_path1", "blocks.1.drop_path2", "blocks.2.drop_path1", "blocks.2.drop_path2"];
    let all = [(names[0], first), (names[1], first), (names[2], second), (names[3], second)];
    check(3, 0.5, None, &all);
    check(3, 0.0, Some(0.5), &all);
    check(3, 0.5, Some(0.0), &[]);
}

#[test]
fn drop_path_needs_branches_to_leave_out() {
    let check = |name: &str, rate: f32, is_taken: bool| {
        let model = find(name).unwrap();
        let options = CompileOptions { drop_path: Some(rate), ..CompileOptions::new(name, 2, 64, 5) };
        let found = compile(&|x| model.forward(x, 5), &options).map(drop).map_err(|error| error.to_string());
        let refused = "`drop_path` has no effect: the model has no blocks that can be left out".to_owned();
        assert_eq!(found, if is_taken { Ok(()) } else { Err(refused) }, "{name} {rate}");
    };
    check("convnext_atto", 0.1, true);
    check("efficientnet_b0", 0.1, true);
    check("resnet18", 0.1, false);
    check("resnet18", 0.0, true);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_size_and_batch(
        index in 0..models().len(),
        batch in 2usize..9,
        // AlexNet's third pooling needs 63 pixels.
        height in 63usize..130,
        width in 63usize..130,
        classes in 2usize..30,
        bf16: bool,
    ) {
        let model = &models()[index];
        let [height, width] = [height, width].map(|size| near(size, model));
        let precision = if bf16 { Precision::Bf16 } else { Precision::F32 };
        check(model, &CompileOptions { size: [height, width], precision, ..CompileOptions::new(model.name(), batch, 1, classes) });
    }
}

#[test]
fn images_too_small_to_train_are_refused() {
    let error = |name: &str, batch: usize, size: usize| {
        let model = find(name).unwrap();
        compile(&|x| model.forward(x, 10), &CompileOptions::new(name, batch, size, 10)).unwrap_err()
    };
    // At 32x32 the last stage has one pixel, and a single sample has no variance.
    let one = error("resnet18", 1, 32);
    assert!(matches!(&one, GraphError::Shape { place, .. } if place.layer == "layer4.0.bn1"), "{one}");
    let too_small = |name: &str, size: usize, expected: &str| {
        let small = error(name, 4, size);
        assert!(matches!(&small, GraphError::Shape { place, .. } if place.layer == expected), "{small}");
        assert!(small.to_string().contains("`size`"), "{small}");
    };
    too_small("lenet", 15, "conv2");
    too_small("alexnet", 62, "features.10");
    too_small("vgg16", 31, "features.28");
    // Patches cover the images.
    too_small("vit_tiny_patch16_224", 40, "patch_embed.proj");
    too_small("vit_small_patch14_dinov2", 64, "patch_embed.proj");
    // The CIFAR stem and MobileNetV2 accept images of 32 and smaller ones.
    for (name, size) in [("resnet18_cifar", 8), ("mobilenet_v2", 17), ("vgg19_bn", 32), ("lenet", 16)] {
        let model = find(name).unwrap();
        assert!(compile(&|x| model.forward(x, 10), &CompileOptions::new(name, 4, size, 10)).is_ok(), "{name}");
    }
}
