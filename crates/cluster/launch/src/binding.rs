//! Which processor cores each rank of a node may run on.

use std::fs;
use std::num::NonZero;

use rustix::thread::{CpuSet, sched_getaffinity};

/// How cores are divided among the ranks of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// No binding: the kernel places every rank.
    #[default]
    Free,
    /// Each rank has its own share. Adjacent ranks share a memory node, and the threads of a core stay together.
    Exclusive,
    /// All cores of a memory node, which ranks may share.
    Node,
    /// All cores of a socket.
    Socket,
    /// All cores that share a last-level cache.
    CoreComplex,
}

impl Binding {
    /// The bindings by torchrun's names. `none` leaves placement to the kernel, as torchrun does.
    pub const NAMES: [(&str, Binding); 5] = [
        ("exclusive", Binding::Exclusive),
        ("node", Binding::Node),
        ("socket", Binding::Socket),
        ("core-complex", Binding::CoreComplex),
        ("none", Binding::Free),
    ];
}

/// One processor as the kernel numbers them, and the domains that it shares with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Processor {
    // In this order, adjacent processors share the most.
    socket: usize,
    node: usize,
    complex: usize,
    core: usize,
    number: usize,
}

/// A rank's part of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuShare {
    /// Numbers of the processors.
    pub processors: Vec<usize>,
    /// Threads to compute with, if the processors are shared with other ranks, or the machine with other programs.
    pub threads: usize,
}

impl CpuShare {
    /// The kernel's representation.
    pub(crate) fn set(&self) -> CpuSet {
        let mut set = CpuSet::new();
        self.processors.iter().for_each(|&number| set.set(number));
        set
    }
}

/// The share of each rank; `None` if ranks are not bound. A single rank has all processors, and more ranks than
/// processors would wait for each other.
pub(crate) fn shares(binding: Binding, ranks: usize) -> Option<Vec<CpuShare>> {
    let allowed = sched_getaffinity(None).ok()?;
    let numbers = (0..CpuSet::MAX_CPU).filter(|&number| allowed.is_set(number));
    let nodes = nodes();
    let mut processors: Vec<Processor> = numbers.map(|number| processor(number, &nodes)).collect();
    processors.sort_unstable();
    // A container may be limited to less time than it has processors.
    let usable = std::thread::available_parallelism().map_or(1, NonZero::get);
    deal(&processors, usable, binding, ranks)
}

fn deal(processors: &[Processor], usable: usize, binding: Binding, ranks: usize) -> Option<Vec<CpuShare>> {
    if ranks < 2 || processors.len() < ranks || binding == Binding::Free {
        return None;
    }
    let domain = |processor: &Processor| match binding {
        Binding::Node => processor.node,
        Binding::Socket => processor.socket,
        Binding::CoreComplex => processor.complex,
        Binding::Exclusive | Binding::Free => processor.core,
    };
    // Processors of one domain are adjacent. With fewer cores than ranks, the cores' threads are dealt out one by one.
    let mut groups: Vec<&[Processor]> = processors.chunk_by(|a, b| domain(a) == domain(b)).collect();
    if binding == Binding::Exclusive && groups.len() < ranks {
        groups = processors.chunks(1).collect();
    }
    let count = groups.len();
    let share = |rank: usize| {
        let first = rank * count / ranks;
        let end = (rank + 1) * count / ranks;
        let own = groups.get(first..end.max(first + 1)).unwrap_or_default();
        // Ranks whose share begins with the same group share that group.
        let sharers = (0..ranks).filter(|other| other * count / ranks == first).count().max(1);
        let processors: Vec<usize> = own.iter().copied().flatten().map(|processor| processor.number).collect();
        let threads = (processors.len() / sharers).min(usable / ranks).max(1);
        CpuShare { processors, threads }
    };
    Some((0..ranks).map(share).collect())
}

fn processor(number: usize, nodes: &[Vec<usize>]) -> Processor {
    let read = |name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{number}/{name}");
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let least = |name: &str| read(name).and_then(|text| list(&text).into_iter().min());
    Processor {
        socket: read("topology/physical_package_id").and_then(|text| text.parse().ok()).unwrap_or(0),
        node: nodes.iter().position(|node| node.contains(&number)).unwrap_or(0),
        complex: least("cache/index3/shared_cpu_list").unwrap_or(0),
        core: least("topology/thread_siblings_list").unwrap_or(number),
        number,
    }
}

/// The processors of each memory node, by its number.
fn nodes() -> Vec<Vec<usize>> {
    let folder = "/sys/devices/system/node";
    let online = fs::read_to_string(format!("{folder}/online")).unwrap_or_default();
    let processors = |node: usize| fs::read_to_string(format!("{folder}/node{node}/cpulist")).unwrap_or_default();
    list(&online).into_iter().map(|node| list(&processors(node))).collect()
}

/// Numbers in the kernel's notation, `0-3,8`. Malformed parts are skipped.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.trim().split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (last < CpuSet::MAX_CPU).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists() {
        let check = |text: &str, expected: &[usize]| assert_eq!(list(text), expected, "{text}");
        check("0-3,8\n", &[0, 1, 2, 3, 8]);
        check("5", &[5]);
        check("", &[]);
        check("3-1,x,0-99999999,2", &[2]);
    }

    /// The processors of a number of sockets, each with a number of cores of two threads. They are numbered as kernels
    /// do, all first threads before all second ones. A socket is a memory node with two caches.
    fn machine(sockets: usize, cores: usize) -> Vec<Processor> {
        let all = sockets * cores;
        let processor = |number: usize| {
            let core = number % all;
            Processor { socket: core / cores, node: core / cores, complex: core / (cores / 2).max(1), core, number }
        };
        let mut processors: Vec<_> = (0..2 * all).map(processor).collect();
        processors.sort_unstable();
        processors
    }

    #[test]
    fn machines() {
        let check = |binding: Binding, ranks: usize, expected: Option<&[(&str, usize)]>| {
            let shares = deal(&machine(2, 4), 16, binding, ranks);
            let expected = expected.map(|expected| {
                let share = |&(processors, threads): &(&str, usize)| CpuShare { processors: list(processors), threads };
                expected.iter().map(share).collect::<Vec<_>>()
            });
            let sorted = shares.map(|mut shares| {
                shares.iter_mut().for_each(|share| share.processors.sort_unstable());
                shares
            });
            assert_eq!(sorted, expected, "{binding:?} {ranks}");
        };
        check(Binding::Free, 2, None);
        check(Binding::Exclusive, 1, None);
        check(Binding::Exclusive, 17, None);
        check(Binding::Exclusive, 2, Some(&[("0-3,8-11", 8), ("4-7,12-15", 8)]));
        check(Binding::Exclusive, 4, Some(&[("0-1,8-9", 4), ("2-3,10-11", 4), ("4-5,12-13", 4), ("6-7,14-15", 4)]));
        check(Binding::Exclusive, 3, Some(&[("0-1,8-9", 4), ("2-4,10-12", 5), ("5-7,13-15", 5)]));
        check(Binding::Node, 2, Some(&[("0-3,8-11", 8), ("4-7,12-15", 8)]));
        check(Binding::Node, 4, Some(&[("0-3,8-11", 4), ("0-3,8-11", 4), ("4-7,12-15", 4), ("4-7,12-15", 4)]));
        check(Binding::Socket, 3, Some(&[("0-3,8-11", 4), ("0-3,8-11", 4), ("4-7,12-15", 5)]));
        check(Binding::CoreComplex, 4, Some(&[("0-1,8-9", 4), ("2-3,10-11", 4), ("4-5,12-13", 4), ("6-7,14-15", 4)]));
    }

    #[test]
    fn a_quota_limits_threads() {
        let threads = |usable| {
            deal(&machine(1, 4), usable, Binding::Exclusive, 2).unwrap().into_iter().map(|share| share.threads)
        };
        assert_eq!(threads(4).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(threads(1).collect::<Vec<_>>(), [1, 1]);
    }

    proptest! {
        #[test]
        fn exclusive_shares_are_a_partition(sockets in 1usize..4, cores in 1usize..9, ranks in 2usize..20) {
            let machine = machine(sockets, cores);
            let Some(shares) = deal(&machine, usize::MAX, Binding::Exclusive, ranks) else {
                prop_assert!(machine.len() < ranks);
                return Ok(());
            };
            let mut dealt: Vec<usize> = shares.iter().flat_map(|share| share.processors.clone()).collect();
            dealt.sort_unstable();
            prop_assert_eq!(dealt, (0..machine.len()).collect::<Vec<_>>());
            prop_assert!(shares.iter().all(|share| share.threads == share.processors.len()));
        }
    }
}
