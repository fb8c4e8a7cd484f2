//! Times how long many ranks take to form a group, and their first operations, on this machine alone.
//!
//! ```text
//! cargo run --release -p enmasse-comm --example forming -- [threads|processes] RANKS NODES [ALGORITHM]
//! ```
//!
//! The ranks count as those of NODES nodes, which exchange data over TCP on loopback. Rank 0 prints a JSON line: the seconds until
//! the group is formed, the median milliseconds of a barrier, of a broadcast of 1 MiB and of sums of 4 KiB and 256 KiB, and file
//! descriptors and memory (PSS) of rank 0 and, in the median, of the others: of all ranks divided by their number, where they are
//! threads.

use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use enmasse_comm::{Algorithm, GroupOptions, Rendezvous};

/// Calls of each operation.
const CALLS: usize = 5;
/// Where the others find rank 0, and the rank of a process.
const PLACE: [&str; 2] = ["FORMING_PORT", "FORMING_RANK"];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, ranks, nodes, rest @ ..] = &arguments[..] else {
        return Err("write threads or processes, the number of ranks, and that of nodes".into());
    };
    let (ranks, nodes): (usize, usize) = (ranks.parse()?, nodes.parse()?);
    let all_reduce = rest.first().map_or(Ok(Algorithm::Tree), |name| name.parse())?.into();
    let each = ranks.div_ceil(nodes.max(1)).max(1);
    let rendezvous = |rank: usize, port: u16| {
        let mut rendezvous = Rendezvous::tcp(&format!("tcp://127.0.0.1:{port}"), rank, ranks)?;
        rendezvous.node = Some((rank / each).to_string());
        // A rank that shares a core with a hundred others may not run for a while.
        rendezvous.heartbeat = Duration::from_secs(60);
        rendezvous.options = GroupOptions { all_reduce, ..GroupOptions::default() };
        Ok::<_, Box<dyn Error>>(rendezvous)
    };
    let began = Instant::now();
    let [port, rank] = PLACE.map(|name| std::env::var(name).ok());
    if let (Some(port), Some(rank)) = (port, rank) {
        return run(rendezvous(rank.parse()?, port.parse()?)?, began, 1);
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    match &**mode {
        "threads" => {
            let mut all = (0..ranks).map(|rank| rendezvous(rank, port)).collect::<Result<Vec<_>, _>>()?;
            all[0].listener = Some(listener);
            let start = |rank| std::thread::spawn(move || run(rank, began, ranks).map_err(|error| error.to_string()));
            for thread in all.into_iter().map(start).collect::<Vec<_>>() {
                thread.join().map_err(|_| "a rank panicked")??;
            }
        }
        "processes" => {
            // The port is free when it is chosen, which is enough for a benchmark.
            drop(listener);
            let start = |rank: usize| -> std::io::Result<Child> {
                let place = PLACE.into_iter().zip([port.to_string(), rank.to_string()]);
                Command::new(std::env::current_exe()?).args(&arguments).envs(place).spawn()
            };
            for mut child in (0..ranks).map(start).collect::<Result<Vec<_>, _>>()? {
                let status = child.wait()?;
                if !status.success() {
                    return Err(format!("a rank failed: {status}").into());
                }
            }
        }
        other => return Err(format!("{other:?} is neither processes nor threads").into()),
    }
    Ok(())
}

/// One rank, of so many in this process.
fn run(rendezvous: Rendezvous, began: Instant, here: usize) -> Result<(), Box<dyn Error>> {
    let group = rendezvous.join()?;
    group.barrier()?;
    let formed = began.elapsed().as_secs_f64();
    let mut memory = vec![1f32; 256 << 10];
    let barrier = median(|| Ok(group.barrier()?))?;
    let broadcast = median(|| Ok(group.broadcast(&mut memory, 0)?))?;
    let sums = [4 << 10, 256 << 10].map(|bytes| median(|| Ok(group.all_reduce(&mut memory[..bytes / 4])?)));
    let [little, much] = sums;
    let held = [std::fs::read_dir("/proc/self/fd")?.count() / here, memory_of_this_process()? / here];
    // Nobody leaves, and so changes these figures, before all have taken them.
    let mut all = vec![0; 2 * group.world_size()];
    group.all_gather(&held.map(|figure| figure as i64), &mut all)?;
    let of_others = |figure: usize| {
        let mut of_others: Vec<_> = all.iter().copied().skip(2 + figure).step_by(2).collect();
        of_others.sort_unstable();
        of_others.get(of_others.len() / 2).copied().unwrap_or_default()
    };
    if group.is_main() {
        println!(
            "{{\"ranks\":{},\"formed_s\":{formed:.3},\"barrier_ms\":{barrier:.3},\"broadcast_1m_ms\":{broadcast:.3},\
             \"sum_4k_ms\":{:.3},\"sum_256k_ms\":{:.3},\"files_of_rank_0\":{},\"files\":{},\"kib_of_rank_0\":{},\"kib\":{}}}",
            group.world_size(),
            little?,
            much?,
            held[0],
            of_others(0),
            held[1] >> 10,
            of_others(1) >> 10
        );
    }
    Ok(())
}

/// Median milliseconds of a call.
fn median(mut call: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut times = [Duration::ZERO; CALLS];
    for time in &mut times {
        let began = Instant::now();
        call()?;
        *time = began.elapsed();
    }
    times.sort_unstable();
    Ok(times[CALLS / 2].as_secs_f64() * 1e3)
}

/// Bytes that this process alone uses, with its part of what it shares.
fn memory_of_this_process() -> Result<usize, Box<dyn Error>> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("the kernel tells no memory")?;
    let kib = line.trim().trim_end_matches("kB").trim().parse::<usize>()?;
    Ok(kib << 10)
}
