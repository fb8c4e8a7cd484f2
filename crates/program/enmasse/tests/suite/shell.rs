//! Completions and pages of the manual.

use std::fs;
use std::process::Command;

use crate::common::{enmasse, finish, refused};

#[test]
fn bash_completes_commands_and_flags() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("enmasse.bash");
    fs::write(&script, enmasse(&["completions", "bash"]).well().stdout).unwrap();
    let check = |words: &str, expected: &str| {
        let last = words.split(' ').next_back().unwrap();
        let ask = format!(
            "source {}; COMP_WORDS=(enmasse {words}); COMP_CWORD={}; _enmasse enmasse '{last}' ''; echo \"${{COMPREPLY[@]}}\"",
            script.display(),
            words.split(' ').count(),
        );
        assert_eq!(finish(Command::new("bash").args(["-c", &ask])).well().stdout.trim_end(), expected, "{words}");
    };
    check("tra", "train");
    check("predict --files", "--files-from");
    check("bench st", "step");
    // What only this program itself types is not offered.
    check("train --deci", "");
    check("self", "");
}

#[test]
fn every_shell_has_a_script() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = enmasse(&["completions", shell]).well().stdout;
        assert!(script.contains("warmup-epochs") && !script.contains("decided"), "{shell}");
    }
    refused(&enmasse(&["completions", "tcsh"]), 2, &["tcsh", "bash, elvish, fish, powershell, zsh"]);
}

#[test]
fn pages_of_the_manual() {
    let folder = tempfile::tempdir().unwrap();
    let page = |words: &[&str]| enmasse(&[&["man"], words].concat()).well().stdout;
    assert!(page(&[]).contains(".TH enmasse 1"));
    assert!(page(&["bench", "step"]).contains(".TH enmasse-bench-step 1"));
    refused(&enmasse(&["man", "tran"]), 2, &["man tran: there is no such command"]);
    let out = folder.path().display().to_string();
    enmasse(&["man", "--out", &out]).well();
    let written = fs::read_to_string(folder.path().join("enmasse-train.1")).unwrap();
    assert_eq!(written.trim_end(), page(&["train"]).trim_end());
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("help")), "{names:?}");
    refused(&enmasse(&["man", "--out", "nowhere"]), 1, &["nowhere", "there is no folder"]);
}
