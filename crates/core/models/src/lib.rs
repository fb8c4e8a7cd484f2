//! Image classifiers with torchvision's or timm's names.
//!
//! A model is any function from a [`Tensor`] to a [`Tensor`]; the zoo has no privileges over a closure written in
//! place. Its models read like torchvision's sources and use the same parameter names and initial distributions, so
//! that weights files match. EfficientNet-Lite, which torchvision has not, is timm's. ConvNeXts of timm's sizes have
//! torchvision's names; files with timm's load, too.
//!
//! Use it for a known model by its name, or as an example of how one is written.
//!
//! ```
//! use enmasse_graph::{CompileOptions, Tensor, compile};
//! let model = enmasse_models::find("resnet18").unwrap();
//! let plans = compile(&|x| model.forward(x, 10), &CompileOptions::new(model.name(), 8, 64, 10)).unwrap();
//! assert!(plans.find("layer2.0.downsample.0.weight").is_some());
//!
//! let own = |x: Tensor| x.flatten().linear("hidden", 32).relu().linear("out", 10);
//! assert!(compile(&own, &CompileOptions::new("own", 8, 64, 10)).is_ok());
//! ```

mod airbench;
mod alexnet;
mod blocks;
mod convnext;
mod efficientnet;
mod efficientnet_lite;
mod mobilenet;
mod mobilenet_v3;
mod regnet;
mod resnet;
mod small;
mod vgg;
mod vit;
mod zoo;

pub use airbench::Airbench;
pub use alexnet::AlexNet;
pub use convnext::ConvNext;
pub use efficientnet::EfficientNet;
pub use efficientnet_lite::EfficientNetLite;
pub use enmasse_graph::Tensor;
pub use mobilenet::MobileNetV2;
pub use mobilenet_v3::MobileNetV3;
pub use regnet::RegNetY;
pub use resnet::{Block, ResNet};
pub use small::{lenet, mlp};
pub use vgg::Vgg;
pub use vit::ViT;
pub use zoo::{Model, ModelError, find, models};
