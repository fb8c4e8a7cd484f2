//! Times an all-reduce between processes or threads of this machine, or between processes of several machines.
//!
//! ```text
//! cargo run --release -p enmasse-comm --example all_reduce -- [processes|threads] [RANKS] [auto|shared|tcp] [BYTES,...] [ALGORITHM,...]
//! ```
//!
//! Starts its own ranks (or uses torchrun's variables if set), and prints one JSON line per algorithm and size: the median and least
//! milliseconds of rank 0, calls one after another, and bus_gb_per_second = 2 (W-1)/W x bytes / median.

use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use enmasse_comm::{Algorithm, Group, Rendezvous, TransportChoice};

/// Time spent on each size.
const BUDGET: Duration = Duration::from_secs(3);
const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |i: usize, default| arguments.get(i).map_or(default, String::as_str);
    let mode = word(0, "processes");
    let ranks = word(1, "2").parse::<usize>()?;
    let transport = word(2, "auto");
    let sizes = match arguments.get(3) {
        Some(list) => list.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?,
        None => SIZES.to_vec(),
    };
    let algorithms = match arguments.get(4) {
        Some(list) => list.split(',').map(str::parse).collect::<Result<Vec<Algorithm>, _>>()?,
        None => vec![Algorithm::Tree],
    };
    if std::env::var_os("RANK").is_some() {
        let mut rendezvous = Rendezvous::from_environment()?;
        rendezvous.transport = match transport {
            "tcp" => TransportChoice::Tcp,
            "shared" => TransportChoice::Shared,
            _ => TransportChoice::Auto,
        };
        return measure(&rendezvous.join()?, mode, transport, &sizes, &algorithms);
    }
    match mode {
        "threads" => {
            let threads: Vec<_> = Group::threads(ranks)?
                .into_iter()
                .map(|group| {
                    let (sizes, algorithms) = (sizes.clone(), algorithms.clone());
                    std::thread::spawn(move || {
                        measure(&group, "threads", "shared", &sizes, &algorithms).map_err(|e| e.to_string())
                    })
                })
                .collect();
            for thread in threads {
                thread.join().map_err(|_| "a rank panicked")??;
            }
        }
        "processes" => {
            // The port is free when it is chosen, which is enough for a benchmark; `enmasse launch` passes on the open
            // socket.
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
            let start = |rank: usize| -> std::io::Result<Child> {
                let variables = [("RANK", rank.to_string()), ("WORLD_SIZE", ranks.to_string())];
                let address = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
                Command::new(std::env::current_exe()?).args(&arguments).envs(variables).envs(address).spawn()
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

fn measure(
    group: &Group,
    mode: &str,
    transport: &str,
    sizes: &[usize],
    algorithms: &[Algorithm],
) -> Result<(), Box<dyn Error>> {
    let world_size = group.world_size();
    let report = |op: &str, bytes: usize, mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let least = times[0];
        let calls = times.len();
        let bus = 2.0 * (world_size - 1) as f64 / world_size as f64 * bytes as f64 / median / 1e6;
        if group.rank() == 0 {
            println!(
                "{{\"op\":\"{op}\",\"ranks\":\"{mode}\",\"transport\":\"{transport}\",\"world_size\":{world_size},\
                 \"bytes\":{bytes},\"median_ms\":{median:.4},\"min_ms\":{least:.4},\"bus_gb_per_second\":{bus:.3},\
                 \"calls\":{calls}}}"
            );
        }
    };
    for (&algorithm, &bytes) in
        algorithms.iter().flat_map(|algorithm| sizes.iter().map(move |bytes| (algorithm, bytes)))
    {
        let mut data = vec![0f32; bytes / 4];
        let times = time(group, || group.all_reduce_by(&mut data, algorithm).map_err(Into::into))?;
        // The tree is what it has always been named.
        let name = if algorithm == Algorithm::Tree { "all_reduce" } else { algorithm.name() };
        report(name, bytes, times);
    }
    report("barrier", 0, time(group, || group.barrier().map_err(Into::into))?);
    Ok(())
}

/// Milliseconds of each call. All ranks make the same number of calls, which rank 0 chooses to fit the budget.
fn time(group: &Group, mut call: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<Vec<f64>, Box<dyn Error>> {
    for _ in 0..3 {
        call()?;
    }
    let start = Instant::now();
    for _ in 0..5 {
        call()?;
    }
    let mut calls = [(BUDGET.as_secs_f64() / start.elapsed().as_secs_f64() * 5.0).clamp(10.0, 2000.0) as i64];
    group.broadcast(&mut calls, 0)?;
    (0..calls[0])
        .map(|_| {
            let start = Instant::now();
            call()?;
            Ok(start.elapsed().as_secs_f64() * 1e3)
        })
        .collect()
}
