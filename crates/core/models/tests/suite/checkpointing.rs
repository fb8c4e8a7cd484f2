//! Gradient checkpointing: the same bits in less memory.

use enmasse_graph::{Arena, CompileOptions, Plans, Precision, Tensor, compile};
use enmasse_models::{ConvNext, EfficientNet, EfficientNetLite, MobileNetV2, MobileNetV3, RegNetY, ResNet, ViT};
use enmasse_reference::aliasing_is_safe;

use crate::frozen::train;

fn check(model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions, share: f64) {
    let plans = |grad_checkpointing| -> Plans {
        compile(model, &CompileOptions { grad_checkpointing, ..options.clone() }).unwrap()
    };
    let (usual, again) = (plans(false), plans(true));
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
