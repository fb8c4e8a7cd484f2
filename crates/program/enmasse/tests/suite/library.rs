//! The library beside the program: inference by a run, and errors as a user's `main` prints them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::common::{enmasse, finish, images, plain_environment, program, refused};
use enmasse::data::decode;
use enmasse::prelude::*;
use enmasse::train::Prediction;

#[test]
fn a_program_predicts_as_the_command_does() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let image = data.join("red/001.jpg");
    let [data, text, image] = [&data, &run, &image].map(|path| path.display().to_string());
    enmasse(&["train", &data, "--model", "mlp", "--size", "12", "--batch", "4", "--epochs", "1", "--out", &text])
        .well();
    let mut model = TrainedModel::open(&run).unwrap();
    assert_eq!(model.classes(), ["dark", "light", "red"]);
    let command = enmasse(&["predict", &text, &image, "--json"]).well().json().remove(0);
    for _ in 0..2 {
        let found = model.predict(&image).unwrap();
        let probabilities = |top: &serde_json::Value| -> Vec<f64> {
            top.as_array().unwrap().iter().map(|guess| guess["probability"].as_f64().unwrap()).collect()
        };
        let own: Vec<f64> = found.top.iter().map(|guess| guess.probability).collect();
        assert_eq!(own, probabilities(&command["top"]));
    }
    assert!(model.predict(folder.path().join("none.jpg")).unwrap_err().to_string().contains("none.jpg"));
}

/// Regression test: a program that received its images over a network had to write each to a file, and predict it alone.
#[test]
fn bytes_and_batches_are_predicted_as_files_are() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let [data_text, text] = [&data, &run].map(|path| path.display().to_string());
    enmasse(&["train", &data_text, "--model", "mlp", "--size", "12", "--batch", "4", "--epochs", "1", "--out", &text])
        .well();
    let mut model = TrainedModel::open(&run).unwrap();
    let paths: Vec<PathBuf> = ["red/001.jpg", "dark/000.png", "light/003.jpg"].map(|name| data.join(name)).into();
    let bytes: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let tops = |found: Vec<Prediction>| found.into_iter().map(|one| one.top).collect::<Vec<_>>();
    let alone: Vec<Prediction> = paths.iter().map(|path| model.predict(path).unwrap()).collect();
    let of_bytes: Vec<Prediction> = bytes.iter().map(|bytes| model.predict(bytes).unwrap()).collect();
    assert_eq!(of_bytes[1].image, "image 0");
    assert_eq!(tops(of_bytes), tops(alone.clone()));

    let batch = model.predict_batch(&bytes).unwrap();
    assert_eq!(batch.iter().map(|one| one.image.as_str()).collect::<Vec<_>>(), ["image 0", "image 1", "image 2"]);
    assert_eq!(tops(batch.clone()), tops(model.predict_batch(&paths).unwrap()));
    for (one, other) in alone.iter().zip(&batch) {
        for (one, other) in one.top.iter().zip(&other.top) {
            assert_eq!(one.class, other.class);
            assert!((one.probability - other.probability).abs() < 1e-6, "{one:?} {other:?}");
        }
    }
    // Pixels are predicted as their files are, and every class has its probability.
    let pixels: Vec<Image> = paths.iter().map(|path| decode::open(path, model.reading()).unwrap()).collect();
    let outputs = model.outputs(&pixels).unwrap();
    for (found, outputs) in batch.iter().zip(&outputs) {
        let own: Vec<f64> = found.top.iter().map(|guess| outputs[guess.index]).collect();
        assert_eq!(own, found.top.iter().map(|guess| guess.probability).collect::<Vec<_>>());
        assert_eq!(outputs.len(), 3);
    }
    assert_eq!(model.predict(&pixels[0]).unwrap().top, alone[0].top);

    // More than fit a batch, and none.
    let many: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).cycle().take(70).collect();
    let found = model.predict_batch(many).unwrap();
    assert_eq!((found.len(), &found[69].image[..], &found[69].top[0].class), (70, "image 69", &batch[0].top[0].class));
    assert_eq!(model.predict_batch([] as [&Path; 0]).unwrap(), []);
    let error = model.predict_batch([&bytes[0][..], b"no image"]).unwrap_err().to_string();
    assert!(error.contains("image 1"), "{error}");

    // The program reads the same bytes from standard input.
    let predict = |path: &str, input: &Path, others: &[&str]| {
        let command = format!("exec \"$0\" \"$@\" < '{}'", input.display());
        let mut shell = Command::new("sh");
        shell.args(["-c", &command, env!("CARGO_BIN_EXE_enmasse"), "predict", &text, path]).args(others);
        plain_environment(&mut shell);
        finish(&mut shell)
    };
    let file = predict(&paths[0].display().to_string(), Path::new("/dev/null"), &["--json"]).well().json();
    let piped = predict("-", &paths[0], &["--json"]).well().json();
    assert_eq!((&piped[0]["image"], &piped[0]["top"]), (&"-".into(), &file[0]["top"]));
    let broken = predict("-", &run.join("config.toml"), &["--csv"]);
    assert_eq!((broken.code, broken.stdout.as_str()), (Some(1), "path,class,probability\n"));
    assert!(broken.stderr.starts_with("error: -: "), "{}", broken.stderr);
    refused(&predict("-", &paths[0], &["-"]), 2, &["-: standard input holds one image; name it once"]);
}

#[test]
fn a_run_of_an_own_model_is_for_its_own_program() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let own = |x: Tensor, classes: usize| x.flatten().linear("own", classes);
    let config =
        TrainConfig { epochs: 1, size: Some(12), batch: Some(8), out: Some(run.clone()), ..TrainConfig::default() };
    let image = data.join("red/001.jpg");
    let data = TrainingData::open(&data, &config.open_options()).unwrap();
    Trainer::new(config, device("cpu", 1).unwrap()).fit("own", &own, &data).unwrap();
    assert_eq!(TrainedModel::open_own(&run, own).unwrap().predict(&image).unwrap().top.len(), 3);
    let error = TrainedModel::open(&run).err().unwrap();
    // What `main() -> Result<(), TrainError>` prints.
    let printed = format!("{error:?}");
    assert_eq!(printed, error.to_string());
    assert!(printed.contains("its model \"own\" was defined by the program that trained it"), "{printed}");
    let refused = |command: &str, others: &[&Path]| {
        let ended = finish(program().arg(command).arg(&run).args(others));
        let line = format!(
            "error: {}: its model \"own\" was trained by your own program: use the library there \
             (TrainedModel::open_own to predict, Classifier::program and evaluate to evaluate)\n",
            run.display()
        );
        assert_eq!((ended.code, ended.stdout, ended.stderr), (Some(1), String::new(), line), "{command}");
    };
    refused("predict", &[&image]);
    refused("eval", &[&folder.path().join("images")]);
    // The configuration names no data, and the run's own are not the embedded ones.
    refused("eval", &[]);
    // Weights need no model to be written.
    let file = folder.path().join("own.safetensors");
    let ended = finish(program().arg("export").arg(&run).args(["--to", "safetensors", "--out"]).arg(&file)).well();
    assert!(ended.stdout.starts_with("wrote ") && ended.stdout.contains("2 tensors"), "{ended:?}");
    assert!(TrainedModel::open_own(&run, |x: Tensor, classes| x.flatten().linear("other", classes)).is_err());
}

/// Regression test: a program had to say how many threads compute, and the ranks of a machine together took more than its cores.
#[test]
fn ranks_of_a_program_divide_the_cores() {
    let check = |ranks: usize| {
        let names =
            enmasse::launch::spawn(ranks, |group| Ok::<_, TrainError>(device_of_rank("cpu", &group)?.name())).unwrap();
        let threads = |name: &String| {
            let (_, after) = name.split_once(", ").unwrap();
            after.split(' ').next().unwrap().parse::<usize>().unwrap()
        };
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(names.iter().map(threads).sum::<usize>(), cores.max(ranks), "{names:?}");
    };
    check(1);
    check(2);
    check(3);
}

/// Grey images, and how bright they are.
struct Greys;

impl Dataset for Greys {
    fn len(&self) -> usize {
        13
    }
    fn label(&self, _: usize) -> usize {
        0
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        Ok(Image::new(6, 6, (0..108).map(|i| (index * 17 + i % 7) as u8).collect())?)
    }
    fn targets(&self, index: usize) -> Vec<f32> {
        vec![index as f32 * 17.0 / 255.0]
    }
}

#[derive(Debug)]
struct Brightness;

impl Task for Brightness {
    fn target(&self) -> TargetKind {
        TargetKind::Values(1)
    }
    fn outputs(&self) -> usize {
        1
    }
    fn loss(&self, _: &TrainConfig) -> Loss {
        Loss::Custom(PerSample::new(|x: Tensor, y: Tensor| (x + y.affine(-1.0, 0.0)).power(2.0).sum_classes()))
    }
}

#[test]
fn a_task_of_values_learns_the_same_on_a_cpu_as_in_f64() {
    let folder = tempfile::tempdir().unwrap();
    let data = TrainingData::new(Arc::new(Greys), Arc::new(Greys));
    let model = |x: Tensor, outputs| x.conv2d("conv", Conv::new(2, 3)).gelu().flatten().linear("fc", outputs);
    let run = |kind: &str| {
        let config = TrainConfig {
            epochs: 2,
            batch: Some(3),
            shards: Some(2),
            size: Some(6),
            lr: 0.01,
            out: Some(folder.path().join(kind)),
            ..TrainConfig::default()
        };
        let mut trainer = Trainer::new(config, device(kind, 1).unwrap()).task(Brightness);
        let best = trainer.fit("brightness", &model, &data).unwrap().best.value.unwrap();
        let outputs = trainer.predict(&data.validation).unwrap();
        [best].into_iter().chain(outputs.concat()).collect::<Vec<f64>>()
    };
    let (cpu, reference) = (run("cpu"), run("reference"));
    assert_eq!(cpu.len(), 14);
    for (cpu, reference) in cpu.iter().zip(&reference) {
        assert!((cpu - reference).abs() < 1e-5, "{cpu} {reference}");
    }
}
