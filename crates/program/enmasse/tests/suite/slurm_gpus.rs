//! Ranks as tasks of a real Slurm on emulated GPUs, which it counts and gives to them; and launchers that it starts on nodes.

use std::path::{Path, PathBuf};

use crate::common::cluster::Cluster;
use crate::common::runs::{arguments, assert_same};
use crate::common::{Ended, finish, images, program};

const ENMASSE: &str = env!("CARGO_BIN_EXE_enmasse");

/// Two nodes of two GPUs, and images that they all see.
struct Place {
    cluster: Cluster,
    folder: tempfile::TempDir,
    data: PathBuf,
    emulation: &'static Path,
}

impl Place {
    fn new() -> Option<Self> {
        let emulation = enmasse_emulation::folder()?;
        let cluster = Cluster::start_with_gpus(2, 2)?;
        let folder = tempfile::tempdir().unwrap();
        Some(Place { cluster, data: images(folder.path(), 8), folder, emulation })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Variables of a machine with this number of emulated GPUs.
    fn variables(&self, gpus: &str) -> [(&'static str, String); 3] {
        [
            ("ENMASSE_CUDA_LIBRARIES", self.emulation.display().to_string()),
            ("EMULATED_GPUS", gpus.to_owned()),
            ("ENMASSE_CACHE", self.path("cache").display().to_string()),
        ]
    }

    fn arguments(&self, name: &str, others: &[&str]) -> Vec<String> {
        let convolutions = ["--epochs", "1", "--model", "mobilenet_v2", "--size", "32"];
        arguments(&self.data, &self.path(name), &[&convolutions[..], others].concat())
    }

    /// A run as a step of these options.
    fn srun(&self, name: &str, options: &[&str], before: &[&str], others: &[&str]) -> Ended {
        let words = self.arguments(name, others);
        let words = words.iter().map(String::as_str);
        let line: Vec<&str> =
            ["srun"].iter().chain(options).chain(before).copied().chain([ENMASSE]).chain(words).collect();
        finish(self.cluster.head_command(&line).envs(self.variables("2"))).well()
    }

    /// The same run on the GPUs of one machine.
    fn alone(&self, name: &str, gpus: usize, others: &[&str]) -> Ended {
        let mut command = program();
        command.env_remove("CUDA_VISIBLE_DEVICES").envs(self.variables(&gpus.to_string()));
        finish(command.args(self.arguments(name, others))).well()
    }
}

/// The hosts and buses of the ranks' GPUs.
fn gpus(ended: &Ended) -> Vec<String> {
    let place = |line: &str| {
        let (rank, gpu) = line.strip_prefix("rank ")?.split_once(", gpu ")?;
        let host = rank.split_once(", ")?.1.split(':').next()?;
        Some(format!("{host} {}", gpu.split_once(", ")?.1.split(',').next()?))
    };
    ended.stderr.lines().filter_map(place).collect()
}

const FOUR: [&str; 4] = ["node1 0000:10:00.0", "node1 0000:11:00.0", "node2 0000:10:00.0", "node2 0000:11:00.0"];

/// No test had run GPUs on two nodes: emulated ones had the same UUID on all hosts, so ranks seemed to share them.
#[test]
fn two_nodes_of_two_gpus_give_the_bits_of_one_machine() {
    let Some(place) = Place::new() else { return };
    let tasks = ["--nodes=2", "--ntasks-per-node=2"];
    let check = |name: &str, gres: &[&str], others: &[&str], alone: usize| {
        let one = format!("{name} on one machine");
        assert_eq!(gpus(&place.alone(&one, alone, others)).len(), if alone > 1 { alone } else { 0 });
        let ended = place.srun(name, &[&tasks[..], gres].concat(), &[], others);
        assert_eq!(gpus(&ended), FOUR, "{}", ended.stderr);
        assert!(ended.stderr.contains("gradients go by NCCL"), "{}", ended.stderr);
        assert_same(&place.path(name), &place.path(&one));
    };
    let (node, task) = (["--gres=gpu:2"], ["--gpus-per-task=1"]);
    // NCCL sums in an order of the ranks, which are as many.
    check("gres", &node, &["--check-ranks"], 4);
    check("each", &task, &["--sync-bn"], 4);
    // The fixed tree depends on the shards alone.
    check("tree", &node, &["--shards", "4", "--sum", "tree"], 1);
    check("joint tree", &task, &["--shards", "4", "--sum", "tree", "--sync-bn"], 1);

    // One task has all GPUs of its step. Batch norm over its two images, which end as one pixel, would overflow.
    let single = place.srun("single", &["--nodes=1", "--ntasks=1", "--gres=gpu:2"], &[], &["--model", "mlp"]);
    assert_eq!(gpus(&single), FOUR[..2], "{}", single.stderr);

    // Each launcher made a job of its own, of one node.
    let launch = [ENMASSE, "launch", "-n", "2"];
    let launched = place.srun("launched", &["--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2"], &launch, &[]);
    assert_eq!(gpus(&launched), FOUR, "{}", launched.stderr);
    assert_same(&place.path("launched"), &place.path("gres"));
}
