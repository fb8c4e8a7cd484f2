//! The roofline of a step as text: each instruction in order, then the sums by kind, then the step.

use std::fmt::Write;

use enmasse_cuda::CudaError;
use enmasse_cuda::roofline::{Bound, Gpu, Time};
use enmasse_graph::Plan;

/// The instructions of one kind.
struct OpTotal {
    name: &'static str,
    count: usize,
    of_matmuls: usize,
    seconds: f64,
}

/// The roofline of a plan on a GPU. The line of a kind has the images per second without it, which is the most that fusing it
/// into others can give, and the number of its instructions that matmuls bound.
pub fn table(plan: &Plan, gpu: &Gpu) -> Result<String, CudaError> {
    let times = gpu.roofline(plan)?;
    let mut text = format!("{:>9} {:>9} {:>9}  {:<8}\n", "us", "MB", "GFLOP", "bound");
    let mut kinds: Vec<OpTotal> = Vec::new();
    for ((node, time), index) in plan.instructions.iter().zip(times).zip(0..) {
        let Some(Time { work, bound, seconds }) = time else { continue };
        let flops = if work.flops > 0 { format!("{:.3}", work.flops as f64 / 1e9) } else { String::new() };
        let (micros, megabytes, bound_name) = (seconds * 1e6, work.bytes as f64 / 1e6, name(bound));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{micros:>9.2} {megabytes:>9.3} {flops:>9}  {bound_name:<8} {index:<4} {} {}",
            node.op.name(),
            node.layer
        );
        let of_matmuls = usize::from(bound == Bound::Matmuls);
        match kinds.iter_mut().find(|kind| kind.name == node.op.name()) {
            Some(kind) => {
                kind.count += 1;
                kind.of_matmuls += of_matmuls;
                kind.seconds += seconds;
            }
            None => kinds.push(OpTotal { name: node.op.name(), count: 1, of_matmuls, seconds }),
        }
    }
    kinds.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let total: f64 = kinds.iter().map(|kind| kind.seconds).sum();
    let images = |seconds: f64| if seconds > 0.0 { format!("{:.0}", plan.batch as f64 / seconds) } else { "-".into() };
    let _ = writeln!(text, "\n{:>9} {:>6} {:>9} {:>6} {:>9}  kind", "us", "%", "without", "count", "matmuls");
    for OpTotal { name, count, of_matmuls, seconds } in &kinds {
        let (micros, percent, without) = (seconds * 1e6, 100.0 * seconds / total, images(total - seconds));
        let _ = writeln!(text, "{micros:>9.1} {percent:>6.1} {without:>9} {count:>6} {of_matmuls:>9}  {name}");
    }
    let _ = write!(
        text,
        "\nroofline of the step on an {} with {} GB/s: at least {:.3} ms, at most {} images/s; the cost of launches is not counted",
        gpu.name,
        gpu.gigabytes,
        total * 1e3,
        images(total),
    );
    Ok(text)
}

fn name(bound: Bound) -> &'static str {
    match bound {
        Bound::Memory => "memory",
        Bound::Matmuls => "matmuls",
    }
}
