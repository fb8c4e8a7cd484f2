//! The roofline of a step as text: each instruction in order, then the sums by kind, then the step.

use std::fmt::Write;

use enmasse_device::{Bound, LeastTime, Roofline};
use enmasse_graph::{Cost, Plan};

/// The instructions of one kind.
struct KindTotal {
    name: String,
    count: usize,
    of_matmuls: usize,
    seconds: f64,
}

/// The roofline of a plan whose instructions have these algorithms; "" where there is no choice. The line of a kind has the images
/// per second without it, which is the most that fusing it into others can give, and the number of its instructions that matmuls
/// bound.
pub fn table(plan: &Plan, roofline: &Roofline, algorithms: &[String]) -> String {
    let mut text = format!("{:>9} {:>9} {:>9}  {:<8}\n", "us", "MB", "GFLOP", "bound");
    let mut kinds: Vec<KindTotal> = Vec::new();
    let instructions = plan.instructions.iter().zip(algorithms).zip(&roofline.times).zip(0..);
    for (((node, algorithm), time), index) in instructions {
        let Some(LeastTime { work, bound, seconds }) = time else { continue };
        let kind = format!("{} {algorithm}", node.op.name()).trim_end().to_owned();
        let flops = if work.flops > 0 { format!("{:.3}", work.flops as f64 / 1e9) } else { String::new() };
        let micros = seconds * 1e6;
        let megabytes = work.bytes as f64 / 1e6;
        let bound_name = name(*bound);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{micros:>9.2} {megabytes:>9.3} {flops:>9}  {bound_name:<8} {index:<4} {kind} {}",
            node.layer
        );
        let of_matmuls = usize::from(*bound == Bound::Matmuls);
        match kinds.iter_mut().find(|known| known.name == kind) {
            Some(known) => {
                known.count += 1;
                known.of_matmuls += of_matmuls;
                known.seconds += seconds;
            }
            None => kinds.push(KindTotal { name: kind, count: 1, of_matmuls, seconds: *seconds }),
        }
    }
    kinds.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let total: f64 = kinds.iter().map(|kind| kind.seconds).sum();
    let images = |seconds: f64| if seconds > 0.0 { format!("{:.0}", plan.batch as f64 / seconds) } else { "-".into() };
    let _ = writeln!(text, "\n{:>9} {:>6} {:>9} {:>6} {:>9}  kind", "us", "%", "without", "count", "matmuls");
    for KindTotal { name, count, of_matmuls, seconds } in &kinds {
        let micros = seconds * 1e6;
        let percent = 100.0 * seconds / total;
        let without = images(total - seconds);
        let _ = writeln!(text, "{micros:>9.1} {percent:>6.1} {without:>9} {count:>6} {of_matmuls:>9}  {name}");
    }
    let work = roofline.times.iter().flatten().fold(Cost::default(), |sum, time| sum.plus(time.work));
    let (megabytes, gflop) = (work.bytes as f64 / 1e6, work.flops as f64 / 1e9);
    let _ = writeln!(text, "\nthe step moves {megabytes:.1} MB, and multiplies {gflop:.1} GFLOP");
    let _ = write!(
        text,
        "roofline of the step on {}: at least {:.3} ms, at most {} images/s; {}",
        roofline.device,
        total * 1e3,
        images(total),
        roofline.not_counted,
    );
    text
}

fn name(bound: Bound) -> &'static str {
    match bound {
        Bound::Memory => "memory",
        Bound::Matmuls => "matmuls",
    }
}
