//! cuDNN itself checks the graphs of every model, on GPUs that are described to it.
//!
//! A program of its own: what it loads is not the emulation that other tests load under the same names.

use std::collections::{BTreeMap, BTreeSet};

use enmasse_cuda::CudaError;
use enmasse_cuda::cublas_lt::CublasLt;
use enmasse_cuda::cudnn::{ConvolutionPlan, Cudnn, Direction, Epilogue, Options, Problem, Target};
use enmasse_cuda::libraries::Libraries;
use enmasse_graph::ops::Conv2d;
use enmasse_graph::{Precision, Window};

mod zoo;

/// The real cuDNN, if the machine has it.
fn cudnn() -> Option<Cudnn> {
    let folder = test_support::cuda()?;
    Some(Cudnn::load(&Libraries::in_folders(&[folder]), u32::MAX).unwrap())
}

/// Whether the program has an engine add a bias. Of 16-bit depthwise convolutions cuDNN would compile one for some seconds.
fn is_asked(problem: &Problem) -> bool {
    let is_short = matches!(problem.arithmetic, Precision::Bf16 | Precision::F16);
    problem.direction != Direction::Forward(Epilogue::Bias) || problem.conv.groups == 1 || !is_short
}

/// The problem without what the program can add itself.
fn alone(problem: &Problem) -> Problem {
    let direction = match problem.direction {
        Direction::Forward(_) => Direction::Forward(Epilogue::None),
        Direction::BackwardData { .. } => Direction::BackwardData { accumulate: false },
        Direction::BackwardWeights => Direction::BackwardWeights,
    };
    Problem { direction, ..*problem }
}

/// The engine of a plan, without its knobs.
fn engine_of(plan: &ConvolutionPlan) -> String {
    plan.name().split('_').next().unwrap_or_default().to_owned()
}

#[test]
fn cudnn_takes_every_convolution_of_the_zoo() {
    let Some(cudnn) = cudnn() else { return };
    let distinct = zoo::ARITHMETICS.map(|arithmetic| -> BTreeMap<String, Problem> {
        let all = enmasse_models::models().iter().flat_map(|model| zoo::convolutions(model, arithmetic));
        all.map(|problem| (problem.to_string(), problem)).collect()
    });
    // Each GPU and precision has other ones, so that all have their turn.
    let step = if test_support::time() { 25 } else { 100 };
    for (gpu, (name, json)) in zoo::gpus().into_iter().enumerate() {
        let device = cudnn.device(&json).unwrap();
        for (precision, distinct) in distinct.iter().enumerate() {
            for problem in distinct.values().skip((4 * gpu + precision) % step).step_by(step) {
                let arithmetic = problem.arithmetic;
                let target = Target::Device(&device);
                let asked = if is_asked(problem) { *problem } else { alone(problem) };
                let plans = cudnn.plans(&target, &asked, &zoo::OPTIONS);
                let plans = match plans.or_else(|_| cudnn.plans(&target, &alone(&asked), &zoo::OPTIONS)) {
                    Ok(plans) => plans,
                    // Compute capability 7.5 has no bf16.
                    Err(CudaError::Refused { .. }) if name == "T4" && arithmetic == Precision::Bf16 => continue,
                    Err(error) => panic!("{name}: {error}"),
                };
                let problem = *plans[0].problem();
                // The engine's text says everything about it.
                let again = cudnn
                    .plan(&target, &problem, &plans[0].name(), &zoo::OPTIONS)
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(
                    (again.workspace, again.weights),
                    (plans[0].workspace, plans[0].weights),
                    "{name}: {problem}"
                );
            }
        }
    }
}

/// From 9.24 on, cuDNN's estimate names no engine that writes gradients of weights as f32 from 16-bit activations, and the fallback
/// has a single slow one: it was taken before those that write the type of the activations were asked for.
#[test]
fn gradients_of_weights_come_from_no_fallback() {
    let Some(cudnn) = cudnn() else { return };
    let model = enmasse_models::find("resnet50").unwrap();
    // Those of a step are many, and cuDNN takes a while for each.
    let step = if test_support::time() { 1 } else { 4 };
    for (name, json) in zoo::gpus() {
        let device = cudnn.device(&json).unwrap();
        for arithmetic in [Precision::Bf16, Precision::F16] {
            if name == "T4" && arithmetic == Precision::Bf16 {
                continue;
            }
            let weights = zoo::convolutions(&model, arithmetic).into_iter();
            let weights = weights.filter(|problem| problem.direction == Direction::BackwardWeights);
            for problem in weights.step_by(step) {
                let plans = cudnn.plans(&Target::Device(&device), &problem, &zoo::OPTIONS).unwrap();
                assert!(!plans[0].is_fallback, "{name}: {problem} by {}", plans[0].name());
            }
        }
    }
}

/// For images of 3 channels, most engines of gradients of weights first copy them to 8, which takes workspace. With channels of zeros none
/// does so, and no engine is of the fallback. Patch embeddings, whose images the program does not pad, have fast engines with 3.
#[test]
fn stems_of_8_channels_take_no_copy_of_the_images() {
    let Some(cudnn) = cudnn() else { return };
    let models =
        ["resnet50", "resnet18-cifar", "vgg16", "efficientnet_b0", "lenet", "convnext_tiny", "vit_base_patch16_224"];
    for (name, json) in zoo::gpus() {
        let device = cudnn.device(&json).unwrap();
        let plan = |problem: &Problem| {
            let plans = cudnn.plans(&Target::Device(&device), &alone(problem), &zoo::OPTIONS);
            plans.unwrap_or_else(|error| panic!("{name}: {error}")).swap_remove(0)
        };
        for arithmetic in [Precision::Bf16, Precision::F16] {
            if name == "T4" && arithmetic == Precision::Bf16 {
                continue;
            }
            let stems = models.iter().flat_map(|name| {
                let model = enmasse_models::find(name).unwrap();
                let all = zoo::convolutions(&model, arithmetic).into_iter();
                all.filter(move |problem| problem.x[1] == model.size() && [3, 8].contains(&problem.x[3]))
            });
            let stems: Vec<Problem> = stems.collect();
            assert_eq!(stems.iter().filter(|stem| stem.x[3] == 8).count(), 2 * 5);
            for stem in stems {
                let found = plan(&stem);
                assert!(!found.is_fallback, "{name}: {stem} by {}", found.name());
                let images = stem.x.iter().product::<usize>() * 2;
                if stem.x == [zoo::BATCH, 224, 224, 8] {
                    assert!(found.workspace < images as u64 / 4, "{name}: {stem} by {}", found.name());
                }
            }
        }
    }
}

/// Models without batch norm: cuDNN's estimate names engines that add the bias and apply ReLU, the same as for the bias alone.
#[test]
fn biases_and_relus_of_16_bits_are_in_the_epilogue() {
    let Some(cudnn) = cudnn() else { return };
    let names = ["vgg16", "alexnet"].map(|name| enmasse_models::find(name).unwrap());
    let step = if test_support::time() { 1 } else { 3 };
    for (name, json) in zoo::gpus() {
        let device = cudnn.device(&json).unwrap();
        for arithmetic in [Precision::Bf16, Precision::F16] {
            if name == "T4" && arithmetic == Precision::Bf16 {
                continue;
            }
            let all = names.iter().flat_map(|model| zoo::convolutions(model, arithmetic));
            let forward = all.filter(|problem| problem.direction == Direction::Forward(Epilogue::Bias));
            for problem in forward.step_by(step) {
                let engines = |epilogue| -> Vec<String> {
                    let problem = Problem { direction: Direction::Forward(epilogue), ..problem };
                    let options = Options { candidates: 8, ..zoo::OPTIONS };
                    let plans = cudnn.plans(&Target::Device(&device), &problem, &options);
                    let plans = plans.unwrap_or_else(|error| panic!("{name}: {error}"));
                    assert!(plans.iter().all(|plan| !plan.is_fallback), "{name}: {problem}");
                    plans.iter().map(engine_of).collect()
                };
                assert_eq!(engines(Epilogue::BiasRelu), engines(Epilogue::Bias), "{name}: {problem}");
            }
        }
    }
}

/// Engines of both types of weights are candidates, and no engine has more than four places among them.
#[test]
fn candidates_are_of_both_types_and_of_several_engines() {
    let Some(cudnn) = cudnn() else { return };
    let (_, json) = zoo::gpus().into_iter().find(|(name, _)| name == "H200").unwrap();
    let device = cudnn.device(&json).unwrap();
    let model = enmasse_models::find("resnet50").unwrap();
    let mut types = BTreeSet::new();
    for problem in zoo::convolutions(&model, Precision::Bf16).into_iter().step_by(9) {
        let options = Options { candidates: 24, ..zoo::OPTIONS };
        let plans = cudnn.plans(&Target::Device(&device), &alone(&problem), &options).unwrap();
        assert!((1..=24).contains(&plans.len()));
        let mut of_engine: BTreeMap<(String, &str), usize> = BTreeMap::new();
        for plan in &plans {
            *of_engine.entry((engine_of(plan), plan.weights.name())).or_default() += 1;
            assert_eq!(plan.is_fallback, plans[0].is_fallback);
        }
        assert!(of_engine.values().all(|&count| count <= 4), "{problem}: {of_engine:?}");
        if problem.direction == Direction::BackwardWeights {
            types.extend(of_engine.keys().map(|(_, weights)| (*weights).to_owned()));
        }
    }
    assert!(types.contains("bf16"), "{types:?}");
}

/// cuDNN's engines that take equal sides only are not among those that it proposes.
#[test]
fn cudnn_takes_padding_whose_sides_differ() {
    let Some(cudnn) = cudnn() else { return };
    let directions =
        [Direction::Forward(Epilogue::None), Direction::BackwardData { accumulate: false }, Direction::BackwardWeights];
    // TensorFlow's: the first layer of a network, and depthwise ones.
    let layers = [([128, 224, 224, 3], 32, 1, 3, [0, 1]), ([128, 56, 56, 144], 144, 144, 5, [1, 2])];
    for (name, json) in zoo::gpus() {
        let device = cudnn.device(&json).unwrap();
        for arithmetic in zoo::ARITHMETICS.into_iter().filter(|&each| name != "T4" || each != Precision::Bf16) {
            for (x, outputs, groups, kernel, padding) in layers {
                let window = Window { kernel: [kernel; 2], stride: [2; 2], padding: [padding; 2], dilation: [1; 2] };
                let conv = Conv2d { window, groups };
                let w = [outputs, kernel, kernel, x[3] / groups];
                let y = [x[0], x[1] / 2, x[2] / 2, outputs];
                for direction in directions {
                    let problem = Problem { direction, x, w, y, conv, arithmetic };
                    let plans = cudnn.plans(&Target::Device(&device), &problem, &zoo::OPTIONS);
                    plans.unwrap_or_else(|error| panic!("{name}: {error}"));
                }
            }
        }
    }
}

#[test]
fn options_leave_engines_out() {
    let Some(cudnn) = cudnn() else { return };
    let (_, json) = zoo::gpus().into_iter().find(|(name, _)| name == "A100").unwrap();
    let device = cudnn.device(&json).unwrap();
    let target = Target::Device(&device);
    let model = enmasse_models::find("resnet18").unwrap();
    let names = |direction: &dyn Fn(&Problem) -> bool, arithmetic: Precision, options: Options| -> Vec<String> {
        let problem = zoo::convolutions(&model, arithmetic).into_iter().find(|problem| direction(problem)).unwrap();
        let plans = cudnn.plans(&target, &problem, &options).unwrap();
        plans.iter().map(|plan| plan.name()).collect()
    };
    let all = Options { deterministic: false, exact: false, workspace: u64::MAX, candidates: 100 };
    let weights = |problem: &Problem| problem.direction == Direction::BackwardWeights;
    let count = |arithmetic, options| names(&weights, arithmetic, options).len();
    // Tensor cores round to tf32.
    assert!(count(Precision::F32, all) < count(Precision::Tf32, all));
    let tf32 = names(&weights, Precision::Tf32, all);
    let deterministic = names(&weights, Precision::Tf32, Options { deterministic: true, ..all });
    assert!(deterministic.len() < tf32.len() && deterministic.iter().all(|name| tf32.contains(name)));
    // They hold for an engine that is named, too.
    let problem = zoo::convolutions(&model, Precision::Tf32).into_iter().find(|problem| weights(problem)).unwrap();
    for name in &tf32 {
        let plan = cudnn.plan(&target, &problem, name, &Options { deterministic: true, ..all });
        let why = plan.err().map(|error| error.to_string()).unwrap_or_default();
        let is_refused = why.ends_with(": it computes otherwise than asked");
        assert!(is_refused != deterministic.contains(name) && (is_refused || why.is_empty()), "{name}: {why}");
    }
    assert!(count(Precision::Tf32, Options { workspace: 1 << 10, ..all }) < tf32.len());
    assert_eq!(names(&weights, Precision::Tf32, Options { candidates: 3, ..all }), tf32[..3]);
    let forward = |problem: &Problem| problem.w[1] == 3 && problem.direction == Direction::Forward(Epilogue::None);
    let exact = names(&forward, Precision::F32, Options { exact: true, ..all });
    assert!(exact.len() < names(&forward, Precision::F32, all).len());
}

#[test]
fn errors_have_cudnns_words() {
    let Some(cudnn) = cudnn() else { return };
    let check = |error: String, mentions: &[&str]| {
        assert!(!error.contains('\n') && mentions.iter().all(|mention| error.contains(mention)), "{error}");
    };
    let (_, json) = zoo::gpus().swap_remove(0);
    check(
        cudnn.device("{}").unwrap_err().to_string(),
        &["cuDNN: cudnnBackendFinalize failed: CUDNN_STATUS_", "DeviceProperties"],
    );
    let device = cudnn.device(&json).unwrap();
    let model = enmasse_models::find("lenet").unwrap();
    let problem = zoo::convolutions(&model, Precision::F32)[0];
    let wrong = Problem { y: [problem.y[0], problem.y[1] + 1, problem.y[2], problem.y[3]], ..problem };
    let target = Target::Device(&device);
    let error = cudnn.plans(&target, &wrong, &zoo::OPTIONS).unwrap_err().to_string();
    check(error, &["cuDNN takes no convolution with bias f32 x[128,28,28,3]", "CUDNN_STATUS_"]);
    for name in ["fast", "eng9999", "eng0_f32"] {
        let error = cudnn.plan(&target, &problem, name, &zoo::OPTIONS).unwrap_err().to_string();
        check(error, &["cuDNN takes no convolution with bias", name]);
    }
}

#[test]
fn a_part_of_cudnn_that_is_missing_or_broken_is_named() {
    let Some(folder) = test_support::cuda() else { return };
    let other = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(folder.join("libcudnn.so.9"), other.path().join("libcudnn.so.9")).unwrap();
    let part = other.path().join("libcudnn_graph.so.9");
    let load = || Cudnn::load(&Libraries::in_folders(&[other.path().to_owned()]), u32::MAX).unwrap_err().to_string();
    let missing = load();
    assert!(missing.starts_with("cuDNN is missing: no libcudnn_graph.so.9 in the folder of "), "{missing}");
    std::fs::write(&part, "no library").unwrap();
    let broken = load();
    assert!(broken.starts_with(&format!("cuDNN cannot be loaded: {}: ", part.display())), "{broken}");
}

#[test]
fn cublas_lt_has_our_functions() {
    let Some(folder) = test_support::cuda() else { return };
    let library = CublasLt::load(&Libraries::in_folders(&[folder]), u32::MAX).unwrap();
    assert!(library.version() / 10_000 >= 12, "{}", library.version());
    // Without a GPU it says so.
    if let Err(error) = library.handle() {
        assert_eq!(error.to_string(), "cuBLASLt: cublasLtCreate failed: CUBLAS_STATUS_NOT_INITIALIZED");
    }
}
