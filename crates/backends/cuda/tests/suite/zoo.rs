//! Every model of the zoo, in fewer channels.

use enmasse_graph::Tensor;
use enmasse_models::{
    Airbench, AlexNet, ConvNext, EfficientNet, EfficientNetLite, MobileNetV2, MobileNetV3, RegNetY, ResNet, Vgg, ViT,
    lenet, mlp,
};

/// A model by its name, with the tolerance of its gradients.
///
/// Batch norm over the few pixels of the last activations magnifies rounding errors, the more the deeper the model: in PyTorch in f32
/// as here. Models without batch norm show that the rest is exact.
pub type Narrow = (&'static str, f64, fn(Tensor, usize) -> Tensor);

/// The zoo, in its order.
pub const NARROW: &[Narrow] = &[
    ("resnet18", 1e-3, |x, classes| ResNet::resnet18().width(8).forward(x, classes)),
    ("resnet34", 1e-3, |x, classes| ResNet::resnet34().width(8).forward(x, classes)),
    ("resnet50", 0.3, |x, classes| ResNet::resnet50().width(8).forward(x, classes)),
    ("resnet101", 0.3, |x, classes| ResNet::resnet101().width(8).forward(x, classes)),
    ("resnet152", 0.3, |x, classes| ResNet::resnet152().width(8).forward(x, classes)),
    ("resnext50_32x4d", 0.3, |x, classes| ResNet::resnet50().groups(32, 4).width(16).forward(x, classes)),
    ("resnext101_32x8d", 0.3, |x, classes| ResNet::resnet101().groups(32, 8).width(16).forward(x, classes)),
    ("resnext101_64x4d", 0.3, |x, classes| ResNet::resnet101().groups(64, 4).width(16).forward(x, classes)),
    ("wide_resnet50_2", 0.3, |x, classes| ResNet::resnet50().groups(1, 128).width(8).forward(x, classes)),
    ("wide_resnet101_2", 0.3, |x, classes| ResNet::resnet101().groups(1, 128).width(8).forward(x, classes)),
    ("resnet18-cifar", 1e-3, |x, classes| ResNet::resnet18().cifar_stem().width(8).forward(x, classes)),
    ("resnet34-cifar", 1e-3, |x, classes| ResNet::resnet34().cifar_stem().width(8).forward(x, classes)),
    ("resnet50-cifar", 0.3, |x, classes| ResNet::resnet50().cifar_stem().width(8).forward(x, classes)),
    ("resnet101-cifar", 0.3, |x, classes| ResNet::resnet101().cifar_stem().width(8).forward(x, classes)),
    ("resnet152-cifar", 0.3, |x, classes| ResNet::resnet152().cifar_stem().width(8).forward(x, classes)),
    ("airbench94", 2e-2, |x, classes| Airbench::new([8, 16, 16]).forward(x, classes)),
    ("airbench95", 2e-2, |x, classes| Airbench::new([16, 24, 24]).forward(x, classes)),
    ("alexnet", 1e-5, |x, classes| AlexNet::new().width(8).hidden(48).forward(x, classes)),
    ("vgg11", 1e-5, |x, classes| Vgg::vgg11().width(4).hidden(48).forward(x, classes)),
    ("vgg13", 1e-5, |x, classes| Vgg::vgg13().width(4).hidden(48).forward(x, classes)),
    ("vgg16", 1e-5, |x, classes| Vgg::vgg16().width(4).hidden(48).forward(x, classes)),
    ("vgg19", 1e-5, |x, classes| Vgg::vgg19().width(4).hidden(48).forward(x, classes)),
    ("vgg11_bn", 2e-2, |x, classes| Vgg::vgg11().batch_norm().width(4).hidden(48).forward(x, classes)),
    ("vgg13_bn", 2e-2, |x, classes| Vgg::vgg13().batch_norm().width(4).hidden(48).forward(x, classes)),
    ("vgg16_bn", 2e-2, |x, classes| Vgg::vgg16().batch_norm().width(4).hidden(48).forward(x, classes)),
    ("vgg19_bn", 2e-2, |x, classes| Vgg::vgg19().batch_norm().width(4).hidden(48).forward(x, classes)),
    ("mobilenet_v2", 2e-2, |x, classes| MobileNetV2::new().width(0.25).forward(x, classes)),
    ("mobilenet_v3_small", 2e-2, |x, classes| MobileNetV3::small().width(0.25).forward(x, classes)),
    ("mobilenet_v3_large", 2e-2, |x, classes| MobileNetV3::large().width(0.25).forward(x, classes)),
    ("efficientnet_b0", 2e-2, |x, classes| EfficientNet::b0().width(0.25).forward(x, classes)),
    ("efficientnet_b1", 2e-2, |x, classes| EfficientNet::b1().width(0.25).depth(0.5).forward(x, classes)),
    ("efficientnet_b2", 2e-2, |x, classes| EfficientNet::b2().width(0.25).depth(0.5).forward(x, classes)),
    ("efficientnet_b3", 2e-2, |x, classes| EfficientNet::b3().width(0.25).depth(0.5).forward(x, classes)),
    ("efficientnet_b4", 2e-2, |x, classes| EfficientNet::b4().width(0.25).depth(0.5).forward(x, classes)),
    ("efficientnet_lite0", 2e-2, |x, classes| EfficientNetLite::lite0().width(0.25).forward(x, classes)),
    ("efficientnet_lite1", 2e-2, |x, classes| EfficientNetLite::lite1().width(0.25).depth(0.5).forward(x, classes)),
    ("efficientnet_lite2", 2e-2, |x, classes| EfficientNetLite::lite2().width(0.25).depth(0.5).forward(x, classes)),
    ("efficientnet_lite3", 2e-2, |x, classes| EfficientNetLite::lite3().width(0.25).depth(0.5).forward(x, classes)),
    ("efficientnet_lite4", 2e-2, |x, classes| EfficientNetLite::lite4().width(0.25).depth(0.5).forward(x, classes)),
    ("regnet_y_400mf", 0.3, |x, classes| RegNetY::new([1, 3, 6, 6], [16, 24, 32, 40], 8).forward(x, classes)),
    ("regnet_y_800mf", 0.3, |x, classes| RegNetY::new([1, 3, 8, 2], [16, 32, 48, 64], 16).forward(x, classes)),
    ("regnet_y_1_6gf", 0.3, |x, classes| RegNetY::new([2, 6, 17, 2], [24, 24, 48, 48], 24).forward(x, classes)),
    ("regnet_y_3_2gf", 0.3, |x, classes| RegNetY::new([2, 5, 13, 1], [24, 24, 48, 48], 24).forward(x, classes)),
    ("regnet_y_8gf", 0.3, |x, classes| RegNetY::new([2, 4, 10, 1], [28, 28, 56, 56], 56).forward(x, classes)),
    ("convnext_atto", 1e-4, |x, classes| ConvNext::atto().widths([8, 16, 24, 32]).forward(x, classes)),
    ("convnext_femto", 1e-4, |x, classes| ConvNext::femto().widths([8, 16, 24, 32]).forward(x, classes)),
    ("convnext_pico", 1e-4, |x, classes| ConvNext::pico().widths([8, 16, 24, 32]).forward(x, classes)),
    ("convnext_nano", 1e-4, |x, classes| ConvNext::nano().widths([8, 16, 24, 32]).forward(x, classes)),
    ("convnext_tiny", 1e-4, |x, classes| ConvNext::tiny().widths([8, 16, 24, 32]).forward(x, classes)),
    ("convnext_small", 1e-4, |x, classes| ConvNext::small().widths([8, 16, 24, 32]).forward(x, classes)),
    ("convnext_base", 1e-4, |x, classes| ConvNext::base().widths([8, 16, 24, 32]).forward(x, classes)),
    ("vit_tiny_patch16_224", 1e-4, |x, classes| ViT::new(16, 16, 1).depth(2).forward(x, classes)),
    ("vit_small_patch16_224", 1e-4, |x, classes| ViT::new(16, 32, 2).depth(2).forward(x, classes)),
    ("vit_base_patch16_224", 1e-4, |x, classes| ViT::new(16, 48, 3).depth(2).forward(x, classes)),
    ("deit_tiny_patch16_224", 1e-4, |x, classes| ViT::new(16, 16, 1).depth(2).forward(x, classes)),
    ("deit_small_patch16_224", 1e-4, |x, classes| ViT::new(16, 32, 2).depth(2).forward(x, classes)),
    ("deit_base_patch16_224", 1e-4, |x, classes| ViT::new(16, 48, 3).depth(2).forward(x, classes)),
    ("vit_small_patch14_dinov2", 1e-4, |x, classes| dinov2().forward(x, classes)),
    ("vit_base_patch14_dinov2", 1e-4, |x, classes| dinov2().depth(3).forward(x, classes)),
    ("vit_small_patch14_reg4_dinov2", 1e-4, |x, classes| dinov2().registers(4).forward(x, classes)),
    ("lenet", 1e-5, lenet),
    ("mlp", 1e-5, mlp),
];

fn dinov2() -> ViT {
    ViT::new(14, 48, 2).depth(2).layer_scale(0.5)
}
