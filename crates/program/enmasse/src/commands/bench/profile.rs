//! The profile of a step: the time of each instruction, and the throughput it reaches.

use std::fmt::Write;

use enmasse_device::{Device, DeviceError, Program};
use enmasse_graph::{Cost, Mode, Node, Plan};
use serde_json::{Value, json};

/// Number of instructions listed; the rest is only in the sums.
const LISTED: usize = 40;

/// One instruction, or several of one kind.
struct ProfileEntry {
    name: String,
    count: usize,
    seconds: f64,
    cost: Cost,
    /// The least seconds by the device's limits; `None` if they are not known.
    least: Option<f64>,
}

impl ProfileEntry {
    /// The share of the roofline that it reaches, in percent.
    fn of_roofline(&self) -> Option<f64> {
        self.least.filter(|_| self.seconds > 0.0).map(|least| 100.0 * least / self.seconds)
    }
}

/// The average times of a step's instructions.
pub struct Profile {
    entries: Vec<ProfileEntry>,
    kinds: Vec<ProfileEntry>,
}

impl Profile {
    /// The profile of `steps` steps that a program has run.
    pub fn new(program: &dyn Program, device: &dyn Device, mode: Mode, steps: usize) -> Result<Self, DeviceError> {
        let Some(plan) = program.plans().plan(mode) else {
            return Ok(Profile { entries: Vec::new(), kinds: Vec::new() });
        };
        let algorithms = device.algorithms(plan)?;
        let times = program.profile(mode);
        // A roofline is that of one shard.
        let roofline = if plan.shards == 1 { device.roofline(plan)? } else { None };
        let least = |index: usize| Some(roofline.as_ref()?.times[index].map_or(0.0, |time| time.seconds));
        let (mut entries, mut kinds): (Vec<ProfileEntry>, Vec<ProfileEntry>) = (Vec::new(), Vec::new());
        for (((node, algorithm), time), index) in plan.instructions.iter().zip(&algorithms).zip(times).zip(0..) {
            let kind = format!("{} {algorithm}", node.op.name());
            let seconds = time.as_secs_f64() / steps.max(1) as f64;
            let cost = plan.cost(node);
            let name = format!("{kind:<36} {:<14} {}", shape(plan, node), node.layer);
            entries.push(ProfileEntry { name, count: 1, seconds, cost, least: least(index) });
            match kinds.iter_mut().find(|entry| entry.name == kind) {
                Some(entry) => {
                    entry.count += 1;
                    entry.seconds += seconds;
                    entry.cost = entry.cost.plus(cost);
                    entry.least = entry.least.zip(least(index)).map(|(sum, more)| sum + more);
                }
                None => kinds.push(ProfileEntry { name: kind, count: 1, seconds, cost, least: least(index) }),
            }
        }
        [&mut entries, &mut kinds].into_iter().for_each(|list| list.sort_by(|a, b| b.seconds.total_cmp(&a.seconds)));
        Ok(Profile { entries, kinds })
    }

    fn total(&self) -> f64 {
        self.kinds.iter().map(|entry| entry.seconds).sum()
    }

    /// One object per instruction, the longest first.
    pub fn json(&self) -> Value {
        let total = self.total();
        let object = |entry: &ProfileEntry| {
            json!({
                "instruction": entry.name.split_whitespace().collect::<Vec<_>>().join(" "),
                "ms": entry.seconds * 1e3,
                "percent": 100.0 * entry.seconds / total,
                "gflops": rate(entry.cost.flops, entry.seconds),
                "gigabytes_per_second": rate(entry.cost.bytes, entry.seconds),
                "percent_of_roofline": entry.of_roofline(),
            })
        };
        self.entries.iter().map(object).collect()
    }

    /// Two tables: by kind, and the longest instructions. GFLOP/s count direct convolutions, even if another algorithm
    /// multiplies less; GB/s count each operand once. The roofline counts what the algorithm multiplies.
    pub fn table(&self) -> String {
        let total = self.total();
        let mut text = format!("{:>9} {:>6} {:>9} {:>7} {:>10}\n", "ms", "%", "GFLOP/s", "GB/s", "% roofline");
        let mut line = |entry: &ProfileEntry, count: &str| {
            let seconds = entry.seconds;
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{:>9.3} {:>6.1} {:>9} {:>7.1} {:>10}  {}{count}",
                seconds * 1e3,
                100.0 * seconds / total,
                if entry.cost.flops > 0 { format!("{:.0}", rate(entry.cost.flops, seconds)) } else { String::new() },
                rate(entry.cost.bytes, seconds),
                entry.of_roofline().map_or(String::new(), |share| format!("{share:.0}")),
                entry.name,
            );
        };
        self.kinds.iter().for_each(|entry| line(entry, &format!(" x {}", entry.count)));
        let sum = ProfileEntry {
            name: "all instructions\n".into(),
            count: 1,
            seconds: total,
            cost: self.kinds.iter().map(|entry| entry.cost).fold(Cost::default(), Cost::plus),
            least: self.kinds.iter().map(|entry| entry.least).sum(),
        };
        line(&sum, "");
        self.entries.iter().take(LISTED).for_each(|entry| line(entry, ""));
        text
    }
}

/// Billions per second; 0 if no time was measured.
fn rate(amount: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount as f64 / seconds / 1e9 } else { 0.0 }
}

/// The shape of the first operand, without the batch.
fn shape(plan: &Plan, node: &Node) -> String {
    let sizes = node.inputs.first().map(|&id| plan.shape(id).iter().skip(1).map(ToString::to_string).collect());
    sizes.map(|sizes: Vec<String>| sizes.join("x")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_objects() {
        let entry = |name: &str, count, seconds, flops| {
            let cost = Cost { flops, bytes: 4_000_000 };
            ProfileEntry { name: name.into(), count, seconds, cost, least: (flops > 0).then_some(0.0015) }
        };
        let profile = Profile {
            entries: vec![entry("conv2d direct  3x3 a", 1, 0.003, 6_000_000_000), entry("relu 8 b", 1, 0.001, 0)],
            kinds: vec![entry("conv2d direct", 1, 0.003, 6_000_000_000), entry("relu", 1, 0.001, 0)],
        };
        let table = profile.table();
        for line in [
            "    3.000   75.0      2000     1.3         50  conv2d direct x 1",
            "    1.000   25.0               4.0             relu x 1",
            "    4.000  100.0      1500     2.0             all instructions",
        ] {
            assert!(table.lines().any(|found| found == line), "{line}\n{table}");
        }
        let object = &profile.json()[0];
        assert_eq!(object["instruction"], "conv2d direct 3x3 a");
        assert_eq!((&object["percent"], &object["gflops"]), (&json!(75.0), &json!(2000.0)));
        assert_eq!(object["percent_of_roofline"], json!(50.0));
        assert_eq!(rate(5, 0.0), 0.0);
    }
}
