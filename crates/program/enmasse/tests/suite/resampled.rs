//! `--balance classes` and `--repeat-augment`: the same weights on any number of ranks, and after a stop.

use crate::common::enmasse;
use crate::common::runs::{Folder, figures, tensors};

#[test]
fn ranks_and_stops_do_not_change_what_is_drawn() {
    let folder = Folder::new("2");
    let run = |name: &str, others: &[&str]| {
        let out = folder.path(name);
        let fixed = ["--shards", "2", "--balance", "classes", "--repeat-augment", "2"];
        (enmasse(&folder.arguments(&out, &[&fixed, others].concat())).well(), out)
    };
    let (one, alone) = run("one", &["--devices", "cpu:1"]);
    let (two, together) = run("two", &["--devices", "cpu:2"]);
    assert_eq!(figures(&one), figures(&two));
    run("stopped", &["--devices", "cpu:2", "--max-steps", "5"]);
    let (_, stopped) = run("stopped", &["--devices", "cpu:1", "--resume"]);
    let (_, usual) = run("usual", &["--devices", "cpu:1", "--repeat-augment", "1", "--balance", "none"]);
    let weights = tensors(&alone, "last.safetensors");
    assert!(weights == tensors(&together, "last.safetensors"));
    assert!(weights == tensors(&stopped, "last.safetensors"));
    assert!(weights != tensors(&usual, "last.safetensors"));
}
