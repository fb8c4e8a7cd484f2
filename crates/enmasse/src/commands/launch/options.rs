//! What a launch is asked to do: torchrun's options, read and checked.

use std::time::Duration;

use enmasse_launch::Nodes;

use super::flags::Given;
use crate::failure::Failure;
use crate::settings::cores;

/// Beyond these, a number is a typing error.
const MOST_LOCAL_RANKS: usize = 1 << 10;
const MOST_NODES: usize = 1 << 16;
const MOST_SECONDS: u64 = 1 << 32;

/// Where rank 0 listens when there are several nodes and nobody says otherwise, as in PyTorch.
const DEFAULT_PORT: u16 = 29500;

/// Which nodes a job has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Known beforehand, each with its number.
    Static(Nodes),
    /// They meet at an endpoint, where they are numbered; they may come and go.
    Meeting(Meeting),
}

/// Where and how nodes meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// How few nodes are enough.
    pub least: usize,
    /// How many there may be.
    pub most: usize,
    /// Host and port.
    pub endpoint: (String, u16),
    /// Seconds, by names such as `join_timeout`.
    pub configuration: Vec<(String, String)>,
    /// The name by which other nodes reach this one.
    pub local_address: Option<String>,
}

/// The options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub topology: Topology,
    pub local_world_size: usize,
    pub run_id: Option<String>,
    pub role: Option<String>,
    pub max_restarts: usize,
    /// Names; `None` for the usual ones.
    pub stop_signals: Option<Vec<String>>,
    pub shutdown_timeout: Duration,
}

impl Options {
    pub fn read(given: &Given<'_>) -> Result<Self, Failure> {
        // Of these only the spelling counts.
        given.value("monitor-interval", "a number of seconds", seconds)?;
        given.value("start-method", "spawn, fork or forkserver", |text| {
            ["spawn", "fork", "forkserver"].contains(&text).then_some(())
        })?;
        let whole = format!("a whole number from 0 to {MOST_SECONDS}");
        let restarts = given.value("max-restarts", &whole, |text| number(text, 0, MOST_SECONDS as usize))?;
        let timeout = given.value("shutdown-timeout", &whole, |text| number(text, 0, MOST_SECONDS as usize))?;
        let timeout = match timeout {
            Some(timeout) => timeout as u64,
            None => shutdown_timeout_of_torch(given)?,
        };
        Ok(Options {
            topology: topology(given)?,
            local_world_size: local_world_size(given)?,
            run_id: given.value("rdzv-id", "a name", word)?,
            role: given.value("role", "a name", word)?,
            max_restarts: restarts.unwrap_or(0),
            stop_signals: given.value("signals-to-handle", "names of signals with commas between", |text| {
                Some(text.split(',').map(|name| name.trim().to_owned()).collect())
            })?,
            shutdown_timeout: Duration::from_secs(timeout),
        })
    }
}

/// The variable that torchrun reads where the option is not given.
fn shutdown_timeout_of_torch(given: &Given<'_>) -> Result<u64, Failure> {
    const NAME: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    let Some(text) = (given.environment)(NAME) else { return Ok(30) };
    let seconds = text.to_str().and_then(|text| number(text.trim(), 0, MOST_SECONDS as usize));
    let refusal = || Failure::Usage(format!("{NAME}={}: must be a whole number of seconds", text.display()));
    seconds.map(|seconds| seconds as u64).ok_or_else(refusal)
}

fn local_world_size(given: &Given<'_>) -> Result<usize, Failure> {
    let expected = format!("auto, cpu, gpu or a whole number from 1 to {MOST_LOCAL_RANKS}");
    let read = |text: &str| match text {
        "auto" => Some(Ok(match gpus(given) {
            0 => cores(),
            gpus => gpus,
        })),
        "cpu" => Some(Ok(cores())),
        "gpu" => Some(match gpus(given) {
            0 => {
                Err(Failure::Usage("--nproc-per-node gpu: this machine shows no NVIDIA GPU (/dev/nvidia0)".to_owned()))
            }
            gpus => Ok(gpus),
        }),
        text => number(text, 1, MOST_LOCAL_RANKS).map(Ok),
    };
    given.value("nproc-per-node", &expected, read)?.unwrap_or(Ok(1))
}

/// GPUs that a rank would see: those that CUDA_VISIBLE_DEVICES leaves, or all of the machine.
fn gpus(given: &Given<'_>) -> usize {
    let device = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix("nvidia")?;
        number.parse::<u32>().ok()
    };
    let all = || std::fs::read_dir("/dev").map_or(0, |entries| entries.flatten().filter_map(device).count());
    match (given.environment)("CUDA_VISIBLE_DEVICES") {
        // As CUDA reads it: what follows -1, or nothing, is not visible.
        Some(list) => {
            let list = list.to_string_lossy().into_owned();
            list.split(',').map(str::trim).take_while(|device| !device.is_empty() && *device != "-1").count().min(all())
        }
        None => all(),
    }
}

fn topology(given: &Given<'_>) -> Result<Topology, Failure> {
    let expected = format!("N or MIN:MAX, whole numbers from 1 to {MOST_NODES}");
    let (least, most) = given.value("nnodes", &expected, range)?.unwrap_or((1, 1));
    let node_rank =
        given.value("node-rank", "a whole number, this node among all from 0", |text| number(text, 0, MOST_NODES))?;
    let address = given.value("master-addr", "a host or an address", word)?;
    let port = given.value("master-port", "a port from 1 to 65535", |text| number(text, 1, 65535))?;
    let port = port.and_then(|port| u16::try_from(port).ok());
    let backend = given.value("rdzv-backend", "static or c10d: nodes meet at enmasse's own store", |text| {
        ["static", "c10d"].contains(&text).then(|| text.to_owned())
    })?;
    let endpoint = given.value("rdzv-endpoint", "HOST or HOST:PORT", |text| Some(text.to_owned()))?;
    let endpoint = endpoint.filter(|text| !text.is_empty());
    let configuration = given.value("rdzv-conf", "KEY=VALUE,KEY=VALUE", pairs)?.unwrap_or_default();
    let local_address = given.value("local-addr", "a host or an address", word)?;

    if given.is_on("standalone")? {
        let one = Topology::Static(Nodes::default());
        return match most {
            1 => Ok(one),
            _ => Err(Failure::Usage(format!(
                "--standalone is one node, but --nnodes asks for {most}; leave one of them out"
            ))),
        };
    }
    let static_backend = backend.as_deref() == Some("static");
    let meet = least < most || backend.as_deref() == Some("c10d") || (endpoint.is_some() && node_rank.is_none());
    let endpoint = match endpoint.as_deref().map(host_and_port) {
        Some(None) => {
            let text = endpoint.unwrap_or_default();
            return Err(Failure::Usage(format!("--rdzv-endpoint {text}: must be HOST or HOST:PORT")));
        }
        Some(endpoint) => endpoint,
        None => None,
    };
    if most > 1 && meet && !static_backend {
        let Some((host, port)) = endpoint else {
            return Err(Failure::Usage(format!(
                "--nnodes {least}:{most}: say where the nodes meet, --rdzv-endpoint HOST:PORT, HOST being one of them"
            )));
        };
        let endpoint = (host, port.unwrap_or(DEFAULT_MEETING_PORT));
        return Ok(Topology::Meeting(Meeting { least, most, endpoint, configuration, local_address }));
    }
    if least < most {
        return Err(Failure::Usage(format!("--rdzv-backend static: --nnodes {least}:{most} must be one number")));
    }
    let rank = node_rank.unwrap_or(0);
    if rank >= most {
        return Err(Failure::Usage(format!(
            "--node-rank {rank}: must be less than --nnodes {most}: nodes are counted from 0"
        )));
    }
    let master = match (endpoint.filter(|_| most > 1 || static_backend), port) {
        (Some((host, port)), _) => Some((host, port.unwrap_or(DEFAULT_PORT))),
        (None, None) if most == 1 => None,
        (None, port) => Some((address.unwrap_or_else(|| "127.0.0.1".to_owned()), port.unwrap_or(DEFAULT_PORT))),
    };
    Ok(Topology::Static(Nodes { rank, count: most, master }))
}

/// Where nodes meet when the endpoint names no port, as in PyTorch.
const DEFAULT_MEETING_PORT: u16 = 29400;

fn range(text: &str) -> Option<(usize, usize)> {
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    let (least, most) = (number(least, 1, MOST_NODES)?, number(most, 1, MOST_NODES)?);
    (least <= most).then_some((least, most))
}

/// HOST, HOST:PORT, [ADDRESS]:PORT.
fn host_and_port(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        // An address of colons alone has no port.
        Some((host, _)) if host.contains(':') && !host.ends_with(']') => (text, None),
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (text, None),
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        Some((key.trim().to_owned(), value.trim().to_owned()))
            .filter(|(key, value)| !key.is_empty() && !value.is_empty())
    };
    text.split(',').filter(|text| !text.trim().is_empty()).map(pair).collect()
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
