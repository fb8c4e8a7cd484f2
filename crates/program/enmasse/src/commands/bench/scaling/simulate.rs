//! What several devices would take, by arithmetic: the measured time of each instruction on one device, the places in the plan
//! at which sums of gradients start and end, and a model of the links that carry them.
//!
//! Sums run one after another beside the instructions, as in a real step. A sum over n devices that share a link of bandwidth w
//! moves 2 (n - 1) / n of its bytes through each device's link, which holds for rings and for our own transport. The part
//! within a node and the part between nodes overlap, so the slower one counts. Each sum also costs 2 ⌈log2 n⌉ latencies.
//!
//! With SyncBatchNorm each batch norm also waits for two exchanges, after the sums that have begun: in forward all devices gather
//! the statistics of all, in backward they sum.

use std::time::Duration;

use enmasse_graph::ops::{AllReduceStart, AllReduceWait};
use enmasse_graph::{Node, Op, Plan};

/// The machines of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    pub nodes: usize,
    /// Devices of a node.
    pub devices: usize,
    /// Bytes per second between a node and the others, in each direction.
    link: f64,
    /// Bytes per second between a device and the others of its node, in each direction.
    bus: f64,
    /// Seconds that a message takes in addition.
    latency: f64,
}

impl Cluster {
    /// Reads `nodes=N,gpus=N,link=RATE,bus=RATE,latency=TIME`. One node needs no link, and one device on each node no bus.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut cluster = Cluster { nodes: 1, devices: 1, link: f64::INFINITY, bus: f64::INFINITY, latency: 20e-6 };
        for part in text.split(',') {
            let wrong = |why: &str| format!("{part}: {why}");
            let (key, value) = part.split_once('=').ok_or_else(|| wrong("must be KEY=VALUE"))?;
            let count = || value.parse().ok().filter(|count| (1..=1_000_000).contains(count));
            match key.trim() {
                "nodes" => cluster.nodes = count().ok_or_else(|| wrong("must be a whole number, 1 or more"))?,
                "gpus" | "devices" => {
                    cluster.devices = count().ok_or_else(|| wrong("must be a whole number, 1 or more"))?;
                }
                "link" => cluster.link = rate(value).ok_or_else(|| wrong(RATES))?,
                "bus" => cluster.bus = rate(value).ok_or_else(|| wrong(RATES))?,
                "latency" => {
                    cluster.latency = measure(value, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)])
                        .ok_or_else(|| wrong("must be a time, such as 20us"))?;
                }
                _ => return Err(wrong("there are nodes, gpus, link, bus and latency")),
            }
        }
        if cluster.nodes > 1 && cluster.link.is_infinite() {
            return Err("several nodes need the rate of the link between them, such as link=25Gbit".to_owned());
        }
        if cluster.devices > 1 && cluster.bus.is_infinite() {
            return Err("several devices on a node need the rate between them, such as bus=50GB".to_owned());
        }
        Ok(cluster)
    }

    /// The sizes to predict, each twice the one before: nodes, and devices of each. The last one is the cluster itself.
    pub fn sizes(&self) -> Vec<Cluster> {
        let doubled =
            |most: usize| std::iter::successors(Some(2), |count| Some(count * 2)).take_while(move |n| *n < most);
        let within = doubled(self.devices).chain((self.devices > 1).then_some(self.devices));
        let between = doubled(self.nodes).chain((self.nodes > 1).then_some(self.nodes));
        let within = within.map(|devices| Cluster { nodes: 1, devices, ..*self });
        within.chain(between.map(|nodes| Cluster { nodes, ..*self })).collect()
    }

    pub fn device_count(&self) -> usize {
        self.nodes * self.devices
    }

    /// Seconds until each device has the bytes of all.
    fn gather(&self, bytes: f64) -> f64 {
        let all = self.device_count();
        let within = (all - 1) as f64 * bytes / self.bus;
        let between = (all - self.devices) as f64 * bytes / self.link;
        within.max(between) + f64::from(all.next_power_of_two().trailing_zeros()) * self.latency
    }

    /// Seconds of a sum.
    fn sum(&self, bytes: f64) -> f64 {
        let moved = |count: usize, rate: f64| 2.0 * (count - 1) as f64 / count as f64 * bytes / rate;
        let hops = 2 * self.device_count().next_power_of_two().trailing_zeros();
        moved(self.devices, self.bus).max(moved(self.nodes, self.link)) + f64::from(hops) * self.latency
    }
}

const RATES: &str = "must be a rate, such as 25Gbit, 100Mbit or 50GB, which are per second";

/// Bytes per second.
fn rate(text: &str) -> Option<f64> {
    let text = text.strip_suffix("/s").unwrap_or(text);
    measure(text, &[("Gbit", 1e9 / 8.0), ("Mbit", 1e6 / 8.0), ("GB", 1e9), ("MB", 1e6)])
}

/// A number above zero with one of these units.
fn measure(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number * unit)
}

/// A piece of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Piece {
    /// Instructions, in seconds.
    Compute(f64),
    /// The sum of a bucket starts: its number, and its bytes.
    Start(usize, f64),
    /// The step waits for a bucket.
    Wait(usize),
    /// The step waits until all devices have the bytes of each.
    Gather(f64),
    /// The step waits for the sum of these bytes.
    Sum(f64),
}

/// A step of several devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline(Vec<Piece>);

/// Seconds of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub total: f64,
    /// In which nothing is computed, as sums are awaited.
    pub waited: f64,
}

impl Timeline {
    /// The step of `plan`, whose instructions take `times` on one device, where there are no sums. `total` is what a whole step
    /// takes there; measuring instructions changes it.
    pub fn new(plan: &Plan, times: &[Duration], total: f64) -> Self {
        let sum: f64 = times.iter().map(Duration::as_secs_f64).sum();
        let mut times = times.iter().map(|time| time.as_secs_f64() / sum * total);
        let bytes = |node: &Node| -> f64 {
            let values = node.inputs.iter().map(|&id| plan.shape(id).elements() * plan.value(id).dtype.size());
            values.sum::<usize>() as f64
        };
        let piece = |node: &Node| match node.op {
            Op::AllReduceStart(AllReduceStart { bucket }) => {
                let bytes = plan.buckets.get(bucket).map_or(0, |bucket| bucket.bytes().len());
                Piece::Start(bucket, bytes as f64)
            }
            Op::AllReduceWait(AllReduceWait { bucket }) => Piece::Wait(bucket),
            Op::SyncStatistics(_) => Piece::Gather(bytes(node)),
            Op::SyncSum(_) => Piece::Sum(bytes(node)),
            _ => Piece::Compute(times.next().unwrap_or(0.0)),
        };
        Timeline(plan.instructions.iter().map(piece).collect())
    }

    /// The step on a cluster.
    pub fn run(&self, cluster: &Cluster) -> Step {
        // Times at which the device, and all sums so far, are done.
        let (mut now, mut summed, mut waited) = (0.0_f64, 0.0_f64, 0.0);
        let mut ends = Vec::new();
        for piece in &self.0 {
            match *piece {
                Piece::Compute(seconds) => now += seconds,
                Piece::Start(bucket, bytes) => {
                    summed = summed.max(now) + cluster.sum(bytes);
                    ends.push((bucket, summed));
                }
                Piece::Gather(bytes) | Piece::Sum(bytes) => {
                    let seconds = match piece {
                        Piece::Gather(_) => cluster.gather(bytes),
                        _ => cluster.sum(bytes),
                    };
                    summed = summed.max(now) + seconds;
                    waited += summed - now;
                    now = summed;
                }
                Piece::Wait(bucket) => {
                    let end = ends.iter().find(|(started, _)| *started == bucket).map_or(now, |(_, end)| *end);
                    waited += (end - now).max(0.0);
                    now = now.max(end);
                }
            }
        }
        Step { total: now, waited }
    }
}

#[cfg(test)]
mod tests {
    use enmasse_graph::{CompileOptions, Conv, Tensor, compile};

    use super::*;

    #[test]
    fn clusters_as_text() {
        let check = |text: &str, expected: Result<(usize, usize, f64, f64, f64), &str>| match Cluster::parse(text) {
            Ok(Cluster { nodes, devices, link, bus, latency }) => {
                assert_eq!(Ok((nodes, devices, link, bus, latency)), expected);
            }
            Err(error) => assert_eq!(Err(error.as_str()), expected.map(|_| ()), "{text}"),
        };
        let none = f64::INFINITY;
        check("nodes=2,link=1Gbit", Ok((2, 1, 125e6, none, 20e-6)));
        check("nodes=128,gpus=8,link=25Gbit/s,bus=300GB,latency=2ms", Ok((128, 8, 25e9 / 8.0, 3e11, 2e-3)));
        check("devices=4,bus=500MB", Ok((1, 4, none, 5e8, 20e-6)));
        check("nodes=2", Err("several nodes need the rate of the link between them, such as link=25Gbit"));
        check("gpus=2", Err("several devices on a node need the rate between them, such as bus=50GB"));
        check("nodes=0", Err("nodes=0: must be a whole number, 1 or more"));
        check("nodes", Err("nodes: must be KEY=VALUE"));
        check("hosts=2", Err("hosts=2: there are nodes, gpus, link, bus and latency"));
        check("link=fast", Err("link=fast: must be a rate, such as 25Gbit, 100Mbit or 50GB, which are per second"));
        check("link=-1Gbit", Err("link=-1Gbit: must be a rate, such as 25Gbit, 100Mbit or 50GB, which are per second"));
        check("latency=5", Err("latency=5: must be a time, such as 20us"));
    }

    #[test]
    fn sizes_double_up_to_the_cluster() {
        let check = |text: &str, expected: &[(usize, usize)]| {
            let sizes = Cluster::parse(text).unwrap().sizes();
            let found: Vec<_> = sizes.iter().map(|size| (size.nodes, size.devices)).collect();
            assert_eq!(found, expected, "{text}");
        };
        check("nodes=1", &[]);
        check("nodes=3,link=1GB", &[(2, 1), (3, 1)]);
        check("nodes=4,gpus=8,link=1GB,bus=1GB", &[(1, 2), (1, 4), (1, 8), (2, 8), (4, 8)]);
    }

    #[test]
    fn sums_hide_under_the_instructions_that_follow_their_start() {
        // Two devices: a sum of b bytes moves b, here in b seconds.
        let cluster = Cluster { nodes: 2, devices: 1, link: 1.0, bus: f64::INFINITY, latency: 0.0 };
        let check = |pieces: &[Piece], total: f64, waited: f64| {
            assert_eq!(Timeline(pieces.to_vec()).run(&cluster), Step { total, waited }, "{pieces:?}");
        };
        use Piece::{Compute, Gather, Start, Sum, Wait};
        check(&[Compute(3.0)], 3.0, 0.0);
        check(&[Compute(3.0), Start(0, 2.0), Wait(0)], 5.0, 2.0);
        check(&[Compute(3.0), Start(0, 2.0), Compute(5.0), Wait(0), Compute(1.0)], 9.0, 0.0);
        // The second sum begins after the first.
        check(&[Compute(1.0), Start(0, 4.0), Compute(1.0), Start(1, 2.0), Wait(0), Wait(1)], 7.0, 5.0);
        // It begins when its gradients are there.
        check(&[Start(0, 1.0), Compute(4.0), Start(1, 2.0), Wait(0), Wait(1)], 6.0, 2.0);
        // An exchange that the step waits for comes after the sums that have begun.
        check(&[Compute(1.0), Gather(2.0), Compute(1.0)], 4.0, 2.0);
        check(&[Compute(1.0), Start(0, 4.0), Compute(1.0), Sum(2.0), Compute(1.0), Wait(0)], 8.0, 5.0);
    }

    #[test]
    fn links_of_a_gathering() {
        let check = |nodes: usize, devices: usize, expected: f64| {
            let cluster = Cluster { nodes, devices, link: 10.0, bus: 100.0, latency: 1.0 };
            assert!((cluster.gather(60.0) - expected).abs() < 1e-12, "{nodes} x {devices}");
        };
        check(1, 1, 0.0);
        check(1, 2, 0.6 + 1.0);
        check(2, 1, 6.0 + 1.0);
        // A node's link brings it the statistics of four devices.
        check(3, 2, 24.0 + 3.0);
    }

    #[test]
    fn each_joint_batch_norm_exchanges_twice() {
        let net = |x: Tensor| {
            let x = x.conv2d("a", Conv::new(8, 3)).batch_norm("bn_a").relu();
            x.conv2d("b", Conv::new(6, 3)).batch_norm("bn_b").flatten().linear("fc", 10)
        };
        let check = |sync_batch_norm: bool, expected: &[Piece]| {
            let options = CompileOptions { shards: 2, sync_batch_norm, ..CompileOptions::new("net", 2, 8, 10) };
            let plan = compile(&net, &options).unwrap().train.unwrap();
            let times = vec![Duration::from_secs(1); plan.instructions.len()];
            let Timeline(pieces) = Timeline::new(&plan, &times, 1.0);
            let exchanges = pieces.into_iter().filter(|piece| matches!(piece, Piece::Gather(_) | Piece::Sum(_)));
            assert_eq!(exchanges.collect::<Vec<_>>(), expected);
        };
        check(false, &[]);
        let two = |channels: usize| (2 * channels * size_of::<f32>()) as f64;
        check(true, &[Piece::Gather(two(8)), Piece::Gather(two(6)), Piece::Sum(two(6)), Piece::Sum(two(8))]);
    }

    #[test]
    fn links_of_a_sum() {
        let check = |nodes: usize, devices: usize, expected: f64| {
            let cluster = Cluster { nodes, devices, link: 10.0, bus: 100.0, latency: 1.0 };
            assert!((cluster.sum(60.0) - expected).abs() < 1e-12, "{nodes} x {devices}");
        };
        check(1, 1, 0.0);
        check(1, 2, 0.6 + 2.0);
        check(2, 1, 6.0 + 2.0);
        check(3, 2, 8.0 + 6.0);
        check(1, 3, 0.8 + 4.0);
    }
}
