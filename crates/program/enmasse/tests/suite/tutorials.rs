//! The commands and mistakes of readers of PyTorch's tutorials, with the real program: spellings, traps, and messages.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Ended, Running, assert_whole, enmasse, files, finish, images, metrics, program};
use enmasse_tensor::RandomStream;

/// The arguments of a short run on `data` into `run`, as one text.
fn command(data: &Path, run: &Path, others: &str) -> Command {
    let mut command = program();
    command.args(["train", "--data-path"]).arg(data).arg("--out").arg(run);
    command.args(["--model", "mlp", "--size", "8", "--batch-size", "2", "--threads", "1", "--epochs", "1"]);
    command.args(others.split_whitespace());
    command
}

fn train(data: &Path, run: &Path, others: &str) -> Ended {
    finish(&mut command(data, run, others))
}

/// The effective value of a setting, as the run folder keeps it.
#[track_caller]
fn setting(run: &Path, name: &str) -> String {
    let text = fs::read_to_string(run.join("config.toml")).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
    value.unwrap_or_else(|| panic!("{name} is not in {text}")).to_owned()
}

/// It was refused with this code and one line that contains all of these, before anything was written.
#[track_caller]
fn refused(ended: &Ended, run: &Path, code: i32, mentions: &[&str]) {
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{ended:?}");
    for mention in mentions {
        assert!(ended.stderr.contains(mention), "{mention:?} is not in {:?}", ended.stderr);
    }
    assert!(!run.exists(), "a run was begun");
}

#[test]
fn false_means_false() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let mut number = 0;
    let mut check = |flags: &str, sync_bn: &str| {
        number += 1;
        let run = folder.path().join(number.to_string());
        train(&data, &run, &format!("--devices cpu:1 {flags}")).well();
        assert_eq!((setting(&run, "sync_bn").as_str(), setting(&run, "freeze_layers").as_str()), (sync_bn, "false"));
    };
    check("--syncBN False --freeze-layers False", "false");
    check("--syncBN=False --freeze_layers=0", "false");
    check("--syncBN True --freeze-layers false", "true");
    check("--sync_bn --num_classes 3 --device cpu --dist-url env://", "true");
}

#[test]
fn a_mistyped_weights_path_never_trains_from_scratch() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let run = folder.path().join("run");
    let weights = folder.path().join("resNet43.pth").display().to_string();
    for ranks in ["cpu:1", "cpu:2", "cpu:2 --ranks thread"] {
        let ended = train(&data, &run, &format!("--weights {weights} --devices {ranks}"));
        refused(&ended, &run, 2, &["error: ", &weights, "there is no such file"]);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    // A folder holds no weights either.
    let ended = train(&data, &run, &format!("--weights {} --devices cpu:1", data.display()));
    refused(&ended, &run, 1, &["--weights", "is not a file"]);

    let inner = command(&data, &run, &format!("--weights {weights}"));
    let mut launch = program();
    launch.args(["launch", "-n", "2", "--"]).arg(inner.get_program()).args(inner.get_args());
    let ended = finish(&mut launch);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
    assert!(ended.stderr.contains(&weights), "{}", ended.stderr);
    assert!(!run.join("config.toml").exists(), "a run was begun");
}

#[test]
fn a_device_by_its_number_is_one_of_the_gpus() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let run = folder.path().join("run");
    for device in ["0", "0,1"] {
        let ended = train(&data, &run, &format!("--device {device} --devices cpu:1"));
        refused(&ended, &run, 2, &["error: ", &format!("--device {device}"), "--devices cpu:1 says otherwise"]);
    }
}

#[test]
fn contradicting_the_launcher_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let run = folder.path().join("run");
    let check = |flags: &str, mentions: &[&str]| {
        let mut command = command(&data, &run, flags);
        command.env("RANK", "1").env("WORLD_SIZE", "2").env("LOCAL_RANK", "1").env("LOCAL_WORLD_SIZE", "2");
        let ended = finish(command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "29500"));
        refused(&ended, &run, 2, mentions);
    };
    check("--world-size 4", &["--world-size 4", "WORLD_SIZE=2"]);
    check("--local_rank 0", &["--local-rank 0", "LOCAL_RANK=1"]);
    check("--dist-url tcp://127.0.0.1:29501", &["--dist-url", "MASTER_PORT=29500"]);
    check("--devices cpu:2", &["--devices cpu:2", "rank 1 of 2"]);
    // Flags that only a launcher could fill, without a launcher.
    refused(&train(&data, &run, "--local_rank 0"), &run, 2, &["--local-rank 0", "RANK"]);
    refused(&train(&data, &run, "--dist-url tcp://127.0.0.1:1"), &run, 2, &["--dist-url", "RANK and WORLD_SIZE"]);
}

/// Ranks that get everything from flags, in a contradicting environment.
#[test]
fn an_address_a_rank_and_a_world_size_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let local = folder.path().join("local");
    train(&data, &local, "--devices cpu:2").well();
    for spelling in ["--init-method", "--dist-url"] {
        let run = folder.path().join(spelling);
        let port = test_support::free_port();
        let start = |rank: usize| {
            let flags = format!("{spelling} tcp://127.0.0.1:{port} --rank {rank} --world-size 2");
            let mut command = command(&data, &run, &flags);
            Running::start(command.env("RANK", "7").env("WORLD_SIZE", "8").env("SLURM_NTASKS", "16"))
        };
        for rank in [0, 1].map(start) {
            rank.finish().well();
        }
        let loss = |run: &Path| metrics(run)[0]["train_loss"].to_string();
        assert_eq!(loss(&run), loss(&local), "{spelling}");
    }
}

/// Each rank works in its own folder, which shows what it writes.
#[test]
fn one_writer_of_class_indices() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let port = test_support::free_port();
    let start = |rank: usize| {
        let own = folder.path().join(rank.to_string());
        fs::create_dir(&own).unwrap();
        let mut command =
            command(&data, Path::new("run"), &format!("--dist-url tcp://127.0.0.1:{port} --world-size 3"));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3").env("ENMASSE_TOKEN", "0123456789abcdef");
        Running::start(command.current_dir(own))
    };
    for rank in [0, 1, 2].map(start) {
        rank.finish().well();
    }
    let written = |rank: usize| {
        let own = folder.path().join(rank.to_string());
        let names = files(&own).into_iter().map(|path| path.strip_prefix(&own).unwrap().display().to_string());
        names.collect::<Vec<_>>()
    };
    for rank in [1, 2] {
        assert_eq!(written(rank), [format!("run/logs/rank-{rank}.log")]);
    }
    for file in ["class_indices.json", "config.toml", "split.json", "checkpoints/best.safetensors", "logs/rank-0.log"] {
        assert!(written(0).contains(&format!("run/{file}")), "{file}: {:?}", written(0));
    }
    assert_whole(&folder.path().join("0/run"));
}

/// At a rate of 0 nothing changes, so the epoch that logs 0 must be the one that used it.
#[test]
fn the_logged_rate_is_the_one_used() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let schedule = "--epochs 3 --devices cpu:1 --momentum 0 --lr 0.015 --schedule step --step-size 1 --gamma 0";
    let ended = train(&data, &run, schedule).well();
    let records = metrics(&run);
    let rates: Vec<f64> = records.iter().map(|epoch| epoch["learning_rate"].as_f64().unwrap()).collect();
    assert_eq!(rates, [0.015, 0.0, 0.0]);
    let losses: Vec<f64> = records.iter().map(|epoch| epoch["val_loss"].as_f64().unwrap()).collect();
    assert!(losses[1] == losses[0] && losses[2] == losses[0], "{losses:?}");
    let lines: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("epoch ")).collect();
    let told = |line: &str, rate: &str| line.contains(&format!("  lr {rate}  "));
    assert!(told(lines[0], "0.015") && told(lines[1], "0"), "{lines:?}");

    // The epoch that logs the rate did learn.
    let run = folder.path().join("other");
    train(&data, &run, "--epochs 1 --devices cpu:1 --momentum 0 --lr 0.00000001").well();
    assert_ne!(metrics(&run)[0]["val_loss"].as_f64().unwrap(), losses[0]);
}

/// At a rate that changes nothing, the mean over an epoch is the same for any batch size; a single batch's mean is not.
#[test]
fn the_last_batchs_loss_is_not_the_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let loss = |batch: usize| {
        let run = folder.path().join(batch.to_string());
        train(&data, &run, &format!("--devices cpu:1 --momentum 0 --lr 1e-30 --batch {batch}")).well();
        metrics(&run)[0]["train_loss"].as_f64().unwrap()
    };
    // 24 images train, and no batch is incomplete.
    let whole = loss(24);
    for batch in [1, 3, 8] {
        let found = loss(batch);
        assert!((found - whole).abs() < 1e-5 * whole, "batch {batch}: {found}, all at once: {whole}");
    }
}

/// The tutorial's ranks pass their initial weights through a file with a fixed name in the folder for temporary files.
#[test]
fn two_jobs_at_once_do_not_collide() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let job = |name: &str, seed: usize| {
        let others = format!("--epochs 2 --devices cpu:2 --check-ranks --json --seed {seed}");
        let mut command = command(&data, &folder.path().join(format!("{name}{seed}")), &others);
        Running::start(command.env("TMPDIR", &temporary).current_dir(folder.path()))
    };
    let losses = |ended: Ended| {
        let lines = ended.well().json();
        lines.iter().map(|line| line["train_loss"].to_string()).collect::<Vec<_>>()
    };
    let alone: Vec<_> = [1, 2].into_iter().map(|seed| losses(job("alone", seed).finish())).collect();
    let together: Vec<_> = [1, 2].map(|seed| job("together", seed)).map(|running| losses(running.finish())).into();
    assert_eq!(together, alone);
    assert_ne!(alone[0], alone[1]);
    assert_eq!(files(&temporary), Vec::<std::path::PathBuf>::new());
}

#[test]
fn output_before_the_first_epoch_and_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let check = |others: &str, ranks: &[&str], facts: &[&str]| {
        let run = folder.path().join(others.replace([' ', ':'], "-"));
        let ended = train(&data, &run, &format!("--epochs 2 {others}")).well();
        let lines: Vec<&str> = ended.stderr.lines().collect();
        for (line, rank) in lines.iter().zip(ranks) {
            assert!(line.starts_with(rank) && line.contains(", cpu ("), "{rank}: {line}");
        }
        for fact in facts {
            assert_eq!(lines.iter().filter(|line| line.contains(fact)).count(), 1, "{fact}: {}", ended.stderr);
        }
        let settings = lines.iter().find(|line| line.starts_with("settings: ")).unwrap();
        assert!(
            settings.contains(" batch=2 ") && settings.contains(&format!("{}/config.toml", run.display())),
            "{settings}"
        );
        assert!(!settings.contains(" lr="), "a default: {settings}");
        let board = format!("tensorboard --logdir={}", run.display());
        assert!(ended.stderr.contains(&board), "{}", ended.stderr);
        // Standard output has only the epochs and the end.
        let lines: Vec<&str> = ended.stdout.lines().collect();
        let [first, second, .., last] = lines.as_slice() else { panic!("{lines:?}") };
        for (epoch, line) in [(1, first), (2, second)] {
            let parts = [&format!("epoch {epoch}/2  loss "), "  val ", "  acc ", "  lr 0."];
            assert!(parts.iter().all(|part| line.contains(*part)), "{line}");
        }
        assert!(last.starts_with("done in ") && last.contains(" s: "), "{last}");
    };
    let data = "30 images found in 3 classes: 24 for training, 6 for validation";
    let common = [data, "1 thread in every process"];
    let alone = [&common[..], &["batch:    2 per rank, 2 in all"]].concat();
    check("--devices cpu:1 --loader-threads 1", &["not distributed: "], &alone);
    let two = [&common[..], &["batch:    2 per rank, 4 in all"]].concat();
    check("--world-size 2 --loader-threads 1", &["rank 0 of 2, ", "rank 1 of 2, "], &two);
}

#[test]
fn every_rank_has_its_log_and_prints_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    for kind in ["process", "thread"] {
        for speaks in [false, true] {
            let run = folder.path().join(format!("{kind}-{speaks}"));
            let others = format!("--epochs 2 --devices cpu:2 --ranks {kind} --log-ranks={speaks}");
            let ended = train(&data, &run, &others).well();
            let marked: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("[rank 1] ")).collect();
            assert_eq!(marked.iter().any(|line| line.contains("epoch 2/2  ")), speaks, "{kind}: {}", ended.stderr);
            assert_eq!(marked.is_empty(), !speaks, "{kind}: {}", ended.stderr);
            assert!(!ended.stdout.contains("[rank"), "{}", ended.stdout);
            for rank in 0..2 {
                let log = fs::read_to_string(run.join(format!("logs/rank-{rank}.log"))).unwrap();
                for part in
                    [&format!(" rank {rank} of 2, "), " settings: ", " epoch 1/2  ", " epoch 2/2  ", " done in "]
                {
                    assert_eq!(log.matches(part).count(), 1, "{part}: {log}");
                }
            }
        }
    }
    // A rank that fails writes the reason to its own log too.
    let run = folder.path().join("failed");
    let ended = train(&data, &run, "--devices cpu:1 --lr 1e30");
    assert_eq!(ended.code, Some(1));
    let log = fs::read_to_string(run.join("logs/rank-0.log")).unwrap();
    assert!(log.lines().last().unwrap().contains("error: non-finite loss"), "{log}");
}

#[test]
fn the_home_folder_is_found_where_no_shell_expands_it() {
    let home = tempfile::tempdir().unwrap();
    images(home.path(), 5);
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(home.path().join("x.toml"), "data = \"~/images\"\n").unwrap();
    let check = |number: usize, arguments: &[&str]| {
        let mut command = program();
        command.args(["train", "--model", "mlp", "--size", "8", "--batch", "2", "--epochs", "1", "--devices", "cpu:1"]);
        command.env("HOME", home.path()).env("ENMASSE_OUT", format!("~/run{number}"));
        finish(command.args(arguments).current_dir(elsewhere.path())).well();
        assert_whole(&home.path().join(format!("run{number}")));
        assert!(home.path().join(format!("run{number}/metrics.jsonl")).exists());
    };
    check(1, &["~/images"]);
    check(2, &["--data-path=~/images"]);
    check(3, &["--config=~/x.toml"]);
    let mut eval = program();
    eval.args(["eval", "~/run1", "~/images", "--split", "all", "--devices", "cpu:1", "--json"]);
    let found = finish(eval.env("HOME", home.path()).current_dir(elsewhere.path())).well();
    assert_eq!(found.json()[0]["samples"], 15);
    assert_eq!(files(elsewhere.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn launched_ranks_meet_at_an_address_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let port = test_support::free_port();
    let run = folder.path().join("run");
    let rank = |rank: usize| {
        // As older launchers pass it, besides the variables.
        let flags = format!("--dist-url tcp://127.0.0.1:{port} --world-size 2 --local_rank={rank} --json");
        let mut command = command(&data, &run, &flags);
        Running::start(command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2"))
    };
    let [first, second] = [0, 1].map(rank).map(|rank| rank.finish().well());
    assert_eq!((&first.json()[0]["world_size"], second.stdout.as_str(), second.stderr.as_str()), (&2.into(), "", ""));
    let without = enmasse(&["train", "--dist-url", "file:///tmp/x"]);
    assert_eq!(without.code, Some(2), "{without:?}");
}

/// An equal number of elements is not a match: name and shape decide, and the result is reported.
#[test]
fn a_run_starts_from_the_given_weights() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let first = folder.path().join("first");
    train(&data, &first, "--devices cpu:1 --lr 0.01 --export-every 1").well();
    let best = metrics(&first)[0]["val_loss"].as_f64().unwrap();
    let weights = folder.path().join("weights.pth");
    fs::copy(first.join("weights/model-0.pth"), &weights).unwrap();

    for ranks in [1, 2] {
        let run = folder.path().join(format!("second-{ranks}"));
        let others = format!("--weights {} --momentum 0 --lr 1e-30 --devices cpu:{ranks}", weights.display());
        let ended = train(&data, &run, &others).well();
        let found = metrics(&run)[0]["val_loss"].as_f64().unwrap();
        assert!((found - best).abs() < 1e-5 * best, "{ranks} ranks: {found}, not {best}");
        assert!(ended.stderr.contains("weights:  loaded 6 of 6 tensors from "), "{}", ended.stderr);
    }

    // When frozen, everything but the classifier keeps its bits.
    let run = folder.path().join("frozen");
    let others =
        format!("--weights {} --freeze-layers True --devices cpu:1 --lr 0.01 --export-every 1", weights.display());
    train(&data, &run, &others).well();
    let read = |path: &Path| enmasse_weights::read(path).unwrap().tensors;
    let before = read(&weights);
    let after = read(&run.join("weights/model-0.pth"));
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after);
    let changed: Vec<&str> = changed.map(|(tensor, _)| tensor.name.as_str()).collect();
    assert_eq!(changed, ["fc3.weight", "fc3.bias"]);

    // Another number of classes leaves the classifier at its initial values.
    fs::remove_dir_all(data.join("red")).unwrap();
    let ended = train(&data, &folder.path().join("two"), &format!("--weights {} --devices cpu:2", weights.display()));
    for report in ["weights:  loaded 4 of 6 tensors", "weights:  fc3 begins anew: 3 classes in the file, 2 here"] {
        assert!(ended.stderr.contains(report), "{report}: {}", ended.stderr);
    }
    ended.well();
    // A resumed run no longer needs them.
    fs::remove_file(&weights).unwrap();
    let mut resume = program();
    finish(resume.args(["train", "--resume", "--epochs", "2", "--out"]).arg(folder.path().join("two"))).well();
}

/// Seven-segment digits at random places and brightnesses, 28 x 28, as the idx files of MNIST.
fn digits(folder: &Path) {
    const SEGMENTS: [u8; 10] = [0x77, 0x24, 0x5d, 0x6d, 0x2e, 0x6b, 0x7b, 0x25, 0x7f, 0x6f];
    // Column, row, width and height of the segments, from the top to the bottom.
    const BARS: [[usize; 4]; 7] =
        [[0, 0, 8, 2], [0, 0, 2, 8], [6, 0, 2, 8], [0, 7, 8, 2], [0, 8, 2, 8], [6, 8, 2, 8], [0, 14, 8, 2]];
    fs::create_dir_all(folder).unwrap();
    for (part, count, seed) in [("train", 800, 1), ("t10k", 150, 2)] {
        let mut random = RandomStream::new(seed, "digits", 0, 0);
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        for index in 0..count {
            let mut image = [0u8; 28 * 28];
            let left = 2 + random.below(16) as usize;
            let top = 1 + random.below(10) as usize;
            let ink = 150 + random.below(100) as u8;
            // The order of classes must carry no information.
            let digit = index * 7 % 10;
            for [x, y, width, height] in (0..7).filter(|bar| SEGMENTS[digit] >> bar & 1 == 1).map(|bar| BARS[bar]) {
                for row in top + y..top + y + height {
                    image[row * 28 + left + x..][..width].fill(ink);
                }
            }
            images.extend(image);
            labels.push(digit as u8);
        }
        let file = |name: &str, magic: u32, dimensions: &[u32], bytes: &[u8]| {
            let head = [magic].iter().chain(dimensions).flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>();
            fs::write(folder.join(format!("{part}-{name}-ubyte")), [&head, bytes].concat()).unwrap();
        };
        file("images-idx3", 0x803, &[count as u32, 28, 28], &images);
        file("labels-idx1", 0x801, &[count as u32], &labels);
    }
}

#[test]
fn mnist_is_recognised_by_its_files_and_read_as_one_channel() {
    let folder = tempfile::tempdir().unwrap();
    let (data, run) = (folder.path().join("data"), folder.path().join("run"));
    digits(&data.join("MNIST/raw"));
    let arguments = |others: &str| {
        let mut command = program();
        command.args(["train", "--data-path"]).arg(&data).arg("--out").arg(&run);
        command.args("--model lenet --devices cpu:2 --threads 1 --batch 16 --lr 0.05".split(' '));
        command.args(others.split(' '));
        command
    };
    let ended = finish(&mut arguments("--epochs 8 --export-every 8")).well();
    for said in ["MNIST, 950 images found in 10 classes", "28 x 28 pixels, mean 0.1307, std 0.3081"] {
        assert!(ended.stderr.contains(said), "{said:?} is not in {}", ended.stderr);
    }
    let accuracy = metrics(&run).last().unwrap()["val_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.9, "{accuracy}");
    let shape = |name: &str| {
        let weights = enmasse_weights::read(&run.join("weights/model-7.pth")).unwrap();
        weights.tensors.into_iter().find(|tensor| tensor.name == name).unwrap().shape
    };
    assert_eq!((shape("conv1.weight"), shape("fc1.weight")), (vec![6, 1, 5, 5], vec![120, 256]));

    // Bare weights do not say how images are prepared; the data set decides.
    let bare =
        finish(program().args(["eval", "--model", "lenet", "--json"]).arg(run.join("weights/model-7.pth")).arg(&data));
    assert_eq!(bare.well().json()[0]["accuracy"], accuracy);

    // The same without a split in the files: what a resumed run and an evaluation use.
    finish(&mut arguments("--epochs 9 --resume")).well();
    let evaluated = finish(program().args(["eval", "--split", "val", "--json"]).arg(&run).arg(&data)).well();
    assert_eq!(evaluated.json()[0]["samples"], 150);
}
