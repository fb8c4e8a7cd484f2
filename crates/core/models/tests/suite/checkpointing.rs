//! Gradient checkpointing: the same bits in less memory.

use enmasse_graph::{Arena, CompileOptions, Conv, Plans, Pool, Precision, Recompute, Tensor, compile};
use enmasse_models::{
    ConvNext, EfficientNet, EfficientNetLite, MobileNetV2, MobileNetV3, RegNetY, ResNet, ViT, find, models,
};
use enmasse_reference::aliasing_is_safe;

use crate::frozen::train;

fn plans(model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions, recompute: Recompute) -> Plans {
    compile(model, &CompileOptions { recompute, ..options.clone() }).unwrap()
}

fn check(model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions, share: f64) {
    let usual = plans(model, options, Recompute::Nothing);
    let again = plans(model, options, Recompute::All);
    let bytes = |plans: &Plans| plans.train.as_ref().unwrap().arena_bytes(Arena::Activations) as f64;
    let (found, of) = (bytes(&again), bytes(&usual));
    assert!(found < share * of, "{}: {found} bytes of {of}", options.model);
    assert_eq!(aliasing_is_safe(again.train.as_ref().unwrap()), Ok(()), "{}", options.model);
    assert_eq!(usual.evaluate, again.evaluate, "{}", options.model);
    assert!(train(&usual) == train(&again), "{} in {}: other bits", options.model, options.precision);
}

#[test]
fn steps_have_the_same_bits_in_less_memory() {
    for precision in [Precision::F32, Precision::Bf16] {
        let options = |name: &str| CompileOptions { precision, ..CompileOptions::new(name, 2, 64, 5) };
        let vit = ViT::new(8, 48, 3).layer_scale(0.1).registers(2);
        check(&|x| vit.forward(x, 5), &options("vit"), 0.3);
        let vit = vit.depth(4).drop_path(0.4);
        check(&|x| vit.forward(x, 5), &options("vit with drop path"), 0.5);
        check(&|x| ResNet::resnet34().width(8).forward(x, 5), &options("resnet34"), 0.8);
        check(&|x| ResNet::resnet50().width(8).forward(x, 5), &options("resnet50"), 0.6);
        check(&|x| MobileNetV2::new().width(0.25).forward(x, 5), &options("mobilenet_v2"), 0.6);
        check(&|x| MobileNetV3::small().width(0.25).forward(x, 5), &options("mobilenet_v3"), 0.6);
        check(&|x| EfficientNet::b0().width(0.25).forward(x, 5), &options("efficientnet"), 0.6);
        check(&|x| EfficientNetLite::lite0().width(0.25).forward(x, 5), &options("efficientnet_lite"), 0.6);
        let narrow = RegNetY::new([1, 2, 3, 2], [16, 24, 32, 40], 8);
        check(&|x| narrow.forward(x, 5), &options("regnet_y"), 0.9);
        let narrow = ConvNext::new([2, 2, 4, 2], [8, 16, 24, 32]).drop_path(0.5);
        check(&|x| narrow.forward(x, 5), &options("convnext"), 0.6);
    }
}

#[test]
fn a_budget_is_met_with_the_same_bits() {
    let check = |name: &str, model: &dyn Fn(Tensor) -> Tensor| {
        let options = CompileOptions::new(name, 2, 64, 5);
        let usual = plans(model, &options, Recompute::Nothing);
        let all = plans(model, &options, Recompute::All).bytes();
        let budget = (usual.bytes() + all) / 2;
        let again = plans(model, &options, Recompute::Within(budget));
        let bytes = again.bytes();
        let plan = again.train.as_ref().unwrap();
        assert!(bytes <= budget && bytes < usual.bytes(), "{name}: {bytes} bytes of {budget}");
        let recomputed = plan.recomputed.as_ref().unwrap();
        assert!((1..=recomputed.blocks).contains(&recomputed.layers.len()), "{name}: {recomputed}");
        assert_eq!(aliasing_is_safe(plan), Ok(()), "{name}");
        assert!(train(&usual) == train(&again), "{name}: other bits");
    };
    check("resnet50", &|x| ResNet::resnet50().width(8).forward(x, 5));
    check("vit", &|x| ViT::new(8, 48, 4).forward(x, 5));
    check("mobilenet_v3", &|x| MobileNetV3::small().width(0.25).forward(x, 5));
    // Its blocks are found.
    check("pools", &|x| {
        let conv = |x: Tensor, name: &str, width| {
            let conv = |x: Tensor, part| x.conv2d(&format!("{name}.{part}"), Conv::new(width, 3).padding(1)).relu();
            conv(conv(x, 0), 1).max_pool(Pool::new(2))
        };
        let x = conv(conv(conv(x, "a", 8), "b", 12), "c", 16);
        x.adaptive_avg_pool([1, 1]).flatten().dropout("drop", 0.5).linear("fc", 5)
    });
}

#[test]
fn budgets_of_the_zoo() {
    for name in ["resnet18", "resnet50", "vgg16_bn", "alexnet", "mobilenet_v2", "efficientnet_b0", "convnext_tiny"] {
        let model = find(name).unwrap();
        let forward = |x| model.forward(x, 10);
        let options = CompileOptions::new(name, 8, 64, 10);
        let whole = plans(&forward, &options, Recompute::Nothing).bytes();
        let least = plans(&forward, &options, Recompute::All).bytes();
        assert!(least < whole, "{name}: {least} of {whole} bytes");
        let mut before = u64::MAX;
        for part in [1, 3, 5, 7] {
            let budget = least + (whole - least) * part / 8;
            let again = plans(&forward, &options, Recompute::Within(budget));
            let recomputed = again.train.as_ref().and_then(|plan| plan.recomputed.clone()).unwrap();
            assert!(again.bytes() <= budget, "{name}: {} bytes of {budget}", again.bytes());
            assert!(recomputed.flops[1] <= before, "{name} within {budget}: {recomputed}, and {before} before");
            before = recomputed.flops[1];
        }
    }
}

#[test]
fn every_model_with_windows_has_blocks() {
    for model in models() {
        let options = CompileOptions { recompute: Recompute::All, ..CompileOptions::new(model.name(), 2, 112, 10) };
        let found = compile(&|x| model.forward(x, 10), &options);
        match found {
            Ok(plans) => assert_eq!(plans.train.unwrap().recomputed.map(|again| again.layers.is_empty()), Some(false)),
            Err(error) => {
                let expected = "`recompute` has no effect: no block of the model can be computed again";
                assert_eq!((model.name(), error.to_string().as_str()), ("mlp", expected));
            }
        }
    }
}
