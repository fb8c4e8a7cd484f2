//! Small classifiers, for first steps and for tests.

use enmasse_graph::{Conv, Pool, Tensor};

/// Two hidden layers on the flattened image.
pub fn mlp(x: Tensor, classes: usize) -> Tensor {
    x.flatten().linear("fc1", 256).relu().linear("fc2", 128).relu().linear("fc3", classes)
}

/// LeNet-5 as in current tutorials: three input channels, ReLU and max pooling. Accepts any size from 16x16.
pub fn lenet(x: Tensor, classes: usize) -> Tensor {
    let x = x.conv2d("conv1", Conv::new(6, 5)).relu().max_pool(Pool::new(2));
    let x = x.conv2d("conv2", Conv::new(16, 5)).relu().max_pool(Pool::new(2));
    x.flatten().linear("fc1", 120).relu().linear("fc2", 84).relu().linear("fc3", classes)
}
