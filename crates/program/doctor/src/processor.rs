//! The processor: its instruction-set level, the cores that this process may use, and their load.

use std::fs::read_to_string;

use enmasse_cpu::{Cores, Isa};
use enmasse_system::machine::Limits;
use enmasse_wording::counted;

use crate::lists::parse_list;
use crate::report::{Finding, Section};

/// The features that each level needs, by their names in `/proc/cpuinfo`: those of x86-64, and those of 64-bit ARM.
const X86: &[(Isa, &[&str])] = &[
    (Isa::Avx2, &["avx2", "fma"]),
    (Isa::Avx512, &["avx512f", "avx512bw", "avx512dq", "avx512vl"]),
    (Isa::Avx512Bf16, &["avx512_bf16"]),
    (Isa::Amx, &["amx_tile", "amx_bf16"]),
];
const ARM: &[(Isa, &[&str])] = &[(Isa::Neon, &["asimd"]), (Isa::NeonBf16, &["bf16"])];

pub fn section(limits: &Limits) -> Section {
    let read = |path: &str| read_to_string(path).unwrap_or_default();
    let info = CpuInfo::parse(&read("/proc/cpuinfo"));
    let used = std::thread::available_parallelism().map_or(1, usize::from);
    let allowed = Cores::available().map_or(used, |cores| cores.count());
    let online = parse_list(&read("/sys/devices/system/cpu/online")).map(|cores| cores.len());
    let nodes = parse_list(&read("/sys/devices/system/node/online")).map_or(1, |nodes| nodes.len());
    let status = read("/proc/self/status");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default().trim();
    let place = Place {
        online: online.filter(|&cores| cores > 0).unwrap_or(info.logical.max(1)),
        allowed,
        list,
        quota: limits.cores,
        used,
        nodes,
    };
    let load = read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok());
    let mut findings = vec![model(&info), level(&info, Isa::detect()), place.finding()];
    findings.extend(load.map(|load| busy(load, place.used)));
    Section { title: "processor", findings }
}

/// The contents of `/proc/cpuinfo`.
#[derive(Debug, Default, PartialEq, Eq)]
struct CpuInfo {
    model: String,
    /// Number of logical processors.
    logical: usize,
    /// Threads per core.
    siblings: Option<usize>,
    features: Vec<String>,
}

impl CpuInfo {
    fn parse(text: &str) -> Self {
        let pairs = || {
            let pairs = text.lines().filter_map(|line| line.split_once(':'));
            pairs.map(|(name, value)| (name.trim(), value.trim()))
        };
        let first = |name: &str| pairs().find(|(key, _)| *key == name).map(|(_, value)| value);
        let number = |name| first(name).and_then(|value| value.parse::<usize>().ok()).filter(|&number| number > 0);
        // ARM has numbers instead of a name.
        let by_number = || Some(format!("implementer {}, part {}", first("CPU implementer")?, first("CPU part")?));
        let model = first("model name").filter(|name| !name.is_empty()).map(str::to_owned);
        CpuInfo {
            model: model.or_else(by_number).unwrap_or_else(|| "unknown model".to_owned()),
            logical: pairs().filter(|(name, _)| *name == "processor").count(),
            siblings: number("siblings").zip(number("cpu cores")).map(|(threads, cores)| threads / cores),
            features: first("flags")
                .or_else(|| first("Features"))
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
        }
    }

    fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|found| found == feature)
    }
}

fn model(info: &CpuInfo) -> Finding {
    let threads = match info.siblings {
        Some(threads @ 2..) => format!(", {threads} threads per core"),
        _ => String::new(),
    };
    Finding::ok("model", format!("{}, {}{threads}", info.model, std::env::consts::ARCH)).fact("model", &*info.model)
}

/// The level in use, the features that it needs, and those that the next level lacks.
fn level(info: &CpuInfo, best: Isa) -> Finding {
    let levels = if best >= Isa::Neon { ARM } else { X86 };
    let features: Vec<&str> =
        levels.iter().flat_map(|(_, needs)| *needs).copied().filter(|need| info.has(need)).collect();
    let mut text = format!("{best} is used");
    if !features.is_empty() {
        text.push_str(&format!("; the processor has {}", features.join(" ")));
    }
    let next = levels.iter().find(|(level, _)| *level > best);
    let missing: Vec<&str> =
        next.into_iter().flat_map(|(_, needs)| *needs).copied().filter(|need| !info.has(need)).collect();
    if let Some((next, _)) = next.filter(|_| !missing.is_empty()) {
        text.push_str(&format!("; {next} would need {}", missing.join(" ")));
    }
    let finding = match (best, next) {
        (Isa::Portable, _) if cfg!(target_arch = "x86_64") => {
            let remedy = "training is several times slower without AVX2: use a newer processor, or let the virtual machine show \
                          its host's features";
            Finding::note("instructions", text, remedy)
        }
        (_, Some((next, _))) if missing.is_empty() && cfg!(target_arch = "x86_64") => {
            let text = format!("{text}; the processor has all of {next}, which the kernel does not permit");
            Finding::note("instructions", text, format!("a newer kernel, or another hypervisor, may permit {next}"))
        }
        _ => Finding::ok("instructions", text),
    };
    finding.fact("level", best.name()).fact("features", features)
}

/// The machine's cores, and those that this process may use.
struct Place<'a> {
    online: usize,
    /// By affinity.
    allowed: usize,
    /// The allowed cores, in the kernel's notation.
    list: &'a str,
    /// The control group's quota, in cores.
    quota: Option<f64>,
    /// The number that enmasse uses by default, without `--devices` and `--threads`.
    used: usize,
    /// Number of memory nodes.
    nodes: usize,
}

impl Place<'_> {
    fn finding(&self) -> Finding {
        let Place { online, allowed, list, quota, used, nodes } = *self;
        let mut text = match allowed < online {
            true => format!("{allowed} of the machine's {online} may be used ({list})"),
            false => format!("all {online} may be used"),
        };
        if nodes > 1 {
            text.push_str(&format!(", {nodes} NUMA nodes"));
        }
        if let Some(quota) = quota {
            text.push_str(&format!(", with a quota of {quota:.1} cores"));
        }
        text.push_str(&format!("; enmasse uses {} by default", counted(used, "core")));
        let finding = match quota {
            Some(quota) if (quota * 100.0).round() < used as f64 * 100.0 => {
                let remedy = "a control group (container or batch system) throttles all threads that exceed their quota: \
                              raise its limit, or use fewer threads (--devices, --threads)";
                Finding::note("cores", text, remedy)
            }
            _ if allowed == 1 && online > 1 => {
                let remedy =
                    "an affinity leaves this process one core: under Slurm ask for --cpus-per-task, else see taskset";
                Finding::note("cores", text, remedy)
            }
            _ => Finding::ok("cores", text),
        };
        let finding = finding.fact("online", online).fact("allowed", allowed).fact("used", used).fact("nodes", nodes);
        match quota {
            Some(quota) => finding.fact("quota", quota),
            None => finding,
        }
    }
}

fn busy(load: f64, used: usize) -> Finding {
    let text = format!("on average {load:.1} threads were ready to run in the last minute");
    let finding = match load > 0.5 * used as f64 + 0.5 {
        true => {
            Finding::note("load", text, "other programs share the cores: timings will be worse than on an idle machine")
        }
        false => Finding::ok("load", text),
    };
    finding.fact("load", load)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;

    #[test]
    fn cpuinfo() {
        let check = |text: &str, model: &str, logical: usize, siblings: Option<usize>, features: &[&str]| {
            let features = features.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(CpuInfo::parse(text), CpuInfo { model: model.to_owned(), logical, siblings, features });
        };
        let one = "processor\t: 0\nmodel name\t: AMD EPYC\nsiblings\t: 4\ncpu cores\t: 2\nflags\t\t: fpu avx2 fma\n\n";
        check(&one.repeat(2), "AMD EPYC", 2, Some(2), &["fpu", "avx2", "fma"]);
        let arm = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
        check(arm, "implementer 0x41, part 0xd40", 1, None, &["fp", "asimd"]);
        check("", "unknown model", 0, None, &[]);
        check("processor: x\nmodel name:\nsiblings: 4\ncpu cores: 0\nflags", "unknown model", 1, None, &[]);
    }

    #[test]
    fn levels() {
        let info = |features: &str| CpuInfo::parse(&format!("flags: {features}"));
        let check = |features: &str, best: Isa, status: Status, expected: &str| {
            let found = level(&info(features), best);
            assert_eq!((found.status, found.text.as_str()), (status, expected));
        };
        check(
            "avx2 fma",
            Isa::Avx2,
            Status::Ok,
            "avx2 is used; the processor has avx2 fma; avx512 would need avx512f avx512bw avx512dq avx512vl",
        );
        let all = "avx2 fma avx512f avx512bw avx512dq avx512vl avx512_bf16 amx_tile amx_bf16";
        check(all, Isa::Amx, Status::Ok, &format!("amx is used; the processor has {all}"));
        check("asimd", Isa::Neon, Status::Ok, "neon is used; the processor has asimd; neon_bf16 would need bf16");
        check("asimd bf16", Isa::NeonBf16, Status::Ok, "neon_bf16 is used; the processor has asimd bf16");
        if cfg!(target_arch = "x86_64") {
            check("", Isa::Portable, Status::Note, "portable is used; avx2 would need avx2 fma");
            let text = format!(
                "avx512_bf16 is used; the processor has {all}; the processor has all of amx, which the kernel does not permit"
            );
            check(all, Isa::Avx512Bf16, Status::Note, &text);
        }
    }

    #[test]
    fn places() {
        let check = |online, allowed, quota, used, nodes, status: Status, expected: &str| {
            let found = Place { online, allowed, list: "0-3", quota, used, nodes }.finding();
            assert_eq!((found.status, found.text.as_str()), (status, expected));
        };
        check(8, 8, None, 8, 1, Status::Ok, "all 8 may be used; enmasse uses 8 cores by default");
        let text = "4 of the machine's 64 may be used (0-3), 2 NUMA nodes; enmasse uses 4 cores by default";
        check(64, 4, None, 4, 2, Status::Ok, text);
        let text = "all 8 may be used, with a quota of 1.5 cores; enmasse uses 2 cores by default";
        check(8, 8, Some(1.5), 2, 1, Status::Note, text);
        let text = "all 8 may be used, with a quota of 2.0 cores; enmasse uses 2 cores by default";
        check(8, 8, Some(2.0), 2, 1, Status::Ok, text);
        let text = "1 of the machine's 8 may be used (0-3); enmasse uses 1 core by default";
        check(8, 1, None, 1, 1, Status::Note, text);
    }

    #[test]
    fn loads() {
        let check = |load, used, expected: Status| assert_eq!(busy(load, used).status, expected, "{load} {used}");
        check(0.2, 2, Status::Ok);
        check(1.5, 2, Status::Ok);
        check(1.6, 2, Status::Note);
        check(3.0, 64, Status::Ok);
    }
}
