//! The cases, as in `fixtures/make.py`, and how a device runs one.

use enmasse_device::{Device, HostBatch, Program, StepInputs};
use enmasse_graph::optimizers::{AdamW, Lars, Sgd};
use enmasse_graph::{
    AVERAGE_PREFIX, Arena, Averaging, CompileOptions, Conv, Expression, Freeze, GroupRule, HeatmapMethod, Loss, Mode,
    Optimizer, ParameterGroups, PerSample, Phase, Plans, Pool, Precision, Role, Tensor, Window, compile,
};
use enmasse_models::{
    Airbench, AlexNet, Block, ConvNext, EfficientNet, EfficientNetLite, MobileNetV2, MobileNetV3, RegNetY, ResNet, Vgg,
    ViT, lenet, mlp,
};

use super::fixture::Results;
use super::formula;

const CLASSES: usize = 10;

/// A model with all inputs of its three steps.
#[derive(Clone)]
pub struct Case {
    pub name: &'static str,
    pub seed: u64,
    pub model: fn(Tensor, usize) -> Tensor,
    pub batch: usize,
    pub size: [usize; 2],
    pub learning_rate: f32,
    pub optimizer: fn() -> Optimizer,
    pub weight_decay: f32,
    pub average: Option<Averaging>,
    /// The norm to which gradients are clipped.
    pub clip_norm: Option<f32>,
    /// Whether norm parameters and biases have no weight decay.
    pub no_decay_norm_bias: bool,
    /// Factors of the learning rate, by name pattern.
    pub scales: &'static [(&'static str, f32)],
    pub label_smoothing: f32,
    /// A loss instead of cross-entropy.
    pub loss: Option<fn(Tensor, Tensor) -> Tensor>,
    /// Whether training is on mixtures of two samples.
    pub mixed: bool,
    pub freeze: &'static [&'static str],
    /// Mean and std per channel.
    pub normalization: (&'static [f32], &'static [f32]),
    /// The element type in which activations are stored.
    pub precision: Precision,
    /// The centres of batch norms' biases.
    pub centres: [f64; 2],
}

fn sgd(momentum: f32, nesterov: bool) -> Optimizer {
    Sgd { momentum, nesterov }.into()
}

fn adamw() -> Optimizer {
    AdamW::default().into()
}

fn narrow_resnet18(x: Tensor, classes: usize) -> Tensor {
    ResNet::resnet18().width(8).forward(x, classes)
}

/// One convolution, for what happens before a model and after it.
fn small(x: Tensor, classes: usize) -> Tensor {
    x.conv2d("conv", Conv::new(4, 3)).relu().adaptive_avg_pool([2, 2]).flatten().linear("fc", classes)
}

/// Features that the zoo does not use: groups, dilation, depthwise, biases before a batch norm, non-square windows.
fn grouped(x: Tensor, classes: usize) -> Tensor {
    let window = Window { kernel: [3, 5], stride: [2, 1], padding: [[1; 2], [2; 2]], dilation: [1, 1] };
    let x = x.conv2d("stem", Conv::new(16, 3).window(window)).avg_pool(Pool::new(3).stride(2).padding(1));
    let y = x.clone().conv2d("conv1", Conv::new(32, 1).no_bias()).batch_norm("bn1").relu();
    let y = y.conv2d("conv2", Conv::new(32, 3).padding(2).dilation(2).groups(8)).batch_norm("bn2").relu();
    let x = (y.conv2d("conv3", Conv::new(16, 1).no_bias()).batch_norm("bn3") + x).relu();
    let x = x.conv2d("depthwise", Conv::new(16, 3).stride(2).padding(1).groups(16)).max_pool(Pool::new(2).stride(1));
    x.adaptive_avg_pool([2, 3]).flatten().linear("fc", classes)
}

/// Paddings whose sides differ, most of them TensorFlow's.
fn padded(x: Tensor, classes: usize) -> Tensor {
    let x = x.conv2d("stem", Conv::new(16, 3).stride(2).same());
    let y = x.clone().conv2d("conv1", Conv::new(16, 3).padding_sides([[2, 0], [0, 2]]).no_bias()).batch_norm("bn1");
    let x = (y.relu() + x).max_pool(Pool::new(2).stride(1).same());
    let x = x.conv2d("depthwise", Conv::new(16, 5).stride(2).groups(16).same()).batch_norm("bn2").relu();
    let x = x.avg_pool(Pool::new(3).stride(2).padding_sides([[0, 1], [1, 0]]));
    x.conv2d("conv2", Conv::new(24, 1).stride(2).padding_sides([[0, 1], [1, 1]])).flatten().linear("fc", classes)
}

/// What models since 2019 are made of: a block of ConvNeXt, one of EfficientNet, and smooth activations.
fn modern(x: Tensor, classes: usize) -> Tensor {
    const EPSILON: f32 = 1e-6;
    let x = x.conv2d("stem", Conv::new(16, 3).stride(2).padding(1)).layer_norm("norm1", EPSILON);
    let y = x.clone().conv2d("dw", Conv::new(16, 5).padding(2).groups(16)).layer_norm("norm2", EPSILON);
    let y = y.conv2d("pw1", Conv::new(32, 1)).gelu().conv2d("pw2", Conv::new(16, 1));
    let x = y.scale_channels("scale.gamma", 1.0) + x;
    let y = x.clone().conv2d("expand", Conv::new(24, 1).no_bias()).batch_norm("bn1").silu();
    let gate = y.clone().adaptive_avg_pool([1, 1]).conv2d("fc1", Conv::new(6, 1)).silu();
    let y = y * gate.conv2d("fc2", Conv::new(24, 1)).sigmoid();
    let x = (y.conv2d("project", Conv::new(16, 1).no_bias()).batch_norm("bn2") + x).hard_swish();
    x.adaptive_avg_pool([1, 1]).flatten().layer_norm("norm3", EPSILON).linear("fc", classes)
}

/// A vision transformer without its attention: patches, a mixing of tokens by a convolution, a mean.
fn tokens(x: Tensor, classes: usize) -> Tensor {
    const EPSILON: f32 = 1e-6;
    let x = x.conv2d("patches", Conv::new(16, 4).stride(4)).tokens();
    let y = x.clone().layer_norm("norm1", EPSILON).linear("fc1", 40).gelu().linear("fc2", 16);
    let x = y.scale_channels("scale.gamma", 1.0) + x;
    let y = x.clone().images([4, 6]).conv2d("dw", Conv::new(16, 3).padding(1).groups(16)).tokens();
    let gate = x.clone().mean_tokens().linear("gate", 16).sigmoid();
    (x * gate + y).layer_norm("norm2", EPSILON).linear("fc3", 24).silu().mean_tokens().linear("fc", classes)
}

const IMAGENET: (&[f32], &[f32]) = (&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]);
const MNIST: (&[f32], &[f32]) = (&[0.1307], &[0.3081]);

/// The common settings of most cases.
const DEFAULT: Case = Case {
    name: "",
    seed: 0,
    model: narrow_resnet18,
    batch: 4,
    size: [0; 2],
    learning_rate: 0.05,
    optimizer: || sgd(0.9, false),
    weight_decay: 5e-4,
    average: None,
    clip_norm: None,
    no_decay_norm_bias: false,
    scales: &[],
    label_smoothing: 0.0,
    loss: None,
    mixed: false,
    freeze: &[],
    normalization: IMAGENET,
    precision: Precision::F32,
    centres: [-2.0, 2.0],
};

pub static CASES: &[Case] = &[
    Case { name: "resnet18", seed: 49, size: [49, 41], ..DEFAULT },
    Case {
        name: "resnet50",
        seed: 112,
        model: |x, classes| ResNet::resnet50().width(8).forward(x, classes),
        size: [48, 48],
        ..DEFAULT
    },
    Case {
        name: "resnet18_nesterov",
        seed: 13,
        batch: 8,
        size: [33, 40],
        optimizer: || sgd(0.9, true),
        weight_decay: 0.01,
        label_smoothing: 0.1,
        ..DEFAULT
    },
    Case {
        name: "resnet18_frozen",
        seed: 45,
        size: [40, 40],
        freeze: &["conv1", "bn1", "layer1", "layer2"],
        ..DEFAULT
    },
    Case {
        name: "resnet_cifar",
        seed: 3,
        model: |x, classes| ResNet::new(Block::Basic, [1; 4]).width(8).cifar_stem().forward(x, classes),
        size: [20, 27],
        ..DEFAULT
    },
    Case {
        name: "resnext",
        seed: 21,
        model: |x, classes| ResNet::new(Block::Bottleneck, [1; 4]).width(16).groups(32, 4).forward(x, classes),
        size: [40, 49],
        ..DEFAULT
    },
    Case {
        name: "wide_resnet",
        seed: 23,
        model: |x, classes| ResNet::new(Block::Bottleneck, [1; 4]).width(8).groups(1, 128).forward(x, classes),
        size: [48, 40],
        ..DEFAULT
    },
    Case {
        name: "alexnet",
        seed: 4,
        model: |x, classes| AlexNet::new().width(8).hidden(48).dropout(0.0).forward(x, classes),
        size: [71, 63],
        learning_rate: 0.01,
        ..DEFAULT
    },
    Case {
        name: "vgg11",
        seed: 10,
        model: |x, classes| Vgg::vgg11().width(4).hidden(48).dropout(0.0).forward(x, classes),
        size: [66, 40],
        learning_rate: 0.01,
        ..DEFAULT
    },
    Case {
        name: "vgg13_bn",
        seed: 21,
        model: |x, classes| Vgg::vgg13().batch_norm().width(4).hidden(48).dropout(0.0).forward(x, classes),
        size: [40, 64],
        learning_rate: 0.01,
        weight_decay: 0.0,
        ..DEFAULT
    },
    Case {
        name: "mobilenet_v2",
        seed: 7,
        model: |x, classes| {
            MobileNetV2::new().width(0.25).blocks([1, 2, 1, 1, 1, 1, 1]).dropout(0.0).forward(x, classes)
        },
        size: [49, 33],
        learning_rate: 0.01,
        centres: [3.0, 3.0],
        ..DEFAULT
    },
    Case {
        name: "mobilenet_v3",
        seed: 4,
        model: |x, classes| MobileNetV3::small().width(0.25).dropout(0.0).forward(x, classes),
        size: [65, 60],
        learning_rate: 0.01,
        centres: [3.0, 3.0],
        ..DEFAULT
    },
    Case {
        name: "efficientnet",
        seed: 0,
        model: |x, classes| EfficientNet::b0().width(0.25).depth(0.25).dropout(0.0).drop_path(0.0).forward(x, classes),
        size: [49, 34],
        learning_rate: 0.01,
        ..DEFAULT
    },
    Case {
        name: "efficientnet_lite",
        seed: 9,
        model: |x, classes| EfficientNetLite::lite0().width(0.25).depth(0.25).dropout(0.0).forward(x, classes),
        size: [49, 34],
        learning_rate: 0.01,
        centres: [3.0, 3.0],
        ..DEFAULT
    },
    Case {
        name: "regnet_y",
        seed: 8,
        model: |x, classes| RegNetY::new([1, 1, 2, 1], [16, 24, 48, 64], 8).forward(x, classes),
        size: [49, 34],
        learning_rate: 0.01,
        ..DEFAULT
    },
    Case {
        name: "convnext",
        model: |x, classes| ConvNext::new([1, 1, 2, 1], [8, 16, 24, 32]).forward(x, classes),
        size: [33, 47],
        learning_rate: 0.01,
        ..DEFAULT
    },
    Case {
        name: "vit",
        model: |x, classes| ViT::new(8, 48, 3).depth(2).forward(x, classes),
        size: [24, 40],
        learning_rate: 0.01,
        ..DEFAULT
    },
    Case {
        name: "vit_registers",
        model: |x, classes| ViT::new(8, 48, 3).depth(2).layer_scale(1.0).registers(2).forward(x, classes),
        batch: 3,
        size: [32, 16],
        learning_rate: 0.01,
        label_smoothing: 0.1,
        ..DEFAULT
    },
    Case {
        name: "airbench",
        seed: 0,
        model: |x, classes| Airbench::new([4, 8, 6]).forward(x, classes),
        size: [26, 29],
        label_smoothing: 0.2,
        ..DEFAULT
    },
    Case {
        name: "lenet",
        seed: 36,
        model: lenet,
        batch: 8,
        size: [32, 35],
        learning_rate: 0.001,
        optimizer: adamw,
        weight_decay: 0.01,
        ..DEFAULT
    },
    Case {
        name: "lenet_grey",
        seed: 14,
        model: lenet,
        batch: 6,
        size: [28, 28],
        learning_rate: 0.01,
        weight_decay: 0.0,
        normalization: MNIST,
        ..DEFAULT
    },
    Case {
        name: "mlp",
        seed: 55,
        model: mlp,
        batch: 5,
        size: [9, 7],
        optimizer: || sgd(0.0, false),
        weight_decay: 0.0,
        ..DEFAULT
    },
    Case {
        name: "grouped",
        seed: 48,
        model: grouped,
        batch: 3,
        size: [27, 21],
        learning_rate: 0.01,
        label_smoothing: 0.2,
        ..DEFAULT
    },
    Case { name: "padded", seed: 45, model: padded, batch: 3, size: [22, 24], learning_rate: 0.01, ..DEFAULT },
    Case {
        name: "modern",
        seed: 15,
        model: modern,
        size: [21, 26],
        learning_rate: 0.01,
        label_smoothing: 0.1,
        ..DEFAULT
    },
    Case { name: "tokens", model: tokens, size: [16, 24], learning_rate: 0.01, ..DEFAULT },
];

/// The optimiser's further options. Forward and backward are those of other cases, in bf16 too.
pub static UPDATE_CASES: &[Case] = &[
    Case {
        name: "update_groups",
        seed: 29,
        learning_rate: 0.01,
        optimizer: || sgd(0.9, true),
        weight_decay: 0.1,
        no_decay_norm_bias: true,
        scales: &[("stem", 0.5), ("fc", 3.0)],
        ..UPDATED
    },
    Case { name: "update_clipped", seed: 4, clip_norm: Some(0.5), ..UPDATED },
    Case {
        name: "update_lars",
        seed: 0,
        optimizer: || Lars { momentum: 0.9, trust_coefficient: 0.1, epsilon: 1e-8 }.into(),
        weight_decay: 0.01,
        no_decay_norm_bias: true,
        clip_norm: Some(2.0),
        ..UPDATED
    },
    Case { name: "update_averaged", seed: 4, average: Some(Averaging::Ema(0.75)), ..UPDATED },
    Case {
        name: "update_lookahead",
        model: small,
        batch: 8,
        size: [9, 7],
        average: Some(Averaging::Lookahead),
        ..DEFAULT
    },
];

/// The common settings of these cases.
const UPDATED: Case = Case { model: grouped, batch: 3, size: [27, 21], ..DEFAULT };

/// Losses as functions of logits and targets, and of mixtures. Forward is that of other cases.
pub static LOSS_CASES: &[Case] = &[
    Case {
        name: "loss_focal",
        seed: 20,
        model: lenet,
        batch: 6,
        size: [28, 30],
        learning_rate: 0.01,
        loss: Some(focal),
        ..DEFAULT
    },
    Case {
        name: "loss_sigmoid_focal",
        seed: 40,
        model: mlp,
        batch: 5,
        size: [9, 7],
        weight_decay: 0.0,
        loss: Some(sigmoid_focal),
        ..DEFAULT
    },
    Case {
        name: "loss_weighted",
        seed: 40,
        model: mlp,
        batch: 5,
        size: [9, 7],
        weight_decay: 0.0,
        loss: Some(weighted),
        ..DEFAULT
    },
    Case { name: "mixed", seed: 0, model: small, batch: 8, size: [9, 7], label_smoothing: 0.1, mixed: true, ..DEFAULT },
    Case {
        name: "mixed_weighted",
        seed: 0,
        model: small,
        batch: 5,
        size: [9, 7],
        weight_decay: 0.0,
        loss: Some(weighted),
        mixed: true,
        ..DEFAULT
    },
];

/// The focal loss with gamma 2: `-(1 - p)^2 log p`.
fn focal(logits: Tensor, targets: Tensor) -> Tensor {
    let log_p = (logits.log_softmax() * targets).sum_classes();
    log_p.clone().exp().affine(-1.0, 1.0).power(2.0) * log_p.affine(-1.0, 0.0)
}

/// The focal loss of each class on its own, with gamma 2, as one expression.
fn sigmoid_focal(logits: Tensor, targets: Tensor) -> Tensor {
    let [x, y] = Expression::operands();
    let cross_entropy = x.maximum(0.0) - &x * &y + (1.0 + (-&x).minimum(&x).exp()).log();
    let miss = (&x * (1.0 - 2.0 * y)).sigmoid();
    logits.pointwise(&(cross_entropy * miss.power(2.0)), &[targets]).mean_classes()
}

/// Cross-entropy with a weight for each class.
fn weighted(logits: Tensor, targets: Tensor) -> Tensor {
    let weights: [f32; CLASSES] = std::array::from_fn(|class| 0.5 + 0.25 * class as f32);
    (logits.log_softmax() * targets).scale_classes(&weights).sum_classes().affine(-1.0, 0.0)
}

impl Case {
    fn groups(&self) -> ParameterGroups {
        let rule = |&(pattern, scale): &(&str, f32)| GroupRule {
            pattern: pattern.into(),
            weight_decay: None,
            learning_rate_scale: Some(scale),
        };
        ParameterGroups {
            weight_decay: self.weight_decay,
            no_decay_norm_bias: self.no_decay_norm_bias,
            rules: self.scales.iter().map(rule).collect(),
        }
    }

    /// The plans of the case, with its batch cut into shards that share their statistics.
    fn plans(&self, shards: usize) -> Plans {
        let options = CompileOptions {
            shards,
            sync_batch_norm: shards > 1,
            size: self.size,
            loss: match self.loss {
                Some(function) => Loss::Custom(PerSample::new(function)),
                None => Loss::CrossEntropy { smoothing: self.label_smoothing, weights: Vec::new() },
            },
            mixed: self.mixed,
            optimizer: (self.optimizer)(),
            groups: self.groups(),
            clip_norm: self.clip_norm,
            average: self.average,
            mean: self.normalization.0.into(),
            std: self.normalization.1.into(),
            precision: self.precision,
            freeze: Freeze::Patterns(self.freeze.iter().map(|pattern| pattern.to_string()).collect()),
            ..CompileOptions::new(self.name, self.batch / shards, 1, CLASSES)
        };
        compile(&|x| (self.model)(x, CLASSES), &options).unwrap()
    }

    /// Three training steps and an evaluation; the results have the fixture's names. With several shards, the device
    /// must host all of them.
    pub fn run(&self, device: &dyn Device, shards: usize) -> Results {
        let mut program = self.program(device, shards);
        let mut results = Results::new();
        for step in 1..=3 {
            self.train(&mut *program, step, &mut results);
        }
        store_state(&mut *program, &mut results);
        self.evaluate(&mut *program, &mut results);
        results
    }

    /// Only the first step, and the resulting state.
    pub fn run_step(&self, device: &dyn Device) -> Results {
        let mut program = self.program(device, 1);
        let mut results = Results::new();
        self.train(&mut *program, 1, &mut results);
        store_state(&mut *program, &mut results);
        results
    }

    fn program(&self, device: &dyn Device, shards: usize) -> Box<dyn Program> {
        self.with_weights(self.plans(shards), device)
    }

    /// A program of plans of this model, with the case's weights.
    fn with_weights(&self, plans: Plans, device: &dyn Device) -> Box<dyn Program> {
        let mut program = device.compile(plans.clone(), None).unwrap();
        for tensor in
            plans.state.iter().filter(|tensor| matches!(tensor.slot.arena, Arena::Parameters | Arena::Buffers))
        {
            let layer = tensor.name.rsplit_once('.').map_or("", |(layer, _)| layer);
            let centres = plans.find(&format!("{layer}.running_mean")).map(|_| self.centres);
            let values = formula::initial(self.seed, &tensor.name, &tensor.layout.torch_shape(&tensor.shape), centres);
            program.load(&tensor.name, &values).unwrap();
            // Slow weights begin where the weights do.
            if self.average == Some(Averaging::Lookahead) {
                program.load(&format!("{AVERAGE_PREFIX}{}", tensor.name), &values).unwrap();
            }
        }
        program
    }

    /// The heatmaps `[batch, height * width]` of the images of the first step, for the classes of their labels.
    pub fn heatmaps(&self, device: &dyn Device) -> (HeatmapMethod, Vec<f64>) {
        let options = CompileOptions {
            size: self.size,
            mean: self.normalization.0.into(),
            std: self.normalization.1.into(),
            ..CompileOptions::new(self.name, self.batch, 1, CLASSES)
        };
        let found = device.target().compile_heatmaps(&|x| (self.model)(x, CLASSES), &options).unwrap();
        let mut program = self.with_weights(found.plans, device);
        let inputs = StepInputs::evaluation(self.batch(1).into());
        let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs).unwrap();
        program.metrics(ticket).unwrap();
        (found.method, program.store("logits").unwrap())
    }

    fn train(&self, program: &mut dyn Program, step: u64, results: &mut Results) {
        let batch = self.batch(step);
        let mixed = if self.mixed { self.batch } else { 0 };
        let other_labels = formula::labels(self.seed, step + 10, mixed, CLASSES);
        let inputs = self.inputs(step, HostBatch { other_labels, lambdas: formula::lambdas(step, mixed), ..batch });
        let (update, phases) = Phase::ALL.split_last().unwrap();
        let ticket = program.submit(Mode::Train, phases, &inputs).unwrap();
        results.insert(format!("step{step}/loss"), vec![program.metrics(ticket).unwrap().loss]);
        if step == 1 {
            if self.clip_norm.is_some() {
                results.insert("step1/gradient_norm".into(), program.store("gradient_norm").unwrap());
            }
            results.insert("step1/logits".into(), program.store("logits").unwrap());
            let train = program.plans().train.as_ref().unwrap();
            let gradients = train.values.iter().filter(|value| matches!(value.role, Role::Gradient { .. }));
            let names: Vec<String> = gradients.map(|value| value.name.clone()).collect();
            for name in names {
                results.insert(format!("step1/{name}"), program.store(&name).unwrap());
            }
        }
        program.submit(Mode::Train, &[*update], &inputs).unwrap();
    }

    fn evaluate(&self, program: &mut dyn Program, results: &mut Results) {
        let mut batch = self.batch(4);
        batch.labels[0] = -1;
        let inputs = self.inputs(4, batch);
        let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs).unwrap();
        let metrics = program.metrics(ticket).unwrap();
        results.insert("evaluate/loss".into(), vec![metrics.loss]);
        results.insert("evaluate/correct".into(), vec![metrics.correct as f64]);
        results.insert("evaluate/logits".into(), program.store("logits").unwrap());
    }

    fn batch(&self, step: u64) -> HostBatch {
        let len = self.batch * self.size[0] * self.size[1] * 3;
        let images = formula::images(self.seed, step, len);
        let labels = formula::labels(self.seed, step, self.batch, CLASSES);
        // No case has dropout, the only reader of the indices.
        HostBatch { images, labels, sample_indices: vec![0; self.batch], ..HostBatch::default() }
    }

    fn inputs(&self, step: u64, batch: HostBatch) -> StepInputs {
        StepInputs {
            learning_rate: self.learning_rate,
            optimizer_step: step,
            // Steps without it come before and after.
            lookahead: (self.average == Some(Averaging::Lookahead) && step == 2).then_some(0.25),
            ..StepInputs::evaluation(batch.into())
        }
    }
}

fn store_state(program: &mut dyn Program, results: &mut Results) {
    for tensor in program.plans().state.clone() {
        results.insert(format!("after/{}", tensor.name), program.store(&tensor.name).unwrap());
    }
}
