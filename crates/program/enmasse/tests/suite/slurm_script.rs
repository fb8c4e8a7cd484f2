//! `enmasse slurm` as users run it: with stand-ins for Slurm's commands, and on a real cluster of made-up hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::cluster::Cluster;
use crate::common::{Ended, assert_whole, finish, images, metrics, program, until};
use serde_json::{Value, json};

/// A working folder whose `bin` comes first in the search path.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a shell script in place of one of Slurm's commands.
    fn stand_in(&self, name: &str, body: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs `enmasse slurm ...` here.
    #[track_caller]
    fn slurm(&self, arguments: &[&str]) -> Ended {
        let search = format!("{}:/usr/bin:/bin", self.path("bin").display());
        finish(program().arg("slurm").args(arguments).current_dir(self.folder.path()).env("PATH", search))
    }
}

/// As printed in a tutorial on several machines.
const TUTORIAL: &str = "#!/bin/bash
#SBATCH --job-name=MultiGPU
#SBATCH --partition=gpu
#SBATCH -n 32
#SBATCH --nodes=8 
#SBATCH --ntasks-per-node=4
#SBATCH --output= your_path.out
#SBATCH --error= your_path.err
#SBATCH --gres=gpu:4

python ...
";

#[test]
fn check_reports_each_mistake_with_its_line_and_its_remedy() {
    let place = Place::new();
    place.write("job.sh", TUTORIAL);
    let ended = place.slurm(&["check", "job.sh"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), ""), "{ended:?}");
    let expected = "\
job.sh:6: no --cpus-per-task: all threads of a task share one core, including those that load data
    mend: #SBATCH --cpus-per-task=8, or the cores of a node divided by its tasks
job.sh:7: there is a blank beside the = of --output; sbatch refuses the script
    mend: #SBATCH --output=your_path.out
job.sh:8: there is a blank beside the = of --error; sbatch refuses the script
    mend: #SBATCH --error=your_path.err
job.sh:11: no srun: one process starts although 32 tasks are requested
    mend: srun python ...
job.sh: 4 findings
";
    assert_eq!(ended.stdout, expected);
    let ended = place.slurm(&["check", "job.sh", "--json"]);
    let lines: Vec<_> = ended.json().iter().map(|record| record["line"].clone()).collect();
    assert_eq!((ended.code, lines), (Some(1), vec![json!(6), json!(7), json!(8), json!(11), Value::Null]));

    let written = place.slurm(&["script", "--nodes", "2", "-c", "2", "--to", "own.sh", "--", "data"]).well();
    assert_eq!(written.stdout, "submit with: sbatch own.sh\n");
    assert_eq!(place.slurm(&["check", "own.sh"]).well().stdout, "own.sh: nothing found\n");
    let again = place.slurm(&["script", "--to", "own.sh"]);
    assert_eq!(
        (again.code, again.stderr.as_str()),
        (Some(1), "error: cannot write own.sh: File exists (os error 17)\n")
    );

    fs::write(place.path("long.sh"), vec![b'#'; (1 << 20) + 1]).unwrap();
    for (file, says) in
        [("none.sh", "cannot be read"), ("long.sh", "longer than 1048576 bytes"), ("bin", "cannot be read")]
    {
        let ended = place.slurm(&["check", file]);
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(1), 1), "{ended:?}");
        assert!(ended.stderr.starts_with(&format!("error: {file}: ")) && ended.stderr.contains(says), "{ended:?}");
    }
}

#[test]
fn submit_hands_over_the_script_and_says_the_job() {
    let place = Place::new();
    place.stand_in("sbatch", "echo \"$@\" > arguments; cat > script; echo '42;alpha'");
    let options = ["--array", "lr=0.1,0.01", "--output", "logs/%A_%a.txt", "--", "--model", "mlp"];
    let script = place.slurm(&[&["script"], &options[..]].concat()).well().stdout;
    let dry = place.slurm(&[&["submit", "--dry-run"], &options[..]].concat()).well();
    assert_eq!(dry.stdout, format!("# would be passed to: sbatch --parsable\n{script}"));
    assert!(!place.path("arguments").exists() && !place.path("logs").exists());

    let ended = place.slurm(&[&["submit"], &options[..]].concat()).well();
    let expected = "job 42 is submitted\noutput: logs/42_*.txt\nrun:    runs/mlp-42\nstatus: enmasse slurm status 42\n";
    assert_eq!(ended.stdout, expected);
    assert_eq!(fs::read_to_string(place.path("arguments")).unwrap(), "--parsable\n");
    assert_eq!(fs::read_to_string(place.path("script")).unwrap(), script);
    assert!(place.path("logs").is_dir(), "Slurm makes no folders");
    let ended = place.slurm(&["submit", "--json"]).well();
    let expected = json!({
        "event": "submitted", "job": 42, "cluster": "alpha", "elements": 1, "output": "resnet18-42.out", "run": "runs/resnet18-42",
    });
    assert_eq!(ended.json(), [expected]);

    place.write("job.sh", TUTORIAL);
    let ended = place.slurm(&["submit", "job.sh"]).well();
    assert_eq!(ended.stdout, "job 42 is submitted\nstatus: enmasse slurm status 42\n");
    assert!(ended.stderr.starts_with("warning: job.sh:6: no --cpus-per-task"), "{ended:?}");
    assert_eq!(fs::read_to_string(place.path("arguments")).unwrap(), "--parsable job.sh\n");

    let refused = |says: &str| {
        let ended = place.slurm(&["submit"]);
        assert_eq!((ended.code, ended.stderr), (Some(1), format!("error: {says}\n")));
    };
    place.stand_in("sbatch", "echo; echo 'sbatch: error: invalid partition' >&2; exit 1");
    refused("sbatch refuses the script: invalid partition");
    // In this case the script is not at fault.
    place.stand_in(
        "sbatch",
        "echo 'sbatch: error: fetch_config: DNS SRV lookup failed
sbatch: fatal: Could not establish a configuration source' >&2; exit 1",
    );
    refused(
        "sbatch: Could not establish a configuration source: run this on a login node of the cluster, and check that \
         slurmctld is up",
    );
    place.stand_in("sbatch", "echo 'Submitted'");
    refused("sbatch refuses the script: no reason was given");
    fs::remove_file(place.path("bin/sbatch")).unwrap();
    if !Path::new("/usr/bin/sbatch").exists() {
        refused("sbatch: not found; run this on a login node of a Slurm cluster");
    }
}

#[test]
fn status_joins_what_slurm_knows_with_the_run() {
    let place = Place::new();
    let script = place.slurm(&["script", "--array", "lr=0.1,0.01", "--", "--model", "mlp"]).well().stdout;
    place.write("script", &script);
    let folder = place.folder.path().display();
    place.stand_in("squeue", "[ \"$*\" = '--me --noheader --format=%F' ] && printf '7\\n7\\n'");
    place.stand_in(
        "scontrol",
        &format!(
            "case \"$*\" in
                'show job --oneliner 7') printf '%s\\n' \
                    'JobId=7 ArrayJobId=7 ArrayTaskId=1 JobName=a JobState=PENDING Reason=Priority Restarts=0 RunTime=00:00:00 \
                     TimeLimit=00:05:00 NodeList= WorkDir={folder} Power=' \
                    'JobId=8 ArrayJobId=7 ArrayTaskId=0 JobName=a JobState=RUNNING Reason=None Restarts=1 RunTime=00:01:00 \
                     TimeLimit=00:05:00 NodeList=node1 WorkDir={folder} Power=' ;;
                'write batch_script '*) cat script ;;
                *) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1 ;;
            esac"
        ),
    );
    let run = place.path("runs/mlp-7/0-lr=0.1");
    fs::create_dir_all(&run).unwrap();
    let epoch = json!({"event": "epoch", "epoch": 2, "train_loss": 0.25, "val_loss": 0.5, "val_accuracy": 0.75});
    fs::write(run.join("metrics.jsonl"), format!("{epoch}\n{{\"torn")).unwrap();
    let expected = format!(
        "7_0 a: RUNNING on node1, 00:01:00 of 00:05:00, 1 restart so far\n    {folder}/runs/mlp-7/0-lr=0.1: epoch 3: train \
         loss 0.2500, val loss 0.5000, val accuracy 75.00 %\n7_1 a: PENDING (Priority), 00:00:00 of 00:05:00\n    \
         {folder}/runs/mlp-7/1-lr=0.01: has not begun\n"
    );
    assert_eq!(place.slurm(&["status"]).well().stdout, expected);
    let records = place.slurm(&["status", "7_0", "--json"]).well().json();
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!((&record["job"], &record["state"], &record["epoch"]), (&json!("7_0"), &json!("RUNNING"), &epoch));

    let unknown = place.slurm(&["status", "9"]);
    let says = "error: job 9: Slurm does not know it; ended jobs are soon forgotten\n";
    assert_eq!((unknown.code, unknown.stderr.as_str()), (Some(1), says));
    assert_eq!(place.slurm(&["status", "x"]).code, Some(2));
    place.stand_in("squeue", "true");
    assert_eq!(place.slurm(&["status"]).well().stdout, "no jobs\n");
}

/// All of it on a real controller: an array is written, submitted, run, and reported.
#[test]
fn an_array_trains_on_a_real_cluster() {
    let Some(cluster) = Cluster::start(2) else { return };
    let place = Place::new();
    let data = images(place.folder.path(), 8);
    let slurm = |arguments: &[&str]| {
        let command = [&[env!("CARGO_BIN_EXE_enmasse"), "slurm"], arguments].concat();
        finish(cluster.head_command(&command).current_dir(place.folder.path()))
    };
    let data = data.display().to_string();
    let train = ["--", &data, "--model", "mlp", "--size", "8", "--epochs", "2", "--threads", "1"];
    let job = [
        "submit",
        "--json",
        "-J",
        "a sweep",
        "-c",
        "2",
        "-t",
        "10",
        "-o",
        "logs/%A_%a.out",
        "--array",
        "lr=0.1,0.01",
        "batch=2",
    ];
    let submitted = slurm(&[&job[..], &train].concat()).well().json();
    let id = submitted[0]["job"].to_string();
    for element in 0..2 {
        let said = || fs::read_to_string(place.path(&format!("logs/{id}_{element}.out"))).unwrap_or_default();
        let state = cluster.wait_for(&format!("{id}_{element}"), &["COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL"]);
        assert_eq!(state, "COMPLETED", "{}", said());
        assert!(said().contains("done in"), "{}", said());
    }
    let records = slurm(&["status", "--json", &id]).well().json();
    for (element, rate) in ["0.1", "0.01"].into_iter().enumerate() {
        let run = place.path(&format!("runs/a sweep-{id}/{element}-lr={rate}-batch=2"));
        assert_eq!(records[element]["job"], json!(format!("{id}_{element}")));
        assert_eq!(records[element]["run"], json!(run));
        assert_eq!(Some(&records[element]["epoch"]), metrics(&run).last(), "the last epoch of {}", run.display());
        assert_eq!(records[element]["epoch"]["epoch"], json!(1));
    }
    let ended = slurm(&["status", &id]).well();
    assert!(ended.stdout.contains(": epoch 2/2: train loss "), "{}", ended.stdout);
    // The controller and `check` agree about a tutorial's script.
    place.write("job.sh", TUTORIAL);
    let refused = slurm(&["submit", "job.sh"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("sbatch refuses the script: Invalid directive"), "{}", refused.stderr);
}

/// The ranks of two nodes meet in the run folder of the script, without a given secret.
#[test]
fn a_written_script_trains_on_two_nodes() {
    let Some(cluster) = Cluster::start(2) else { return };
    let place = Place::new();
    let data = images(place.folder.path(), 8).display().to_string();
    let slurm = |arguments: &[&str]| {
        let command = [&[env!("CARGO_BIN_EXE_enmasse"), "slurm"], arguments].concat();
        finish(cluster.head_command(&command).current_dir(place.folder.path()))
    };
    let job = ["--nodes", "2", "--ntasks-per-node", "2", "-c", "2", "-t", "10", "-o", "said.txt", "--"];
    let train =
        ["--model", "mlp", "--size", "8", "--epochs", "1", "--batch", "2", "--threads", "1", "--out", "my run", &data];
    slurm(&[&["script", "--to", "job.sh"], &job[..], &train].concat()).well();
    let submitted = slurm(&["submit", "--json", "job.sh"]).well();
    assert!(!submitted.stderr.contains("warning"), "{}", submitted.stderr);
    let id = submitted.json()[0]["job"].to_string();
    let state = cluster.wait_for(&id, &["COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL"]);
    assert_eq!(state, "COMPLETED", "{}", fs::read_to_string(place.path("said.txt")).unwrap_or_default());
    let run = place.path("my run");
    let epochs = metrics(&run);
    assert_eq!((epochs.len(), &epochs[0]["world_size"]), (1, &json!(4)));
    let records = slurm(&["status", &id, "--json"]).well().json();
    assert_eq!((&records[0]["run"], &records[0]["epoch"]), (&json!(run), &epochs[0]));
    assert_whole(&run);
}

/// It asked for 8 cores a GPU, and waited for ever on nodes of 8 cores.
#[test]
fn a_job_for_all_gpus_of_small_nodes_starts() {
    let Some(cluster) = Cluster::start_with_gpus(1, 4) else { return };
    let place = Place::new();
    let slurm = |arguments: &[&str]| {
        let command = [&[env!("CARGO_BIN_EXE_enmasse"), "slurm"], arguments].concat();
        finish(cluster.head_command(&command).current_dir(place.folder.path()))
    };
    let script = slurm(&["script", "--gres", "gpu:4"]).well().stdout;
    assert!(script.contains("#SBATCH --cpus-per-task=2\n"), "{script}");
    let data = images(place.folder.path(), 8).display().to_string();
    let train = ["--", &data, "--model", "mlp", "--size", "8", "--epochs", "1", "--batch", "2"];
    let submit = |cores: &[&str]| {
        let job = [&["submit", "--json", "--gres", "gpu:4", "-o", "said.txt"], cores, &train].concat();
        slurm(&job).well().json()[0]["job"].to_string()
    };
    let job = submit(&[]);
    let state = cluster.wait_for(&job, &["COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL"]);
    assert_eq!(state, "COMPLETED", "{}", fs::read_to_string(place.path("said.txt")).unwrap_or_default());
    let large = submit(&["-c", "8"]);
    let line = until("a reason", || {
        let line = slurm(&["status", &large]).well().stdout;
        (!line.contains("(None)") && line.contains('(')).then_some(line)
    });
    assert!(line.contains("PENDING (PartitionConfig: no node of the partition is as large"), "{line}");
}
