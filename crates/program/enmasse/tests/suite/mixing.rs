//! `--mixup` and `--cutmix`: the same weights on any number of ranks and after a stop, and what a run says of them.

use crate::common::enmasse;
use crate::common::runs::{Folder, figures, tensors};

#[test]
fn ranks_and_stops_do_not_change_mixtures() {
    let folder = Folder::new("2");
    let run = |name: &str, others: &[&str]| {
        let out = folder.path(name);
        let fixed = ["--shards", "2", "--mixup-alpha", "0.8", "--cutmix", "1"];
        (enmasse(&folder.arguments(&out, &[&fixed, others].concat())).well(), out)
    };
    let (one, alone) = run("one", &["--devices", "cpu:1"]);
    let (two, together) = run("two", &["--devices", "cpu:2"]);
    assert_eq!(figures(&one), figures(&two));
    assert!(one.stderr.contains("mixed mixup_alpha=0.8 cutmix_alpha=1"), "{one:?}");
    run("stopped", &["--devices", "cpu:2", "--max-steps", "5"]);
    // A run that goes on knows its settings.
    let stopped = folder.path("stopped");
    enmasse(&["train", "--resume", "--out", &stopped.display().to_string(), "--devices", "cpu:1"]).well();
    let (_, usual) = run("usual", &["--devices", "cpu:1", "--mixup", "0", "--cutmix", "0"]);
    let weights = tensors(&alone, "last.safetensors");
    assert!(weights == tensors(&together, "last.safetensors"));
    assert!(weights == tensors(&stopped, "last.safetensors"));
    assert!(weights != tensors(&usual, "last.safetensors"));
    let chart = std::fs::read_to_string(alone.join("charts/augmented.svg")).unwrap();
    assert!(chart.contains(", "), "{chart:.400}");
}
