//! What a fit leaves in its trainer: weights to read, to save as PyTorch opens them, and to replace by those of a file.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use crate::fit::{config, cpu, net};
use enmasse_train::{
    Checkpoint, EvaluatedWeights, NamedTensor, RunPaths, TrainConfig, TrainError, Trainer, TrainingData, load_weights,
};

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17))).with_test(Arc::new(Colours(11)))
}

/// The weights of a run's last checkpoint that evaluation uses.
fn kept(out: &Path) -> Vec<NamedTensor> {
    EvaluatedWeights::of(Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap().tensors).weights
}

#[test]
fn weights_are_read_and_saved_as_the_run_kept_them() {
    let folder = tempfile::tempdir().unwrap();
    for (ranks, ema) in [(1, None), (2, Some(0.5))] {
        let out = folder.path().join(ranks.to_string());
        let files = ["own.pth", "own.safetensors"].map(|name| out.join(name));
        let config = TrainConfig { batch: Some(8 / ranks), ema, ..config(&out) };
        let read = enmasse_launch::spawn(ranks, |group| {
            let mut trainer = Trainer::new(config.clone(), cpu(1)).group(group);
            trainer.fit("net", &net, &data())?;
            // The last ones again, after those of the best epoch were tested.
            trainer.test(&data())?;
            files.iter().try_for_each(|file| trainer.save(file))?;
            trainer.weights()
        });
        let expected = kept(&out);
        assert_eq!(expected[0].name, "conv.weight");
        assert_eq!(expected[0].shape, [4, 3, 3, 3]);
        read.unwrap().iter().for_each(|weights| assert_eq!(*weights, expected));
        files.iter().for_each(|file| assert_eq!(load_weights(file).unwrap(), expected, "{}", file.display()));
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(out.join("own.json")).unwrap()).unwrap();
        assert_eq!((&json["model"], &json["size"]), (&"net".into(), &8.into()));
    }
}

#[test]
fn weights_of_a_file_replace_those_of_the_fit() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let file = folder.path().join("first.pth");
    let fitted = |out: &Path, seed: u64| {
        let mut trainer = Trainer::new(TrainConfig { seed, ..config(out) }, cpu(1));
        trainer.fit("net", &net, &data()).unwrap();
        trainer
    };
    let mut trainer = fitted(&first, 0);
    trainer.save(&file).unwrap();
    let weights = trainer.weights().unwrap();
    let expected = trainer.validate(&data()).unwrap().loss;
    for ranks in [1, 2] {
        let out = second.join(ranks.to_string());
        let config = TrainConfig { seed: 1, epochs: 1, ..config(&out) };
        let found = enmasse_launch::spawn(ranks, |group| {
            let is_main = group.is_main();
            let mut trainer = Trainer::new(config.clone(), cpu(1)).group(group);
            trainer.fit("net", &net, &data())?;
            let before = trainer.validate(&data())?.loss;
            let matching = trainer.load(&file)?;
            assert_eq!(matching.is_some(), is_main);
            // The best checkpoint of the run is not what is tested, so the run does not get the result.
            trainer.test(&data())?;
            assert_eq!(trainer.weights()?, weights);
            Ok::<_, TrainError>((before, trainer.validate(&data())?.loss))
        });
        for (before, loss) in found.unwrap() {
            assert!(before != loss && (loss - expected).abs() < 1e-12, "{before} {loss} {expected}");
        }
        assert!(!RunPaths::new(&out).test_record().exists());
    }
}

#[test]
fn what_cannot_be_saved_or_loaded_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut trainer = Trainer::new(TrainConfig { epochs: 1, ..config(&out) }, cpu(1));
    let text = |result: Result<(), TrainError>| result.unwrap_err().to_string();
    let unfitted = "nothing is trained yet: call fit first";
    assert_eq!(text(trainer.weights().map(drop)), unfitted);
    assert_eq!(text(trainer.save(out.join("a.pth"))), unfitted);
    assert_eq!(text(trainer.load(out.join("a.pth")).map(drop)), unfitted);
    trainer.fit("net", &net, &data()).unwrap();
    let mut check = |name: &str, expected: &str| {
        let path = out.join(name);
        let expected = expected.replace("RUN", &out.display().to_string());
        assert_eq!(text(trainer.save(&path)), expected);
        assert!(!path.exists(), "nothing is written");
    };
    check("a.onnx", "RUN/a.onnx: weights are written as .pth or as .safetensors; choose another path");
    let over = "RUN/class_indices.json: the preparation of images would be written there, over another file; choose another path";
    check("class_indices.pth", over);
    assert!(text(trainer.load(out.join("missing.pth")).map(drop)).contains("missing.pth"));
}
