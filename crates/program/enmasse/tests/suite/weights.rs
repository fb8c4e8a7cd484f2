//! Weights files of other programs, on the command line: training and evaluation read them alike, and say so in the same
//! words.

use std::fs::File;
use std::path::Path;

use crate::common::{Ended, enmasse, failed, images, refused};
use enmasse_weights::{NamedTensor, pth, read};

/// A file as Lightning names the tensors of `run`, beside those of a loss.
fn write_prefixed(run: &Path, path: &Path) {
    let mut tensors = read(&run.join("weights/model-0.pth")).unwrap().tensors;
    tensors.iter_mut().for_each(|tensor| tensor.name.insert_str(0, "model."));
    tensors.push(NamedTensor { name: "criterion.weight".to_owned(), shape: vec![1], values: vec![1.0] });
    pth::write(&mut File::create(path).unwrap(), &tensors, 1).unwrap();
}

/// Nothing told that these were no best weights.
#[test]
fn the_last_weights_of_a_run_without_a_whole_epoch_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8).display().to_string();
    let run = folder.path().join("run").display().to_string();
    let train = ["train", &data, "--out", &run, "--model", "mlp", "--size", "8", "--batch", "4", "--devices", "cpu:1"];
    let warnings = || {
        let ended = enmasse(&["eval", &run, "--devices", "cpu:2"]).well();
        ended.stderr.lines().filter(|line| line.contains("epoch")).map(str::to_owned).collect::<Vec<_>>()
    };
    enmasse(&[&train[..], &["--max-steps", "2"]].concat()).well();
    assert_eq!(
        warnings(),
        [format!("warning: {run}: no whole epoch has ended, so these are the weights of its last step")]
    );
    enmasse(&[&train[..], &["--resume", "--epochs", "1"]].concat()).well();
    assert_eq!(warnings(), [""; 0]);
}

#[test]
fn training_and_evaluation_read_files_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = images(folder.path(), 5).display().to_string();
    let (run, weights) = (path("run"), path("lightning.ckpt"));
    let model = ["--model", "mlp", "--size", "12", "--devices", "cpu:1"];
    let train = |out: &str, others: &[&str]| -> Ended {
        enmasse(&[&["train", &data, "--epochs", "1", "--batch", "4", "--out", out], &model[..], others].concat())
    };
    train(&run, &["--export-every", "1"]).well();
    write_prefixed(Path::new(&run), Path::new(&weights));

    let report = format!(
        "weights:  loaded 6 of 6 tensors from {weights}\nweights:  prefix model. removed from 6 names\n\
         weights:  not used: criterion.weight\n"
    );
    let eval = |others: &[&str]| enmasse(&[&["eval", &weights, &data], &model[..], others].concat());
    let evaluated = eval(&["--json"]);
    assert_eq!(evaluated.stderr, report);
    let own = enmasse(&["eval", &run, &data, "--split", "all", "--devices", "cpu:1", "--json"]).well();
    assert_eq!(evaluated.well().json()[0]["accuracy"], own.json()[0]["accuracy"]);
    // Once, at any number of ranks.
    assert_eq!(eval(&["--devices", "cpu:2", "--json"]).stderr, report);
    let image = format!("{data}/red/000.png");
    let predicted = enmasse(&["predict", &weights, &image, "--model", "mlp", "--size", "12"]);
    assert_eq!(predicted.stderr, report);
    predicted.well();
    let trained = train(&path("second"), &["--weights", &weights]);
    assert!(trained.stderr.contains(&report), "{}", trained.stderr);
    trained.well();
    let named = eval(&["--prefix", "model.="]);
    assert_eq!(named.stderr, report);
    named.well();

    // The same errors.
    let check = |prefix: &str, mention: &str| {
        let evaluated = eval(&["--prefix", prefix]);
        failed(&evaluated, 1, &[mention]);
        let trained = train(&path("third"), &["--weights", &weights, "--prefix", prefix]);
        assert_eq!(trained.stderr.lines().last(), evaluated.stderr.lines().last());
        assert_eq!(trained.code, Some(1));
    };
    check("backbone.=", &format!("--prefix backbone.=: no name in {weights} begins so; the first are model."));
    check("model.=x", &format!("{weights} does not fit the model mlp: they share no names"));
    let other = format!("{weights} does not fit the model lenet: ");
    let lenet = ["eval", &weights, &data, "--model", "lenet", "--size", "28", "--devices", "cpu:1"];
    failed(&enmasse(&lenet), 1, &[&other, "is it of another model?"]);
    refused(&eval(&["--prefix", "model."]), 2, &["--prefix model.: must be OLD=NEW, such as backbone.="]);
    refused(&enmasse(&["eval", &run, "--prefix", "model.="]), 2, &["--prefix model.=: a run has its model's names"]);
    let warned = train(&path("fourth"), &["--prefix", "model.="]);
    assert!(warned.stderr.contains("warning: --prefix model.= has no effect without --weights"), "{}", warned.stderr);
}
