//! One job on two hosts of a network of its own, if this machine can create one: its nodes are started by hand, with the
//! lines of `launch --dry-run`.

use std::path::Path;

use crate::common::network::Network;
use crate::common::{Running, enmasse, finish};
use enmasse_train::Checkpoint;

const TOKEN: (&str, &str) = ("ENMASSE_TOKEN", "a secret that both hosts know");

/// The bytes that a host has sent so far.
fn sent(network: &Network, host: &str) -> u64 {
    let table = finish(network.command(host, "cat").arg("/proc/self/net/dev")).well().stdout;
    let line = table.lines().find_map(|line| line.trim().strip_prefix("eth0:")).expect("the interface");
    // Eight numbers of what came, and then of what was sent.
    line.split_whitespace().nth(8).expect("a number").parse().expect("a number")
}

/// The lines that a dry run prints for the nodes of a job.
fn lines(flags: &[&str], train: &[&str]) -> Vec<String> {
    // A user who types the lines has the program on the path.
    let ended = enmasse(&[&["launch", "--dry-run"], flags, &["enmasse"], train].concat()).well();
    ended.stdout.lines().filter(|line| line.starts_with("enmasse launch ")).map(str::to_owned).collect()
}

/// Runs such a line on a host.
fn start(network: &Network, host: &str, line: &str) -> Running {
    let folder = Path::new(env!("CARGO_BIN_EXE_enmasse")).parent().expect("a folder").display().to_string();
    let mut command = network.command(host, "sh");
    // The other programs of the line are the shell's.
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(["-c", &format!("PATH={folder}:$PATH; exec {line}")]).env("PATH", path);
    Running::start(command.env(TOKEN.0, TOKEN.1))
}

#[test]
fn two_hosts_train_as_one_and_send_every_gradient_once() {
    let Some(network) = Network::up(&["h1", "h2"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = crate::common::images(folder.path(), 10).display().to_string();
    let run = |name: &str| folder.path().join(name).display().to_string();
    let fixed = ["train", &data, "--model", "mlp", "--size", "48", "--batch", "1", "--threads", "1", "--epochs", "9"];
    let train = |name: &str, steps: usize| {
        let others = ["--max-steps".to_owned(), steps.to_string(), "--out".to_owned(), run(name)];
        fixed.into_iter().map(str::to_owned).chain(others).collect::<Vec<_>>()
    };
    enmasse(&[&train("four", 8)[..], &["--devices".to_owned(), "cpu:4".to_owned()]].concat()).well();
    // The bytes that a host sends in a run, and what the first one prints.
    let hosts = |name: &str, steps: usize| {
        let words = train(name, steps);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let lines = lines(&["--nnodes", "2", "--master-addr", "h1", "-n", "2"], &words);
        assert_eq!(lines.len(), 2, "{lines:?}");
        let before = sent(&network, "h1");
        let [first, second] = [("h1", &lines[0]), ("h2", &lines[1])].map(|(host, line)| start(&network, host, line));
        let (first, _) = (first.finish().well(), second.finish().well());
        (sent(&network, "h1") - before, first.stderr)
    };
    let ((few, _), (many, told)) = (hosts("few", 2), hosts("hosts", 8));

    let weights = |name: &str| {
        let checkpoint = Checkpoint::load(&Path::new(&run(name)).join("checkpoints/last.safetensors")).unwrap();
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        checkpoint.tensors.into_iter().map(|tensor| (tensor.name, bits(tensor.values))).collect::<Vec<_>>()
    };
    let (four, hosts) = (weights("four"), weights("hosts"));
    assert!(four == hosts, "the weights differ");
    let way = "ranks share memory on 2 nodes, which exchange data over TCP";
    assert!(told.lines().any(|line| line == way), "{told}");
    // As if each host had one rank: it sends half of the gradients, and the sums of the other half. If each rank sent to each,
    // twice as many bytes would travel.
    let of_optimizer = |name: &str| name.starts_with("optimizer.");
    let gradients = four.iter().filter(|(name, _)| !of_optimizer(name)).map(|(_, values)| values.len() * 4);
    let gradients = gradients.sum::<usize>() as f64;
    let each_step = (many - few) as f64 / 6.0 / gradients;
    assert!((1.0..1.25).contains(&each_step), "{each_step} times the gradients in each step");
}

/// Regression test: all ranks but the first one of such a host told the others a loopback address.
#[test]
fn hosts_whose_own_names_are_loopback_meet() {
    let Some(network) = Network::up(&["h1", "h2"]) else { return };
    for host in ["h1", "h2"] {
        network.resolve_own_name_to_loopback(host);
    }
    let folder = tempfile::tempdir().unwrap();
    let data = crate::common::images(folder.path(), 10).display().to_string();
    for nodes in [["--nnodes", "2", "--master-addr", "h1"], ["--nnodes", "2:2", "--rdzv-endpoint", "h1:29400"]] {
        let out = folder.path().join(nodes[1]).display().to_string();
        let train =
            ["train", &data, "--model", "mlp", "--size", "8", "--batch", "1", "--max-steps", "2", "--out", &out];
        let lines = lines(&[&nodes[..], &["-n", "2"]].concat(), &train);
        // The nodes of an elastic job have the same line.
        let nodes = [("h1", lines.first()), ("h2", lines.last())];
        let nodes = nodes.map(|(host, line)| start(&network, host, line.expect("a line")));
        for node in nodes {
            node.finish().well();
        }
    }
}

/// All ranks find the difference at the same time. Each blames the second host's first rank, which runs on no other host.
#[test]
fn a_rank_of_another_host_is_named_with_its_own_host() {
    let Some(network) = Network::up(&["h1", "h2"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = crate::common::images(folder.path(), 10);
    let out = folder.path().join("run");
    let own = env!("CARGO_BIN_EXE_enmasse");
    let host = |rank: &str, host: &str, options: &[&str]| {
        let mut command = network.command(host, own);
        command.args(["launch", "--nnodes", "2", "--node-rank", rank, "--master-addr", "h1", "-n", "2", own, "train"]);
        command.arg(&data).args(["--model", "mlp", "--size", "8", "--batch", "2", "--out"]);
        command.arg(&out).args(options);
        Running::start(command.env(TOKEN.0, TOKEN.1))
    };
    let hosts = [host("0", "h1", &["--isa", "portable"]), host("1", "h2", &[])];
    for ended in hosts.map(Running::finish) {
        let error = ended.stderr.lines().find(|line| line.starts_with("error: "));
        assert!(error.is_some_and(|line| line.starts_with("error: rank 2 on host h2 is out of step: ")), "{ended:?}");
    }
}
