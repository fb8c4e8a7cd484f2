//! Gradient checkpointing: the same bits in less memory.

use enmasse_graph::{Arena, CompileOptions, Plans, Precision, Tensor, compile};
use enmasse_models::{ResNet, ViT};
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
        check(&|x| ResNet::resnet34().width(8).forward(x, 5), &options("resnet34"), 0.8);
        check(&|x| ResNet::resnet50().width(8).forward(x, 5), &options("resnet50"), 0.6);
    }
}
