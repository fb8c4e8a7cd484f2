//! The doctor's page: complete on any machine, with an exit code for scripts, and without secrets.

mod common;

use common::{Ended, finish, pictures, program};
use serde_json::Value;

/// The findings of a section.
fn findings<'a>(report: &'a Value, section: &str) -> &'a [Value] {
    let sections = report["sections"].as_array().expect("sections");
    let found = sections.iter().find(|found| found["section"] == section);
    found.and_then(|found| found["findings"].as_array()).unwrap_or_else(|| panic!("no {section} in {report}"))
}

/// The one finding of that name.
fn finding<'a>(report: &'a Value, section: &str, name: &str) -> &'a Value {
    let found = findings(report, section).iter().find(|finding| finding["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// The report on standard output, whose problems the exit code must tell of.
#[track_caller]
fn report(ended: &Ended) -> Value {
    let [report] = &ended.json()[..] else { panic!("{ended:?}") };
    let expected = if report["problems"] == 0 { 0 } else { 1 };
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(expected), ""), "{ended:?}");
    report.clone()
}

#[test]
fn the_report_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let data = pictures(folder.path(), 10);
    let ended = finish(program().args(["doctor", "--json", "--data"]).arg(&data).current_dir(folder.path()));
    let report = report(&ended);
    for section in ["processor", "memory and limits", "GPUs", "network", "launcher and environment", "disk"] {
        assert!(!findings(&report, section).is_empty(), "{section}");
    }
    for transport in ["shared memory", "TCP"] {
        let test = finding(&report, "all-reduce of 2 ranks", transport);
        assert_eq!(test["status"], "ok", "{test}");
        assert!(["join_s", "small_s", "large_s"].iter().all(|time| test["facts"][time].as_f64() > Some(0.0)), "{test}");
    }
    assert!(finding(&report, "processor", "cores")["facts"]["used"].as_u64() >= Some(1));
    assert_eq!(finding(&report, "data", "folder")["facts"]["pictures"], 30);
    assert_eq!(finding(&report, "data", "pictures")["facts"]["unreadable"], 0);
    assert!(finding(&report, "disk", "runs")["facts"]["free_bytes"].as_u64() > Some(0));
    // Looking leaves nothing behind.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_place_by_launcher_is_told_and_does_not_reach_the_test() {
    let mut command = program();
    command.args(["doctor", "--json"]).env("RANK", "1").env("WORLD_SIZE", "2");
    command.env("MASTER_ADDR", "node1").env("MASTER_PORT", "29500").env("ENMASSE_STORE_FD", "77");
    let report = report(&finish(&mut command));
    let place = finding(&report, "launcher and environment", "launcher");
    assert!(place["text"].as_str().unwrap().contains("rank 1 of 2"), "{place}");
    for transport in ["shared memory", "TCP"] {
        let test = finding(&report, "all-reduce of 2 ranks", transport);
        assert_eq!(test["status"], "ok", "{test}");
    }
}

#[test]
fn problems_have_an_exit_code_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let data = pictures(folder.path(), 10);
    std::fs::write(data.join("dark/000.png"), "no picture").unwrap();
    let check = |command: &mut std::process::Command, mention: &str| {
        let ended = finish(command);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let problem = ended.stdout.lines().position(|line| line.starts_with("  problem ") && line.contains(mention));
        let behind = ended.stdout.lines().skip(problem.unwrap_or_else(|| panic!("{mention}: {}", ended.stdout)));
        assert!(behind.take(5).any(|line| line.trim().starts_with("-> ")), "{}", ended.stdout);
        assert!(
            ended.stdout.lines().all(|line| line.chars().count() <= 120 || line.contains(" /")),
            "{}",
            ended.stdout
        );
    };
    check(program().arg("doctor").env("RANK", "1"), "WORLD_SIZE is not set although RANK is");
    check(program().args(["doctor", "--data"]).arg(&data), "1 of 30 that were tried cannot be used");
    check(program().args(["doctor", "--data", "/nowhere/pictures"]), "/nowhere/pictures");
}

#[test]
fn no_secret_is_shown() {
    let secrets = ["0123456789abcdef-token", "swordfish-password", "an-access-key-of-mine", "job-web-token"];
    for json in [&["doctor"][..], &["doctor", "--json"]] {
        let mut command = program();
        command.args(json).env("ENMASSE_TOKEN", secrets[0]).env("DB_PASSWORD", secrets[1]);
        command.env("AWS_SECRET_ACCESS_KEY", secrets[2]).env("SLURM_JWT", secrets[3]);
        // Even where it got into a variable that is shown.
        let ended = finish(command.env("MASTER_ADDR", secrets[1]));
        assert!(
            ended.stdout.contains("ENMASSE_TOKEN=(secret)") && ended.stdout.contains("[secret]"),
            "{}",
            ended.stdout
        );
        for secret in secrets {
            assert!(!ended.stdout.contains(secret) && !ended.stderr.contains(secret), "{secret}: {ended:?}");
        }
    }
}
