//! The options of a launch: torchrun's, parsed and checked.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use enmasse_launch::{Binding, LaunchedRank, Logs, MASTER_ADDR, MASTER_PORT, Nodes, Selection, Timing};

use super::flags::GivenFlags;
use super::topology::{Meeting, Topology};
use super::{ineffective, timing};
use crate::command_line::settings::cores;
use crate::failure::{Failure, usage};

/// Larger numbers are typing errors.
const MAX_LOCAL_RANKS: usize = 1 << 10;
const MAX_NODES: usize = 1 << 16;
const MAX_SECONDS: u64 = 1 << 32;

/// Where rank 0 listens by default if there are several nodes, as in PyTorch.
const DEFAULT_PORT: u16 = 29500;

/// The options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub topology: Topology,
    pub local_world_size: usize,
    pub run_id: Option<String>,
    /// Whether Slurm has started this launcher as one of several, each on a node of its own.
    pub is_of_step: bool,
    pub role: Option<String>,
    pub max_restarts: usize,
    /// Names of signals; `None` for the default ones.
    pub stop_signals: Option<Vec<String>>,
    pub shutdown_timeout: Duration,
    /// How long ranks wait for all to join.
    pub join_timeout: Duration,
    pub binding: Binding,
    pub virtual_local_rank: bool,
    pub print_env: bool,
    pub dry_run: bool,
    /// A line for each given flag that has no effect.
    pub warnings: Vec<String>,
}

impl Options {
    pub fn read(given: &GivenFlags<'_>) -> Result<Self, Failure> {
        // These values are only checked for validity.
        given.value("monitor-interval", "a number of seconds", seconds)?;
        given.value("start-method", "spawn, fork or forkserver", |text| {
            ["spawn", "fork", "forkserver"].contains(&text).then_some(())
        })?;
        given
            .value("event-log-handler", "null or console", |text| ["null", "console"].contains(&text).then_some(()))?;
        let modes = Binding::NAMES.map(|(name, _)| name).join(", ");
        let binding = given.value("numa-binding", &format!("one of {modes}"), |text| {
            Binding::NAMES.iter().find(|(name, _)| *name == text).map(|(_, binding)| *binding)
        })?;
        let whole = format!("a whole number from 0 to {MAX_SECONDS}");
        let restarts = given.value("max-restarts", &whole, |text| number(text, 0, MAX_SECONDS as usize))?;
        let timeout = given.value("shutdown-timeout", &whole, |text| number(text, 0, MAX_SECONDS as usize))?;
        let timeout = match timeout {
            Some(timeout) => timeout as u64,
            None => shutdown_timeout_of_torch(given)?,
        };
        let (timing, keys) = timing::read(given)?;
        let step = of_slurm(given)?;
        let topology = match &step {
            Some(place) => {
                Topology::Static(Nodes { rank: place.rank, count: place.world_size, master: place.master.clone() })
            }
            None => topology(given, timing)?,
        };
        let flags = ineffective::without_effect(given, &topology)?;
        Ok(Options {
            topology,
            local_world_size: local_world_size(given)?,
            run_id: given.value("rdzv-id", "a name", word)?.or_else(|| step.as_ref().map(|place| place.run_id.clone())),
            is_of_step: step.is_some(),
            role: given.value("role", "a name", word)?,
            max_restarts: restarts.unwrap_or(0),
            stop_signals: given.value("signals-to-handle", "comma-separated names of signals", |text| {
                Some(text.split(',').map(|name| name.trim().to_owned()).collect())
            })?,
            shutdown_timeout: Duration::from_secs(timeout),
            join_timeout: timing.join,
            binding: binding.unwrap_or(Binding::Exclusive),
            virtual_local_rank: given.is_on("virtual-local-rank")?,
            print_env: given.is_on("print-env")?,
            dry_run: given.is_on("dry-run")?,
            warnings: flags.into_iter().chain(keys).collect(),
        })
    }
}

/// The folder of this run's logs, and the streams that go there.
pub fn logs(given: &GivenFlags<'_>, run_id: &str, ranks: usize) -> Result<Logs, Failure> {
    let streams = "0, 1, 2 or 3, or one of these per local rank, as in 0:3,1:2";
    let redirects = given.value("redirects", streams, Selection::parse)?.unwrap_or_default();
    let tee = given.value("tee", streams, Selection::parse)?.unwrap_or_default();
    let shown = given.value("local-ranks-filter", "comma-separated local ranks", |text| {
        let ranks = text.split(',').map(|rank| rank.trim().parse().ok()).collect::<Option<BTreeSet<usize>>>();
        if text.is_empty() { Some(None) } else { ranks.map(Some) }
    })?;
    let shown = shown.flatten();
    if let Some(none) = shown.as_ref().filter(|shown| shown.iter().all(|&rank| rank >= ranks)) {
        let none: Vec<_> = none.iter().map(usize::to_string).collect();
        let why = format!("would show nothing: the local ranks are 0 to {}", ranks.saturating_sub(1));
        return Err(usage!("--local-ranks-filter {}: {why}", none.join(",")));
    }
    let stdout_filters = given.value("duplicate-stdout-filters", "words", words)?.unwrap_or_default();
    let stderr_filters = given.value("duplicate-stderr-filters", "words", words)?.unwrap_or_default();
    let base = given.value("log-dir", "a folder", |text| (!text.is_empty()).then(|| PathBuf::from(text)))?;
    let prefix = (given.environment)("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    let asked = base.is_some() || redirects != Selection::default() || tee != Selection::default();
    let mut logs = match Logs::create(base.as_deref(), run_id) {
        Ok(logs) => logs,
        Err(error) if asked => return Err(Failure::error(error)),
        // The user has not asked for files, and ranks do without error files.
        Err(_) => Logs::default(),
    };
    logs.redirects = redirects;
    logs.tee = tee;
    logs.shown = shown;
    logs.prefix = prefix.map(|prefix| prefix.to_string_lossy().into_owned()).filter(|prefix| !prefix.is_empty());
    logs.stdout_filters = stdout_filters;
    logs.stderr_filters = stderr_filters;
    Ok(logs)
}

/// The variable that torchrun reads if the option is not given.
fn shutdown_timeout_of_torch(given: &GivenFlags<'_>) -> Result<u64, Failure> {
    const NAME: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    let Some(text) = (given.environment)(NAME) else { return Ok(30) };
    let seconds = text.to_str().and_then(|text| number(text.trim(), 0, MAX_SECONDS as usize));
    let refusal = || usage!("{NAME}={}: must be a whole number of seconds", text.display());
    seconds.map(|seconds| seconds as u64).ok_or_else(refusal)
}

fn local_world_size(given: &GivenFlags<'_>) -> Result<usize, Failure> {
    let expected = format!("auto, cpu, gpu or a whole number from 1 to {MAX_LOCAL_RANKS}");
    let read = |text: &str| match text {
        "auto" => Some(Ok(match gpus(given) {
            0 => cores(),
            gpus => gpus,
        })),
        "cpu" => Some(Ok(cores())),
        "gpu" => Some(match gpus(given) {
            0 => Err(usage!("--nproc-per-node gpu: this machine shows no NVIDIA GPU (/dev/nvidia0)")),
            gpus => Ok(gpus),
        }),
        text => number(text, 1, MAX_LOCAL_RANKS).map(Ok),
    };
    given.value("nproc-per-node", &expected, read)?.unwrap_or(Ok(1))
}

/// The GPUs that a rank would see: those in CUDA_VISIBLE_DEVICES, or all of the machine.
fn gpus(given: &GivenFlags<'_>) -> usize {
    let device = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix("nvidia")?;
        number.parse::<u32>().ok()
    };
    let all = || std::fs::read_dir("/dev").map_or(0, |entries| entries.flatten().filter_map(device).count());
    match (given.environment)("CUDA_VISIBLE_DEVICES") {
        // As CUDA reads it: entries after -1, or after an empty one, are not visible.
        Some(list) => {
            let list = list.to_string_lossy().into_owned();
            list.split(',').map(str::trim).take_while(|device| !device.is_empty() && *device != "-1").count().min(all())
        }
        None => all(),
    }
}

/// The flags that say which nodes there are.
const OF_NODES: [&str; 6] = ["nnodes", "node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint"];

/// The place of this launcher among the tasks of a Slurm step, which start the job's ranks each on its node; `None` outside of such a
/// step, in a step of one task, and if a flag says which nodes there are.
fn of_slurm(given: &GivenFlags<'_>) -> Result<Option<LaunchedRank>, Failure> {
    for name in OF_NODES {
        if given.text(name)?.is_some() {
            return Ok(None);
        }
    }
    if given.is_on("standalone")? {
        return Ok(None);
    }
    let is_slurms = |name: &&str| name.starts_with("SLURM") || [MASTER_ADDR, MASTER_PORT].contains(name);
    let variable = |name: &str| Some(name).filter(is_slurms).and_then(|name| (given.environment)(name));
    // A batch script is no task of a step, whatever else Slurm says there.
    if variable("SLURM_STEP_ID").is_none() {
        return Ok(None);
    }
    let found = LaunchedRank::interpret(variable).map_err(Failure::usage)?;
    let Some(place) = found.place.filter(|place| place.world_size > 1) else { return Ok(None) };
    if place.local_world_size > 1 {
        return Err(usage!(
            "Slurm has started {} launchers on this node, and one starts all ranks of a node: srun --ntasks-per-node=1 enmasse launch ..., or \
             --standalone for a job of each",
            place.local_world_size
        ));
    }
    Ok(Some(place))
}

fn topology(given: &GivenFlags<'_>, timing: Timing) -> Result<Topology, Failure> {
    let expected = format!("N or MIN:MAX, whole numbers from 1 to {MAX_NODES}");
    let (least, most) = given.value("nnodes", &expected, range)?.unwrap_or((1, 1));
    let node_rank = given.value("node-rank", "a node number from 0", |text| number(text, 0, MAX_NODES))?;
    let address = given.value("master-addr", "a host or an address", word)?;
    let port = given.value("master-port", "a port from 1 to 65535", |text| number(text, 1, 65535))?;
    let port = port.and_then(|port| u16::try_from(port).ok());
    let backend = given.value("rdzv-backend", "static or c10d: nodes meet at enmasse's own store", |text| {
        ["static", "c10d"].contains(&text).then(|| text.to_owned())
    })?;
    let endpoint = given.value("rdzv-endpoint", "HOST or HOST:PORT", |text| Some(text.to_owned()))?;
    let endpoint = endpoint.filter(|text| !text.is_empty());
    let local_address = given.value("local-addr", "a host or an address", word)?;

    if given.is_on("standalone")? {
        let one = Topology::Static(Nodes::default());
        return match most {
            1 => Ok(one),
            _ => Err(usage!("--standalone is one node, but --nnodes asks for {most}; leave one of them out")),
        };
    }
    if let Some((host, Some(0))) = endpoint.as_deref().and_then(host_and_port)
        && most > 1
    {
        return Err(usage!(
            "--rdzv-endpoint {host}:0: port 0 means any free port, which the other nodes would not know; set a port"
        ));
    }
    let static_backend = backend.as_deref() == Some("static");
    let meet = least < most || backend.as_deref() == Some("c10d") || (endpoint.is_some() && node_rank.is_none());
    let endpoint = match endpoint.as_deref().map(host_and_port) {
        Some(None) => {
            let text = endpoint.unwrap_or_default();
            return Err(usage!("--rdzv-endpoint {text}: must be HOST or HOST:PORT"));
        }
        Some(endpoint) => endpoint,
        None => None,
    };
    if most > 1 && meet && !static_backend {
        let Some((host, port)) = endpoint else {
            return Err(usage!(
                "--nnodes {least}:{most}: set where the nodes meet with --rdzv-endpoint HOST:PORT, where HOST is one of them"
            ));
        };
        let endpoint = (host, port.unwrap_or(DEFAULT_MEETING_PORT));
        return Ok(Topology::Meeting(Meeting { least, most, endpoint, timing, local_address }));
    }
    if least < most {
        return Err(usage!("--rdzv-backend static: --nnodes {least}:{most} must be one number"));
    }
    let rank = node_rank.unwrap_or(0);
    if rank >= most {
        return Err(usage!("--node-rank {rank}: must be less than --nnodes {most}: node numbers start at 0"));
    }
    let master = match (endpoint.filter(|_| most > 1 || static_backend), port) {
        (Some((host, port)), _) => Some((host, port.unwrap_or(DEFAULT_PORT))),
        (None, None) if most == 1 => None,
        (None, port) => Some((address.unwrap_or_else(|| "127.0.0.1".to_owned()), port.unwrap_or(DEFAULT_PORT))),
    };
    // Programs expect MASTER_ADDR to hold an IPv6 address without brackets.
    let bare = |host: String| host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let master = master.map(|(host, port)| (bare(host), port));
    Ok(Topology::Static(Nodes { rank, count: most, master }))
}

/// Where nodes meet if the endpoint has no port, as in PyTorch.
const DEFAULT_MEETING_PORT: u16 = 29400;

fn range(text: &str) -> Option<(usize, usize)> {
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    let (least, most) = (number(least, 1, MAX_NODES)?, number(most, 1, MAX_NODES)?);
    (least <= most).then_some((least, most))
}

/// The endpoint that is given, where nodes meet.
pub fn meeting_endpoint(given: &GivenFlags<'_>) -> Result<Option<(String, u16)>, Failure> {
    let endpoint = given.value("rdzv-endpoint", "HOST or HOST:PORT", host_and_port)?;
    Ok(endpoint.map(|(host, port)| (host, port.unwrap_or(DEFAULT_MEETING_PORT))))
}

/// HOST, HOST:PORT, [ADDRESS]:PORT.
fn host_and_port(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address without brackets has no port.
        Some((host, _)) if host.contains(':') && !host.ends_with(']') => {
            let address = text.split_once('%').map_or(text, |(address, _)| address);
            (address.parse::<Ipv6Addr>().ok().map(|_| text)?, None)
        }
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (text, None),
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// Comma-separated words; a doubled comma stands for a comma in a word.
fn words(text: &str) -> Option<Vec<String>> {
    let words = text.replace(",,", "\0");
    Some(words.split(',').filter(|word| !word.is_empty()).map(|word| word.replace('\0', ",")).collect())
}

fn number(text: &str, least: usize, most: usize) -> Option<usize> {
    text.trim().parse().ok().filter(|number| (least..=most).contains(number))
}

fn seconds(text: &str) -> Option<f64> {
    text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)
}

fn word(text: &str) -> Option<String> {
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::flags::command;
    use super::*;

    /// The options from a command line and variables, or the message.
    fn read(line: &str, variables: &[(&str, &str)]) -> Result<Options, String> {
        let words = std::iter::once("launch").chain(line.split_whitespace()).chain(["program"]);
        let matches = command("launch").try_get_matches_from(words).map_err(|error| error.to_string())?;
        let environment = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let given = GivenFlags { matches: &matches, environment: &environment };
        Options::read(&given).map_err(|failure| failure.message().to_owned())
    }

    fn nodes(rank: usize, count: usize, master: Option<(&str, u16)>) -> Topology {
        Topology::Static(Nodes { rank, count, master: master.map(|(host, port)| (host.to_owned(), port)) })
    }

    #[test]
    fn nodes_numbered_by_hand() {
        let check = |line: &str, expected: Topology| {
            assert_eq!(read(line, &[]).map(|options| options.topology), Ok(expected), "{line}");
        };
        check("", nodes(0, 1, None));
        check("--nnodes 1:1", nodes(0, 1, None));
        check("--standalone --rdzv-endpoint h:1 --rdzv-backend c10d", nodes(0, 1, None));
        check("--rdzv-endpoint localhost:0 --rdzv-backend c10d", nodes(0, 1, None));
        // argparse accepts abbreviated flags.
        check("--nnode 2 --node_r 1", nodes(1, 2, Some(("127.0.0.1", 29500))));
        check("--nnode=2 --master_p=7", nodes(0, 2, Some(("127.0.0.1", 7))));
        // Options for meetings do not matter to a single node.
        check("--nnodes=1 --rdzv_backend=c10d --rdzv_endpoint=localhost:29400 --rdzv_id=7", nodes(0, 1, None));
        check("--master-addr h", nodes(0, 1, None));
        check("--master_port 5000", nodes(0, 1, Some(("127.0.0.1", 5000))));
        check("--nnodes 2", nodes(0, 2, Some(("127.0.0.1", 29500))));
        check("--nnodes 2:2 --node_rank 1 --master_addr n0", nodes(1, 2, Some(("n0", 29500))));
        check("--nnodes 2 --node-rank=1 --master-addr=[::1] --master-port=9", nodes(1, 2, Some(("::1", 9))));
        check("--nnodes 2 --node-rank 1 --rdzv-endpoint n0:77", nodes(1, 2, Some(("n0", 77))));
        check("--nnodes 2 --rdzv-backend static --rdzv-endpoint n0", nodes(0, 2, Some(("n0", 29500))));
    }

    /// Each of these launchers started a job of its own.
    #[test]
    fn launchers_that_slurm_starts_are_the_nodes_of_one_job() {
        let step = |tasks: &'static str, per_node: &'static str, procid: &'static str| {
            [
                ("SLURM_JOB_ID", "7"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_PROCID", procid),
                ("SLURM_NODEID", procid),
                ("SLURM_NTASKS", tasks),
                ("SLURM_STEP_TASKS_PER_NODE", per_node),
                ("SLURM_STEP_NODELIST", "node[1-2]"),
            ]
        };
        let check = |line: &str, variables: &[(&str, &str)], expected: Option<(usize, usize, Option<&str>)>| {
            let options = read(line, variables).unwrap();
            let Topology::Static(nodes) = options.topology else { panic!("{line}") };
            let host = nodes.master.as_ref().map(|(host, _)| host.as_str());
            assert_eq!((nodes.rank, nodes.count, host), expected.unwrap_or((0, 1, None)), "{line}");
            assert_eq!((options.is_of_step, options.run_id.is_some()), (expected.is_some(), expected.is_some()));
        };
        check("-n 2", &step("2", "1(x2)", "1"), Some((1, 2, Some("node1"))));
        check("-n 2 --standalone", &step("2", "1(x2)", "1"), None);
        check("-n 2 --nnodes 1", &step("2", "1(x2)", "1"), None);
        check("-n 2", &step("1", "1", "0"), None);
        // A batch script.
        check("-n 2", &[("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")], None);
        let twice = read("-n 2", &step("4", "2(x2)", "1")).unwrap_err();
        assert!(twice.starts_with("Slurm has started 2 launchers on this node"), "{twice}");
    }

    #[test]
    fn nodes_that_meet() {
        let meeting = |least, most, host: &str, port| Meeting {
            least,
            most,
            endpoint: (host.to_owned(), port),
            timing: Timing::default(),
            local_address: None,
        };
        let check = |line: &str, expected: Meeting| {
            let expected = Ok(Topology::Meeting(expected));
            assert_eq!(read(line, &[]).map(|options| options.topology), expected, "{line}");
        };
        check("--nnodes 1:4 --rdzv-endpoint h:1", meeting(1, 4, "h", 1));
        check("--nnodes 2 --rdzv-endpoint h", meeting(2, 2, "h", 29400));
        check("--nnodes 3 --rdzv-backend c10d --rdzv-endpoint [::1]:5 --node-rank 1", meeting(3, 3, "[::1]", 5));
        check("--nnodes 2 --rdzv-endpoint fe80::1", meeting(2, 2, "fe80::1", 29400));
        check("--nnodes 2 --rdzv-endpoint fe80::1%eth0", meeting(2, 2, "fe80::1%eth0", 29400));
        let more = Meeting {
            timing: Timing { join: Duration::from_secs(5), ..Timing::default() },
            local_address: Some("n7".to_owned()),
            ..meeting(2, 3, "h", 1)
        };
        check("--nnodes 2:3 --rdzv-endpoint h:1 --rdzv-conf join_timeout=60,timeout=5 --local-addr n7", more);
    }

    #[test]
    fn refusals() {
        let check = |line: &str, expected: &str| assert_eq!(read(line, &[]).unwrap_err(), expected);
        let nnodes = "must be N or MIN:MAX, whole numbers from 1 to 65536";
        for text in ["0", "-1", "x", "2:1", "1:2:3", ":", "65537", "1.5"] {
            check(&format!("--nnodes {text}"), &format!("--nnodes {text}: {nnodes}"));
        }
        check("-n 0", "--nproc-per-node 0: must be auto, cpu, gpu or a whole number from 1 to 1024");
        check("-n xpu", "--nproc-per-node xpu: must be auto, cpu, gpu or a whole number from 1 to 1024");
        check("--nnodes 2 --node-rank 2", "--node-rank 2: must be less than --nnodes 2: node numbers start at 0");
        check("--node-rank -1", "--node-rank -1: must be a node number from 0");
        check("--master-port 65536", "--master-port 65536: must be a port from 1 to 65535");
        check("--nnodes 2 --rdzv-endpoint h:x", "--rdzv-endpoint h:x: must be HOST or HOST:PORT");
        check("--nnodes 2 --rdzv-endpoint :1", "--rdzv-endpoint :1: must be HOST or HOST:PORT");
        check("--nnodes 2 --rdzv-endpoint a:b:1", "--rdzv-endpoint a:b:1: must be HOST or HOST:PORT");
        let any = "--rdzv-endpoint h:0: port 0 means any free port, which the other nodes would not know; set a port";
        check("--nnodes 2 --rdzv-endpoint h:0", any);
        check("--nnodes 2 --node-rank 1 --rdzv-endpoint h:0", any);
        check("--role=", "--role \"\": must be a name");
        check("--rdzv-backend etcd", "--rdzv-backend etcd: must be static or c10d: nodes meet at enmasse's own store");
        // Even if no nodes meet.
        let keys = "join_timeout, timeout, last_call_timeout, keep_alive_interval, keep_alive_max_attempt";
        check("--rdzv-conf a=1", &format!("--rdzv-conf a: is not a key; the keys are {keys}"));
        let meet = "--nnodes 1:2: set where the nodes meet with --rdzv-endpoint HOST:PORT, where HOST is one of them";
        check("--nnodes 1:2", meet);
        check("--nnodes 1:2 --rdzv-backend static", "--rdzv-backend static: --nnodes 1:2 must be one number");
        let standalone = "--standalone is one node, but --nnodes asks for 2; leave one of them out";
        check("--standalone --nnodes 2", standalone);
        check("--max-restarts -1", "--max-restarts -1: must be a whole number from 0 to 4294967296");
        check("--monitor-interval x", "--monitor-interval x: must be a number of seconds");
        check("--start-method thread", "--start-method thread: must be spawn, fork or forkserver");
        check("--numa-binding x", "--numa-binding x: must be one of exclusive, node, socket, core-complex, none");
    }

    #[test]
    fn variables_replace_flags() {
        let variables = [
            ("PET_NNODES", "2"),
            ("PET_NODE_RANK", "1"),
            ("PET_NPROC_PER_NODE", "3"),
            ("PET_MASTER_ADDR", "n0"),
            ("PET_MAX_RESTARTS", " 4 "),
            ("PET_RDZV_ID", "tale"),
            ("PET_VIRTUAL_LOCAL_RANK", "1"),
            ("PET_STANDALONE", "0"),
            ("PET_SHUTDOWN_TIMEOUT", "7"),
            ("PET_ROLE", "trainer"),
        ];
        let options = read("", &variables).unwrap();
        assert_eq!(options.topology, nodes(1, 2, Some(("n0", 29500))));
        assert_eq!((options.local_world_size, options.max_restarts), (3, 4));
        assert_eq!((options.run_id.as_deref(), options.role.as_deref()), (Some("tale"), Some("trainer")));
        assert_eq!((options.virtual_local_rank, options.shutdown_timeout), (true, Duration::from_secs(7)));
        let options = read("--nproc-per-node 1 --nnodes 3 --max_restarts=0", &variables).unwrap();
        assert_eq!((options.local_world_size, options.max_restarts), (1, 0));
        assert_eq!(options.topology, nodes(1, 3, Some(("n0", 29500))));
        let check = |name: &str, value: &str, expected: &str| {
            assert_eq!(read("", &[(name, value)]).unwrap_err(), expected);
        };
        check("PET_NNODES", "", "PET_NNODES=\"\": must be N or MIN:MAX, whole numbers from 1 to 65536");
        check("PET_STANDALONE", "yes", "PET_STANDALONE=yes: must be 0 or 1");
        let seconds = |text: &str| read("", &[("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", text)]);
        assert_eq!(seconds("9").unwrap().shutdown_timeout, Duration::from_secs(9));
        let refusal = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x: must be a whole number of seconds";
        assert_eq!(seconds("x").unwrap_err(), refusal);
        assert_eq!(read("", &[]).unwrap().shutdown_timeout, Duration::from_secs(30));
    }

    #[test]
    fn visible_gpus() {
        let count = |list: &str| {
            let environment = |name: &str| (name == "CUDA_VISIBLE_DEVICES").then(|| list.into());
            let matches = command("launch").try_get_matches_from(["launch", "program"]).unwrap();
            gpus(&GivenFlags { matches: &matches, environment: &environment })
        };
        // An empty list hides all GPUs.
        for list in ["", "-1", "-1,0"] {
            assert_eq!(count(list), 0, "{list:?}");
        }
        assert!(count("0,1,2") <= 3);
    }

    #[test]
    fn words_with_commas() {
        assert_eq!(words("a,b,,c").unwrap(), ["a", "b,c"]);
        assert_eq!(words("").unwrap(), [""; 0]);
    }
}
