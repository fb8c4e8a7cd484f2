//! Ranks as processes and as threads: the same bits, and all of them end whatever happens to one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::runs::{arguments, assert_same, figures, tensors};
use crate::common::{
    Ended, Running, assert_whole, enmasse, exists, finish, images, metrics, plain_environment, program, refused,
    refused_stranger, send, until,
};
use enmasse_cpu::Isa;
use enmasse_train::Checkpoint;
use rustix::process::Signal;
use test_support::Need;

/// Time limit for all ranks to end; on a busy machine the kernel may schedule them late.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn processes_and_threads_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let check = |ranks: usize, others: &[&str]| {
        let run = |kind: &str| {
            let out = folder.path().join(format!("{kind}{ranks}{}", others.len()));
            let devices = format!("cpu:{ranks}");
            let fixed = ["--devices", &devices, "--ranks", kind, "--epochs", "2"];
            let ended = enmasse(&arguments(&data, &out, &[&fixed, others].concat())).well();
            assert_eq!(ended.json()[0]["world_size"], ranks);
            assert_whole(&out);
            (figures(&ended), tensors(&out, "last.safetensors"))
        };
        let (by_process, by_thread) = (run("process"), run("thread"));
        assert_eq!(by_process.0, by_thread.0, "{ranks} ranks {others:?}");
        assert!(by_process.1 == by_thread.1, "{ranks} ranks {others:?}: weights differ");
        assert!(!by_process.0.is_empty());
    };
    check(2, &["--check-ranks"]);
    check(3, &["--check-ranks", "--optimizer", "adamw", "--lr", "0.01"]);
    // Without SyncBatchNorm statistics travel with the last bucket; with it all ranks share them.
    check(2, &["--model", "resnet18", "--size", "32", "--max-steps", "2"]);
    check(2, &["--model", "resnet18", "--size", "32", "--max-steps", "2", "--sync-bn"]);
}

/// The model has no running statistics, so that all bits are those of ranks that all update.
#[test]
fn with_dp_the_first_device_updates_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let place = |name: &str| folder.path().join(name);
    let run = |name: &str, others: &[&str]| {
        let fixed = ["--epochs", "2", "--optimizer", "adamw", "--clip-norm", "0.5", "--ema", "0.5", "--check-ranks"];
        enmasse(&arguments(&data, &place(name), &[&fixed, others].concat()))
    };
    for devices in ["cpu:2", "cpu:3", "reference:2"] {
        let [ddp, dp] = ["ddp", "dp"].map(|strategy| format!("{devices} {strategy}"));
        run(&ddp, &["--devices", devices]).well();
        run(&dp, &["--devices", devices, "--strategy", "dp"]).well();
        assert_same(&place(&dp), &place(&ddp));
    }
    // Only the first rank has the optimiser's state to go on with.
    run("part", &["--devices", "cpu:2", "--strategy", "dp", "--max-steps", "3"]).well();
    run("part", &["--devices", "cpu:2", "--resume", "--strategy", "dp"]).well();
    assert!(tensors(&place("part"), "last.safetensors") == tensors(&place("cpu:2 ddp"), "last.safetensors"));

    let check = |others: &[&str], mention: &str| {
        refused(&run("refused", &[&["--strategy", "dp", "--devices", "cpu:2"], others].concat()), 2, &[mention]);
        assert!(!place("refused").exists());
    };
    check(&["--sync-bn"], "--strategy dp: --sync-bn needs --strategy ddp");
    check(
        &["--ranks", "process"],
        "--strategy dp: has ranks that are threads of one process; leave out --ranks process",
    );
    let launch = ["launch", "-n", "2", "--", env!("CARGO_BIN_EXE_enmasse")].map(str::to_owned);
    let words = arguments(&data, &place("refused"), &["--strategy", "dp"]);
    let ended = finish(program().args([&launch[..], &words].concat()));
    let mention = "--strategy dp: its ranks are threads of one process, and a launcher has started 2 processes";
    assert!(ended.code == Some(2) && ended.stderr.contains(mention), "{ended:?}");
    assert!(!place("refused").exists());
}

#[test]
fn evaluation_is_exact_at_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 9);
    let run = folder.path().join("run");
    enmasse(&arguments(&data, &run, &["--epochs", "1", "--lr", "0.001", "--devices", "cpu:1"])).well();
    let (data, run) = (data.display().to_string(), run.display().to_string());
    // 27 images in batches of 4 per rank: some ranks get few or no images of the last global batch.
    let found: Vec<_> = ["cpu:1", "cpu:2", "cpu:3", "cpu:5"]
        .into_iter()
        .map(|devices| {
            let ended =
                enmasse(&["eval", &run, &data, "--split", "all", "--batch", "4", "--devices", devices, "--json"])
                    .well();
            let [line] = &ended.json()[..] else { panic!("{ended:?}") };
            assert_eq!((&line["samples"], ended.stderr.as_str()), (&27.into(), ""));
            (line["accuracy"].as_f64().unwrap(), line["loss"].as_f64().unwrap())
        })
        .collect();
    for (accuracy, loss) in &found[1..] {
        assert_eq!(*accuracy, found[0].0);
        assert!((loss - found[0].1).abs() < 1e-5 * found[0].1, "{found:?}");
    }
}

/// A run that would continue for hours, with its first epoch done.
fn endless(data: &Path, run: &Path, others: &[&str]) -> Running {
    let fixed = ["--epochs", "1000000", "--lr", "0.001"];
    let mut running = Running::start(program().args(arguments(data, run, &[&fixed, others].concat())));
    let line = running.line();
    assert!(line.contains("\"epoch\":0"), "{line}");
    running
}

/// The program's own end, within the limit.
#[track_caller]
fn ends_soon(running: Running, ranks: &[i32]) -> Ended {
    let began = Instant::now();
    let pid = running.pid();
    let ended = running.finish();
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
    for pid in ranks.iter().chain([&pid]) {
        assert!(!exists(*pid), "process {pid} is still there");
    }
    ended
}

#[test]
fn a_killed_rank_ends_all_with_its_story() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    for victim in 0..3 {
        let run = folder.path().join(format!("run{victim}"));
        let running = endless(&data, &run, &["--devices", "cpu:3", "--save-every", "1", "--log-ranks"]);
        let ranks = running.children();
        assert_eq!(ranks.len(), 3);
        send(ranks[victim], Signal::KILL);
        let ended = ends_soon(running, &ranks);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let errors: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        let [story] = errors.as_slice() else { panic!("{ended:?}") };
        let rank = format!("rank {victim} ");
        let pid = format!("process {}", ranks[victim]);
        assert!([rank.as_str(), &pid, "signal 9"].iter().all(|part| story.contains(part)), "{story}");
        // Its last lines, except for rank 0, whose output is on the terminal already.
        let last_lines = ended.stderr.lines().any(|line| line.starts_with(&format!("  | [rank {victim}] ")));
        assert_eq!(last_lines, victim > 0, "{}", ended.stderr);
        assert_whole(&run);
    }
}

#[test]
fn an_interrupt_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let mut number = 0;
    let mut check = |others: &[&str], ranks: usize, signal: Signal, code: i32| {
        number += 1;
        let run = folder.path().join(format!("run{number}"));
        let running = endless(&data, &run, &[others, &["--save-every", "1"]].concat());
        let children = running.children();
        assert_eq!(children.len(), ranks);
        running.signal(signal);
        let ended = ends_soon(running, &children);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(!ended.stderr.contains("error: "), "{}", ended.stderr);
        assert_whole(&run);
    };
    check(&["--devices", "cpu:1"], 0, Signal::INT, 130);
    check(&["--devices", "cpu:2", "--ranks", "thread"], 0, Signal::INT, 130);
    check(&["--devices", "cpu:2"], 2, Signal::INT, 130);
    check(&["--devices", "cpu:2"], 2, Signal::TERM, 143);
}

#[test]
fn a_killed_launcher_takes_its_ranks_along() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let running = endless(&data, &folder.path().join("run"), &["--devices", "cpu:2"]);
    let ranks = running.children();
    running.signal(Signal::KILL);
    running.finish();
    // The process that adopts orphans reaps them at some later time; it only matters that they do not run.
    let runs = |pid: i32| {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        state.and_then(|stat| stat.rsplit(") ").next().map(|rest| !rest.starts_with(['Z', 'X']))).unwrap_or(false)
    };
    until("the end of the ranks", || ranks.iter().all(|pid| !runs(*pid)).then_some(()));
}

#[test]
fn a_run_killed_in_mid_epoch_resumes_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 40);
    let check = |name: &str, others: &[&str], victim: usize| {
        let fixed = ["--epochs", "3", "--save-every", "1", "--momentum", "0.8"];
        let others = [&fixed, others].concat();
        let whole = folder.path().join(format!("{name}-whole"));
        let stopped = folder.path().join(format!("{name}-stopped"));
        let never_stopped = enmasse(&arguments(&data, &whole, &others)).well();

        let mut running = Running::start(program().args(arguments(&data, &stopped, &others)));
        running.line();
        // The second epoch has begun, and is not done.
        let last = stopped.join("checkpoints/last.safetensors");
        let position = until("the middle of the second epoch", || {
            let meta = Checkpoint::load(&last).unwrap_or_else(|error| panic!("{error}")).meta;
            (meta.epoch > 0 && meta.samples_consumed > 0).then_some((meta.epoch, meta.samples_consumed))
        });
        let ranks = running.children();
        send(ranks.get(victim).copied().unwrap_or(running.pid()), Signal::KILL);
        let ended = ends_soon(running, &ranks);
        assert_ne!(ended.code, Some(0), "{name}: it ended before it was killed, at {position:?}");
        assert_whole(&stopped);

        let resumed = enmasse(&arguments(&data, &stopped, &[&others[..], &["--resume"]].concat())).well();
        assert!(resumed.stderr.contains("resume:   epoch"), "{}", resumed.stderr);
        assert_same(&whole, &stopped);
        assert_eq!(figures(&never_stopped).len(), 3);
    };
    check("alone", &["--devices", "cpu:1"], 9);
    check("processes", &["--devices", "cpu:2"], 1);
    check("sync", &["--devices", "cpu:2", "--model", "lenet", "--size", "28", "--sync-bn"], 0);
}

#[test]
fn resume_starts_fresh_without_a_run_and_continues_an_existing_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    // The same command serves both. When the run is complete, it prints the results.
    let go =
        |epochs: &str| enmasse(&arguments(&data, &run, &["--devices", "cpu:1", "--resume", "--epochs", epochs])).well();
    assert_eq!(figures(&go("1")).len(), 1);
    assert_eq!(figures(&go("3")).len(), 2);
    assert_eq!(figures(&go("3")).len(), 0);
    assert_eq!(metrics(&run).len(), 3);
}

/// Ranks started by hand: a place in the environment, and nothing else.
fn by_hand_command(rank: usize, world_size: usize, port: u16, arguments: &[String]) -> Command {
    let mut command = program();
    command.args(arguments).env("RANK", rank.to_string()).env("WORLD_SIZE", world_size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command
}

/// A program that runs a command, with the command's variables.
fn through(program: &str, options: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(program);
    plain_environment(&mut outer);
    outer.args(options).arg(command.get_program()).args(command.get_args());
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer
}

fn by_hand(rank: usize, world_size: usize, port: u16, arguments: &[String]) -> Running {
    Running::start(&mut by_hand_command(rank, world_size, port, arguments))
}

#[test]
fn ranks_that_were_launched_by_hand_or_by_launch() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let own = folder.path().join("own");
    let expected = figures(&enmasse(&arguments(&data, &own, &["--epochs", "2", "--devices", "cpu:2"])).well());

    let run = folder.path().join("by hand");
    let free = test_support::free_port();
    let words = arguments(&data, &run, &["--epochs", "2"]);
    let ranks = [0, 1].map(|rank| by_hand(rank, 2, free, &words));
    let [first, second] = ranks.map(|rank| rank.finish().well());
    assert_eq!((figures(&first), second.stdout.as_str(), second.stderr.as_str()), (expected.clone(), "", ""));
    let left: Vec<PathBuf> = crate::common::files(&run).into_iter().filter(|path| path.ends_with(".token")).collect();
    assert!(left.is_empty(), "{left:?}");

    let run = folder.path().join("launched");
    let mut launch = Command::new(env!("CARGO_BIN_EXE_enmasse"));
    plain_environment(&mut launch);
    let launched =
        finish(launch.args(["launch", "--nproc_per_node", "2", "--", env!("CARGO_BIN_EXE_enmasse")]).args(arguments(
            &data,
            &run,
            &["--epochs", "2", "--devices", "cpu:1"],
        )));
    assert_eq!(figures(&launched.well()), expected);

    // A rank is one device.
    let ended = by_hand(0, 1, free, &arguments(&data, &folder.path().join("many"), &["--devices", "cpu:2"])).finish();
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("--devices cpu:2") && ended.stderr.contains("rank 0 of 1"), "{}", ended.stderr);
    let mut half = program();
    let ended = finish(half.args(&words).env("RANK", "0"));
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("WORLD_SIZE is not set"), "{}", ended.stderr);
}

/// Each rank warns of the strangers at its own port. Rank 0 listens until all ranks have come.
#[test]
fn refused_strangers_were_not_in_the_log_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let words = arguments(&images(folder.path(), 10), &folder.path().join("run"), &["--max-steps", "1"]);
    let port = test_support::free_port();
    let address = format!("127.0.0.1:{port}");
    let first = by_hand(0, 2, port, &words);
    refused_stranger(&address);
    let second = by_hand(1, 2, port, &words);
    let warnings = [first, second].map(|rank| {
        let ended = rank.finish().well();
        ended.stderr.lines().filter(|line| line.contains("refused at")).map(str::to_owned).collect::<Vec<_>>()
    });
    let expected = format!("warning: refused at {address}: 1 connection from 127.0.0.1, of another program");
    assert_eq!(warnings, [vec![expected], vec![]]);
}

/// Wherever the limit strikes, the rank says so at once, and the other rank learns it. Rank 0 was silent for a minute, and
/// rank 1 was blamed.
#[test]
fn a_rank_that_can_start_no_thread_was_silent() {
    if !rustix::process::geteuid().is_root() {
        return test_support::skip(Need::Limits, "takes root");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let words = arguments(&images(folder.path(), 10), &folder.path().join("run"), &["--max-steps", "1"]);
    let limits = (1..).map_while(|limit| {
        let port = test_support::free_port();
        let with_token = |mut command: Command| {
            command.env("ENMASSE_TOKEN", "a secret that both users know");
            Running::start(&mut command)
        };
        let mut limited = by_hand_command(0, 2, port, &words);
        limited.env("HOME", folder.path());
        // The other user has no processes, so the limit is this rank's.
        let user = ["--reuid=65533", "--clear-groups", "prlimit", &format!("--nproc={limit}")];
        let second = with_token(by_hand_command(1, 2, port, &words));
        let first = with_token(through("setpriv", &user, &limited)).finish();
        let says = |ended: &Ended| {
            let threads =
                ended.stderr.contains("cannot start a thread") || ended.stderr.contains("cannot handle signals");
            threads.then(|| assert_eq!(ended.code, Some(1), "limit {limit}: {ended:?}"))
        };
        says(&first)?;
        // Otherwise rank 0 ended before it listened.
        if first.stderr.contains("while it was formed") {
            let second = second.finish();
            assert!(says(&second).is_some(), "limit {limit}: {second:?}");
        }
        Some(limit)
    });
    assert!(limits.count() > 3);
}

#[test]
fn ranks_that_disagree_say_so_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let fewer = images(&other, 9);
    let check = |differing: Vec<String>, mentions: &[&str]| {
        let free = test_support::free_port();
        let same = arguments(&data, &run, &["--epochs", "1"]);
        let ranks = [by_hand(0, 2, free, &same), by_hand(1, 2, free, &differing)];
        for ended in ranks.map(Running::finish) {
            assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
            assert!(ended.stderr.lines().count() == 1, "{}", ended.stderr);
            for mention in [&["rank 0", "rank 1"], mentions].concat() {
                assert!(ended.stderr.contains(mention), "{mention}: {}", ended.stderr);
            }
        }
    };
    check(arguments(&data, &run, &["--epochs", "1", "--seed", "7"]), &["configuration", "seed = 0", "seed = 7"]);
    check(
        arguments(&data, &run, &["--epochs", "1", "--model", "lenet", "--size", "28"]),
        &["configuration", "size = 28"],
    );
    // With the same command, other images under the same path would be reported in the same way.
    check(arguments(&fewer, &run, &["--epochs", "1"]), &["configuration", "data"]);
}

#[test]
fn ranks_compute_at_one_level() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let levels: Vec<&str> = Isa::ALL.into_iter().filter(|isa| isa.available()).map(Isa::name).collect();
    let run = |name: &str, levels: [&str; 2]| {
        let free = test_support::free_port();
        let words = arguments(&data, &folder.path().join(name), &["--epochs", "1"]);
        let start = |rank: usize| {
            let mut command = by_hand_command(rank, 2, free, &words);
            Running::start(command.env("ENMASSE_ISA", levels[rank]))
        };
        [start(0), start(1)].map(Running::finish)
    };
    for pair in levels.windows(2) {
        for [own, other] in [[pair[0], pair[1]], [pair[1], pair[0]]] {
            let common = pair[0];
            let told = format!("rank 0 computes at {own} and rank 1 at {other}: start all ranks with --isa {common}");
            for ended in run("differing", [own, other]) {
                assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
                assert!(ended.stderr.trim_end().ends_with(&told), "{}", ended.stderr);
                assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
            }
        }
    }
    for level in levels {
        let [first, second] = run(level, [level, level]).map(Ended::well);
        assert_eq!((figures(&first).len(), second.stdout.as_str()), (1, ""), "{level}");
    }
    let ended = enmasse(&arguments(&data, &folder.path().join("none"), &["--isa", "sse"]));
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{ended:?}");
    assert!(ended.stderr.contains("--isa sse: must be portable or avx2"), "{}", ended.stderr);
}

#[test]
fn a_restarted_rank_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let words = arguments(&data, &run, &["--epochs", "2"]);
    let place = |restarts: &str| {
        let mut command = program();
        command.args(&words).env("RANK", "0").env("WORLD_SIZE", "1").env("TORCHELASTIC_RESTART_COUNT", restarts);
        finish(&mut command)
    };
    assert_eq!(figures(&place("0").well()).len(), 2);
    // A user who starts it again must confirm with --resume; a launcher need not.
    assert!(place("0").stderr.contains("--resume"));
    assert_eq!(figures(&place("1").well()).len(), 0);
}

#[test]
fn launched_ranks_agree_on_a_folder_and_evaluate() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10).display().to_string();
    let launch = |arguments: &[&str]| {
        let fixed = ["launch", "-n", "2", "--", env!("CARGO_BIN_EXE_enmasse")];
        finish(program().args(fixed).args(arguments).current_dir(folder.path())).well()
    };
    let train = ["train", &data, "--model", "mlp", "--size", "8", "--batch", "2", "--epochs", "1", "--json"];
    let lines = launch(&train).json();
    let run = lines[1]["run"].as_str().unwrap();
    assert_eq!((lines.len(), &lines[0]["world_size"]), (2, &2.into()));
    assert_eq!(fs::read_dir(folder.path().join("runs")).unwrap().count(), 1);
    let found = launch(&["eval", run, "--split", "val", "--batch", "2", "--json"]).json();
    assert_eq!((found.len(), &found[0]["accuracy"]), (1, &lines[0]["val_accuracy"]));
}

#[test]
fn launch_runs_any_program() {
    let check = |script: &str, code: i32, stdout: &str, mentions: &[&str]| {
        let ended = enmasse(&["launch", "-n", "2", "--", "sh", "-c", script]);
        let mut lines: Vec<&str> = ended.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!((ended.code, lines.join(" ").as_str()), (Some(code), stdout), "{script}: {ended:?}");
        assert!(mentions.iter().all(|mention| ended.stderr.contains(mention)), "{script}: {}", ended.stderr);
    };
    check("echo $RANK/$WORLD_SIZE", 0, "0/2 1/2", &[]);
    check("test $RANK = 0 || exit 5", 5, "", &["error: rank 1", "exited with code 5"]);
    check("test $RANK = 0 || kill -9 $$; exec tail -f /dev/null", 137, "", &["rank 1", "signal 9"]);
    let ended = enmasse(&["launch", "-n", "2", "--", "/nowhere/program"]);
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(1), 1), "{ended:?}");
    assert!(ended.stderr.contains("/nowhere/program"), "{}", ended.stderr);
    assert_eq!(enmasse(&["launch", "-n", "0", "--", "true"]).code, Some(2));
}
