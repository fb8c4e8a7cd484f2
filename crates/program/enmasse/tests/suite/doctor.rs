//! The doctor's page: complete on any machine, with an exit code for scripts, and without secrets.

use std::path::Path;
use std::process::Command;

use crate::common::{Ended, Running, enmasse, finish, images, plain_environment, program, send};
use enmasse_train::CheckpointMeta;
use rustix::process::Signal;
use serde_json::Value;
use test_support::Need;

/// The findings of a section.
fn findings<'a>(report: &'a Value, section: &str) -> &'a [Value] {
    let sections = report["sections"].as_array().expect("sections");
    let found = sections.iter().find(|found| found["section"] == section);
    found.and_then(|found| found["findings"].as_array()).unwrap_or_else(|| panic!("no {section} in {report}"))
}

/// The only finding with that name.
fn finding<'a>(report: &'a Value, section: &str, name: &str) -> &'a Value {
    let found = findings(report, section).iter().find(|finding| finding["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// The report on standard output; the exit code must reflect its problems.
#[track_caller]
fn report(ended: &Ended) -> Value {
    let [report] = &ended.json()[..] else { panic!("{ended:?}") };
    let expected = if report["problems"] == 0 { 0 } else { 1 };
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(expected), ""), "{ended:?}");
    report.clone()
}

#[test]
fn the_report_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
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
    assert_eq!(finding(&report, "data", "folder")["facts"]["images"], 30);
    assert_eq!(finding(&report, "data", "images")["facts"]["unreadable"], 0);
    assert!(finding(&report, "disk", "runs")["facts"]["free_bytes"].as_u64() > Some(0));
    // The examination leaves nothing behind.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_launchers_variables_are_reported_and_do_not_reach_the_test() {
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
    let data = images(folder.path(), 10);
    std::fs::write(data.join("dark/000.png"), "no image").unwrap();
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
    check(program().args(["doctor", "--data"]).arg(&data), "1 of 30 sampled images cannot be used");
    check(program().args(["doctor", "--data", "/nowhere/images"]), "/nowhere/images");
}

/// Threads watch other programs, and calls that may hang.
#[test]
fn without_a_thread_to_start_the_report_says_so() {
    let mut command = Command::new("prlimit");
    plain_environment(&mut command);
    command.arg("--nproc=1");
    if rustix::process::geteuid().is_root() {
        // Root has no limit.
        command.args(["setpriv", "--reuid=65534", "--clear-groups"]);
    }
    let ended = finish(command.args([env!("CARGO_BIN_EXE_enmasse"), "doctor", "--json"]));
    if ended.stdout.is_empty() && !ended.stderr.contains("panicked") {
        test_support::skip(Need::Limits, format_args!("the program does not start under the limit: {}", ended.stderr));
        return;
    }
    let report = report(&ended);
    let threads = finding(&report, "memory and limits", "threads");
    assert_eq!((ended.code, &threads["status"]), (Some(1), &"problem".into()), "{ended:?}");
    assert_eq!(finding(&report, "all-reduce of 2 ranks", "TCP")["status"], "problem");
}

#[test]
fn no_secret_is_shown() {
    let secrets = ["0123456789abcdef-token", "swordfish-password", "an-access-key-of-mine", "job-web-token"];
    for json in [&["doctor"][..], &["doctor", "--json"]] {
        let mut command = program();
        command.args(json).env("ENMASSE_TOKEN", secrets[0]).env("DB_PASSWORD", secrets[1]);
        command.env("AWS_SECRET_ACCESS_KEY", secrets[2]).env("SLURM_JWT", secrets[3]);
        // Even if it is in a variable that is shown.
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

/// The doctor's findings about a run folder.
fn diagnosis(run: &Path) -> Value {
    report(&finish(program().args(["doctor", "--json"]).arg(run)))
}

/// The arguments of a tiny run.
fn train(data: &Path, run: &Path, others: &[&str]) -> Vec<String> {
    let fixed = ["--model", "mlp", "--size", "8", "--batch", "2", "--threads", "1", "--lr", "0.001", "--json", "--out"];
    let words = ["train", data.to_str().unwrap()].into_iter().chain(fixed).chain([run.to_str().unwrap()]);
    words.chain(others.iter().copied()).map(str::to_owned).collect()
}

const ENDLESS: [&str; 4] = ["--epochs", "1000000", "--save-every", "1"];

#[test]
fn a_killed_rank_is_the_root_cause() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let arguments = |others: &[&str]| train(&data, &run, others);
    let mut running = Running::start(program().args(arguments(&[&ENDLESS[..], &["--devices", "cpu:3"]].concat())));
    running.line();
    let working = diagnosis(&run);
    // If the table of locks names another device (overlay), a running run looks like a killed one.
    assert!(["state", "root cause"].iter().any(|name| findings(&working, "run")[0]["name"] == *name), "{working}");
    let victim = running.children()[1];
    send(victim, Signal::KILL);
    running.finish();

    let report = diagnosis(&run);
    let cause = &findings(&report, "run")[0];
    assert_eq!((&cause["name"], &cause["status"]), (&"root cause".into(), &"problem".into()), "{cause}");
    assert_eq!((&cause["facts"]["rank"], &cause["facts"]["signal"]), (&1.into(), &9.into()), "{cause}");
    let text = cause["text"].as_str().unwrap();
    assert!(text.contains(&format!("(process {victim}) was killed by signal 9 (SIGKILL)")), "{text}");
    assert!(cause["remedy"].as_str().unwrap().ends_with("continue with --resume"), "{cause}");
    assert_eq!(finding(&report, "run", "ranks")["facts"]["world_size"], 3);
    crate::common::assert_whole(&run);

    // The run resumes and ends, so the earlier failure no longer counts.
    let done = CheckpointMeta::load(&run.join("checkpoints/last.safetensors")).unwrap().epoch;
    let epochs = (done + 1).to_string();
    enmasse(&arguments(&["--epochs", &epochs, "--devices", "cpu:2", "--resume"])).well();
    let report = diagnosis(&run);
    assert_eq!(findings(&report, "run")[0]["text"], "the run has ended successfully", "{report}");
    assert_eq!(finding(&report, "run", "ranks")["facts"]["world_size"], 2);
    assert!(finding(&report, "run", "earlier")["text"].as_str().unwrap().contains("signal 9"), "{report}");
}

#[test]
fn ranks_of_other_launchers_leave_a_record_or_their_logs() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    for victim in 0..2 {
        let run = folder.path().join(format!("run{victim}"));
        let port = test_support::free_port();
        let start = |rank: usize| {
            let mut command: Command = program();
            command.args(train(&data, &run, &ENDLESS)).env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
            Running::start(command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string()))
        };
        let mut ranks = [start(0), start(1)];
        ranks[0].line();
        ranks[victim].signal(Signal::KILL);
        ranks.into_iter().for_each(|rank| drop(rank.finish()));
        // Rank 0 writes for all. If it was the victim, the other rank's log names it.
        assert_eq!(run.join("logs/failure.json").exists(), victim == 1);
        let report = diagnosis(&run);
        let cause = &findings(&report, "run")[0];
        assert_eq!((&cause["facts"]["rank"], &cause["facts"]["kind"]), (&victim.into(), &"exited".into()), "{cause}");
        assert!(cause["text"].as_str().unwrap().starts_with(&format!("rank {victim} on host ")), "{cause}");
    }
}

#[test]
fn a_loss_that_is_not_finite_is_told_in_its_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    for kind in ["process", "thread"] {
        let run = folder.path().join(kind);
        let ended = enmasse(&train(&data, &run, &["--lr", "1e30", "--devices", "cpu:2", "--ranks", kind]));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let report = diagnosis(&run);
        let cause = &findings(&report, "run")[0];
        assert!(cause["text"].as_str().unwrap().contains("non-finite loss"), "{cause}");
        assert!(report["problems"].as_u64() >= Some(1), "{report}");
    }
}

#[test]
fn folders_that_hold_no_run() {
    let folder = tempfile::tempdir().unwrap();
    for run in [folder.path().to_owned(), folder.path().join("nowhere")] {
        let report = diagnosis(&run);
        assert_eq!(findings(&report, "run")[0]["status"], "problem", "{report}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_folder_of_launcher_logs_is_read_too() {
    let folder = tempfile::tempdir().unwrap();
    let rank = folder.path().join("job_x/attempt_0/1");
    std::fs::create_dir_all(&rank).unwrap();
    std::fs::write(rank.join("error.json"), "{\"message\":{\"message\":\"ValueError: no\"}}").unwrap();
    let report = diagnosis(folder.path());
    let cause = &findings(&report, "run")[0];
    assert_eq!((&cause["name"], &cause["facts"]["local_rank"]), (&"root cause".into(), &1.into()), "{cause}");
    assert_eq!(cause["text"], "local rank 1 failed first, of 1 rank: ValueError: no");
}
