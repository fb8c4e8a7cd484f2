//! What files of ColossalAI mean, as tables.

use super::*;
use crate::LayeredConfig;

#[track_caller]
fn check(text: &str, settings: &[(&str, &str)], remarks: &[&str]) {
    let found = read(text, "config.py").unwrap_or_else(|error| panic!("{text}: {error}"));
    let of = |(name, value, _): &(&'static str, String, String)| (*name, value.clone());
    let expected: Vec<_> = settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    assert_eq!(found.settings.iter().map(of).collect::<Vec<_>>(), expected, "{text}");
    assert_eq!(found.remarks, remarks, "{text}");
}

#[test]
fn keys_are_settings() {
    check("", &[], &[]);
    check("# nothing\n\n", &[], &[]);
    check("BATCH_SIZE = 128  # per rank\nNUM_EPOCHS=2\r\n", &[("batch", "128"), ("epochs", "2")], &[]);
    check("LEARNING_RATE = 3e-3", &[("lr", "3e-3")], &[]);
    check("WEIGHT_DECAY = 0.3\nWARMUP_EPOCHS = 32", &[("weight_decay", "0.3"), ("warmup_epochs", "32")], &[]);
    check("seed = 1_024", &[("seed", "1024")], &[]);
    check("gradient_accumulation = 16", &[("accumulate", "16")], &[]);
    check("clip_grad_norm = 1.0", &[("clip_norm", "1.0")], &[]);
    check("clip_grad_norm = 0.0\nx = None", &[], &[]);
    check("cudnn_benchmark = True", &[("tune", "true")], &[]);
    check("MEAN = (0.5, 0.5,\n  0.5)", &[("mean", "0.5,0.5,0.5")], &[]);
    check("from colossalai.amp import AMP_TYPE\nfp16 = dict(mode=AMP_TYPE.TORCH)", &[("precision", "f16")], &[]);
    check(
        "fp16 = dict(\n    mode=AMP_TYPE.NAIVE,\n    initial_scale=2 ,\n)",
        &[("precision", "f16")],
        &["fp16.initial_scale has no meaning here: the scale of the loss is found by itself"],
    );
    check(
        "LEARNING_RATE = 0.1\noptimizer = dict(type='SGD', lr=LEARNING_RATE, momentum=0.9, nesterov=True)",
        &[("lr", "0.1"), ("optimizer", "sgd"), ("momentum", "0.9"), ("nesterov", "true")],
        &[],
    );
    check(
        "optimizer = {'type': \"FusedAdam\", 'betas': (0.9, 0.95), 'eps': 1e-8}",
        &[("optimizer", "adamw"), ("opt_arg", "betas=0.9,0.95,epsilon=1e-8")],
        &[],
    );
    check(
        "lr_scheduler = dict(type='CosineAnnealingWarmupLR', warmup_steps=5)",
        &[("schedule", "CosineAnnealingLR")],
        &[
            "lr_scheduler.type has no meaning here: its warm-up is given by --warmup-epochs EPOCHS",
            "lr_scheduler.warmup_steps has no meaning here: give --warmup-epochs EPOCHS, such as 0.5",
        ],
    );
    check("parallel = dict(pipeline=1, tensor=dict(size=1, mode=None))", &[], &[]);
    check(
        "parallel = dict(pipeline=2, tensor=dict(size=4, mode='2d'), data=2)",
        &[],
        &[
            "parallel.pipeline has no meaning here: name the layers before which the model is cut, such as --stages layer3",
            "parallel.tensor has no meaning here: give --tensor-parallel N, which is mode 1d",
        ],
    );
    check(
        "model = dict(type='resnet34', num_classes=10)\nloss = dict(type='CrossEntropyLoss', label_smoothing=0.1)",
        &[("model", "resnet34"), ("num_classes", "10"), ("label_smoothing", "0.1")],
        &[],
    );
    check(
        "hooks = [dict(type='LogMemoryByEpochHook'), dict(type='LogTimingByEpochHook')]\nLOG_PATH = 'x'\nVOCAB = 3",
        &[],
        &[
            "hook LogMemoryByEpochHook has no meaning here: each epoch's record has resident_bytes and device_bytes of every rank",
            "hook LogTimingByEpochHook has no meaning here: each epoch's record has seconds, images_per_second and waits",
            "LOG_PATH has no meaning here: every run keeps its logs in its folder; give --out DIR",
            "VOCAB has no meaning here: it is no setting",
        ],
    );
    check("BATCHSIZE = 4", &[], &["BATCHSIZE has no meaning here: did you mean batch?"]);
}

#[test]
fn what_is_no_plain_assignment_is_refused_with_its_line() {
    let check = |text: &str, line: usize, expected: &str| {
        let error = read(text, "config.py").unwrap_err().to_string();
        assert!(error.starts_with(&format!("config.py: line {line}: ")), "{text}: {error}");
        assert!(error.contains(expected), "{text}: {error}");
    };
    let plain = "only plain assignments are read";
    check("import os", 1, "only names of colossalai may be imported, not those of \"os\"");
    check("BATCH_SIZE = 4\nimport torch as colossalai", 2, "may be imported");
    check("BATCH_SIZE = 2 * 4", 1, plain);
    check("A = 1\n\nif A:\n  B = 2", 3, plain);
    check("print(1)", 1, plain);
    check("A = open('x')", 1, plain);
    check("A = dict(**B)", 1, plain);
    check("A = AMP_TYPE.TORCH()", 1, plain);
    check("A.b = 1", 1, plain);
    check("A == 1", 1, plain);
    check("A = 1; B = 2", 1, plain);
    check("A = [1, 2", 1, plain);
    check("A = [1 2]", 1, plain);
    check("A = {1: 2}", 1, plain);
    check("A = lambda: 1", 1, plain);
    check("A = f'x'", 1, plain);
    check("A = ", 1, plain);
    check("A = B", 1, "B is not assigned before");
    check("A = 'x\n'", 1, "a text does not end on its line");
    check("A = '\\x41'", 1, "of escapes only");
    check("A = 1x", 1, "1x is no number");
    check("A = 1e999", 1, "1e999 is no number");
    check(&format!("A = {}1", "[".repeat(40)), 1, "more than 16 deep");
    check(&format!("A = {}1", "-".repeat(40)), 1, "more than 16 deep");
    let error = read("lr = 0.1\noptimizer = dict(lr=0.2)", "config.py").unwrap_err().to_string();
    assert_eq!(error, "config.py: lr is given twice, as lr and as optimizer.lr");
    let error = read("BATCH_SIZE = dict(a=1)", "config.py").unwrap_err().to_string();
    assert_eq!(error, "config.py: BATCH_SIZE must be a number, a text or a list of them");
}

#[test]
fn a_file_of_this_kind_is_a_layer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.py");
    let text = "BATCH_SIZE = 128\nNUM_EPOCHS = 2\noptimizer = dict(type='SGD', lr=0.1)\nzero = dict(level=2)\n";
    std::fs::write(&path, text).unwrap();
    let mut layers = LayeredConfig::new();
    layers.file(&path).unwrap();
    assert_eq!(layers.remarks().len(), 1);
    let config = layers.finish().unwrap().train;
    assert_eq!((config.batch, config.epochs, config.lr), (Some(128), 2, 0.1));
    std::fs::write(&path, "BATCH_SIZE = 0\n").unwrap();
    let error = LayeredConfig::new().file(&path).unwrap_err().to_string();
    assert_eq!(error, format!("batch = 0 in {}: must be 1 or more", path.display()));
}
