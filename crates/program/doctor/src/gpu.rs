//! GPUs, their driver and libraries: found, or why not. Nothing is loaded or initialised; only files and `nvidia-smi`
//! are read.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::bounded;
use crate::lists::entries;
use crate::report::{Finding, Section};
use enmasse_cuda::bus::{NVIDIA, vendors};
use enmasse_cuda::libraries::machine_folders;
use enmasse_wording::counted;

/// `nvidia-smi` wakes the driver, which may take seconds; beyond this it hangs.
const TIMEOUT: Duration = Duration::from_secs(10);

const AMD: &str = "0x1002";

/// The libraries that programs on NVIDIA's GPUs load. The first four are those that enmasse needs, and the next one is for several
/// GPUs; cuDNN loads NVRTC for the engines that it compiles at run time.
const LIBRARIES: [(&str, &str); 6] = [
    ("libcuda.so", "driver"),
    ("libcudnn.so", "cuDNN"),
    ("libcublasLt.so", "cuBLASLt"),
    ("libnvrtc.so", "NVRTC"),
    ("libnccl.so", "NCCL"),
    ("libcudart.so", "CUDA runtime"),
];
const NEEDED: usize = 4;

pub fn section() -> Section {
    Section { title: "GPUs", findings: Seen::gather().findings() }
}

/// The GPUs that the machine shows.
#[derive(Debug, Default)]
struct Seen {
    /// GPUs on the bus, by vendor.
    nvidia: usize,
    amd: usize,
    /// `/proc/driver/nvidia/version`.
    driver: Option<String>,
    /// `/dev/nvidia0` and so on.
    devices: usize,
    /// The output of `nvidia-smi` for each GPU, or its error; `None` if it is not installed.
    smi: Option<Result<String, String>>,
    /// The highest CUDA version that the driver supports.
    cuda: Option<String>,
    /// What `nvidia-smi` says of the paths between several GPUs.
    topology: Option<String>,
    /// Path of each library found.
    libraries: BTreeMap<&'static str, PathBuf>,
}

impl Seen {
    fn gather() -> Self {
        let vendors = vendors();
        let count = |vendor: &str| vendors.iter().filter(|found| *found == vendor).count();
        let is_device = |name: &str| name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
        let (smi, cuda) = smi();
        let topology = smi.as_ref().and_then(|list| topology(list.as_ref().ok()?));
        Seen {
            nvidia: count(NVIDIA),
            amd: count(AMD),
            driver: read_to_string("/proc/driver/nvidia/version").ok(),
            devices: entries("/dev").filter(|name| is_device(name)).count(),
            smi,
            cuda,
            topology,
            libraries: libraries(&machine_folders()),
        }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.driver_finding()];
        match &self.smi {
            Some(Ok(text)) => findings
                .extend(parse_gpus(text).into_iter().map(|(index, gpu)| Finding::ok(format!("GPU {index}"), gpu))),
            Some(Err(why)) if self.nvidia > 0 || self.driver.is_some() => {
                let remedy = "if it reports a mismatch, restart the machine: the driver was updated while loaded";
                findings.push(Finding::note("nvidia-smi", format!("it fails: {why}"), remedy));
            }
            _ => {}
        }
        let links = self.topology.as_deref().map(parse_links).filter(|links| !links.is_empty());
        findings.extend(links.map(|links| Finding::ok("links", links)));
        if self.is_there() || self.libraries.len() > 1 {
            findings.push(self.libraries_finding());
        }
        findings
    }

    fn is_there(&self) -> bool {
        self.nvidia > 0 || self.driver.is_some() || self.devices > 0
    }

    fn driver_finding(&self) -> Finding {
        const HERE: &str = "enmasse computes on the CPU";
        let version = self.driver.as_deref().map(|text| driver_version(text).unwrap_or("of unknown version"));
        let on_bus = counted(self.nvidia, "NVIDIA GPU");
        let finding = match version {
            None if self.nvidia > 0 => {
                let text = format!("{on_bus} on the bus, but no driver: /proc/driver/nvidia is missing; {HERE}");
                Finding::note("driver", text, "install NVIDIA's driver, or in a virtual machine pass the GPU through")
            }
            None if self.amd > 0 => Finding::ok(
                "driver",
                format!("{}, which enmasse does not support; {HERE}", counted(self.amd, "AMD GPU")),
            ),
            None => Finding::ok("driver", format!("no GPU: none on the bus, and no /proc/driver/nvidia; {HERE}")),
            Some(version) if self.devices == 0 => {
                let text =
                    format!("NVIDIA {version}, but no /dev/nvidia0: this container or job was given no GPU; {HERE}");
                Finding::note(
                    "driver",
                    text,
                    "start the container with its GPUs (--gpus all), or ask for some (Slurm: --gres=gpu:1)",
                )
            }
            Some(version) => {
                let cuda = self.cuda.as_ref().map_or(String::new(), |cuda| format!(", CUDA up to {cuda}"));
                let devices = counted(self.devices, "device");
                Finding::ok("driver", format!("NVIDIA {version}{cuda}; {devices}; train on one by --devices gpu:1"))
            }
        };
        finding.fact("nvidia_gpus", self.nvidia).fact("version", version).fact("devices", self.devices)
    }

    fn libraries_finding(&self) -> Finding {
        let found = |(file, name): &(&str, &str)| {
            let path = self.libraries.get(file)?;
            let version = path.file_name().and_then(|file| file.to_str()).and_then(library_version).unwrap_or_default();
            Some(format!("{name} {version} ({})", path.display()).replace("  ", " "))
        };
        let texts: Vec<String> = LIBRARIES.iter().filter_map(found).collect();
        let needed = LIBRARIES[..NEEDED + usize::from(self.devices.max(self.nvidia) > 1)].iter();
        let missing: Vec<&str> =
            needed.filter(|(file, _)| !self.libraries.contains_key(file)).map(|(_, name)| *name).collect();
        let text = match (texts.is_empty(), missing.is_empty()) {
            (true, _) => "none found".to_owned(),
            (_, true) => texts.join(", "),
            _ => format!("{}; not found: {}", texts.join(", "), missing.join(", ")),
        };
        let finding = match missing.as_slice() {
            [] => Finding::ok("libraries", text),
            _ => Finding::note(
                "libraries",
                text,
                "install them, or name their folder in ENMASSE_CUDA_LIBRARIES, before computing on GPUs",
            ),
        };
        finding.fact("missing", missing)
    }
}

/// Queries `nvidia-smi` for its GPUs, and for the CUDA version.
fn smi() -> (Option<Result<String, String>>, Option<String>) {
    let ask = |arguments: &[&str]| bounded::run(Command::new("nvidia-smi").args(arguments), TIMEOUT);
    let list = ["--query-gpu=index,name,memory.total,compute_cap", "--format=csv,noheader,nounits"];
    match ask(&list) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (None, None),
        Err(error) => (Some(Err(error.to_string())), None),
        Ok(ended) if ended.is_success() => {
            let cuda = ask(&[]).ok().filter(|ended| ended.is_success()).and_then(|ended| cuda_version(&ended.stdout));
            (Some(Ok(ended.stdout)), cuda)
        }
        Ok(ended) => {
            let late = format!("no answer within {} s", TIMEOUT.as_secs());
            let why = if ended.status.is_none() { late } else { ended.last_line().unwrap_or("no output").to_owned() };
            (Some(Err(why)), None)
        }
    }
}

/// Queries `nvidia-smi` for the paths between the GPUs that it listed, if these are several.
fn topology(list: &str) -> Option<String> {
    let several = parse_gpus(list).len() > 1;
    let asked = several.then(|| bounded::run(Command::new("nvidia-smi").args(["topo", "-m"]), TIMEOUT));
    asked?.ok().filter(|ended| ended.is_success()).map(|ended| ended.stdout)
}

/// The pairs of GPUs on each kind of path, the kinds in the order in which they come, from a table with a row and a column for
/// each GPU.
fn parse_links(text: &str) -> String {
    let words = |line: &str| -> Vec<String> {
        // The head is underlined by escape sequences.
        let plain = line.replace("\u{1b}[4m", "").replace("\u{1b}[0m", "");
        plain.split('\t').map(|word| word.trim().to_owned()).collect()
    };
    let number = |word: &String| word.strip_prefix("GPU").and_then(|number| number.parse::<usize>().ok());
    let mut lines = text.lines().map(words);
    let Some(head) = lines.find(|head| head.iter().any(|word| number(word).is_some())) else { return String::new() };
    let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
    for row in lines {
        let Some(from) = row.first().and_then(number) else { continue };
        let cells = head.iter().zip(&row).filter_map(|(head, cell)| Some((number(head)?, cell)));
        for (to, cell) in cells.filter(|(to, _)| *to > from) {
            let kind = path(cell);
            let pair = format!("{from}-{to}");
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, pairs)) => pairs.push(pair),
                None => kinds.push((kind, vec![pair])),
            }
        }
    }
    kinds.iter().map(|(kind, pairs)| format!("{kind}: {}", pairs.join(" "))).collect::<Vec<_>>().join("; ")
}

/// `nvidia-smi`'s word for a path, in words.
fn path(word: &str) -> String {
    let meaning = match word {
        "PIX" | "PXB" => "PCIe switches",
        "PHB" => "PCIe through the CPU",
        "NODE" => "PCIe within a NUMA node",
        "SYS" => "between NUMA nodes",
        _ if word.starts_with("NV") => "NVLink",
        _ => return word.to_owned(),
    };
    format!("{meaning} ({word})")
}

/// The number and a description from each line `0, NVIDIA H200, 143771, 9.0`.
fn parse_gpus(text: &str) -> Vec<(String, String)> {
    let gpu = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [index, name, memory, capability] = fields.as_slice() else { return None };
        Some(((*index).to_owned(), format!("{name}, {memory} MiB, compute capability {capability}")))
    };
    text.lines().filter_map(gpu).collect()
}

/// `12.4` from the head of the table, `| NVIDIA-SMI 550.54 ... CUDA Version: 12.4 |`.
fn cuda_version(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("CUDA Version:")?;
    Some(rest.split_whitespace().next()?.to_owned()).filter(|version| is_version(version))
}

/// `550.54.15` from `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ...`.
fn driver_version(text: &str) -> Option<&str> {
    text.lines().next()?.split_whitespace().find(|word| word.contains('.') && is_version(word))
}

/// `9.1.0` from `libcudnn.so.9.1.0`.
fn library_version(file: &str) -> Option<&str> {
    file.split_once(".so.").map(|(_, version)| version).filter(|version| is_version(version))
}

fn is_version(text: &str) -> bool {
    !text.is_empty() && text.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The first file of each library, with every link followed, since the last name has the full version.
fn libraries(folders: &[PathBuf]) -> BTreeMap<&'static str, PathBuf> {
    let mut found = BTreeMap::new();
    for folder in folders {
        let mut files: Vec<String> = entries(folder).filter(|name| name.starts_with("lib")).collect();
        files.sort();
        for (library, _) in LIBRARIES {
            let is_it = |file: &&String| {
                file.strip_prefix(library).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            // The longest name is the file's; the shorter ones are links to it.
            if let Some(file) = files.iter().filter(is_it).max_by_key(|file| file.len()) {
                let path = folder.join(file);
                found.entry(library).or_insert_with(|| path.canonicalize().unwrap_or(path));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;

    #[test]
    fn versions() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 12.2";
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)";
        let check = |text: &str, expected: Option<&str>| assert_eq!(driver_version(text), expected);
        check(closed, Some("535.104.05"));
        check(open, Some("570.86.15"));
        check("", None);
        check("NVRM version: none", None);
        let check = |text: &str, expected: Option<&str>| assert_eq!(cuda_version(text).as_deref(), expected);
        check("| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |", Some("12.4"));
        check("| CUDA Version: N/A |", None);
        check("CUDA Version:", None);
        let check = |file: &str, expected: Option<&str>| assert_eq!(library_version(file), expected);
        check("libcudnn.so.9.1.0", Some("9.1.0"));
        check("libnccl.so.2", Some("2"));
        check("libcuda.so", None);
        check("libcuda.so.x", None);
    }

    #[test]
    fn gpus() {
        let text = "0, NVIDIA H200, 143771, 9.0\n1, NVIDIA H200, 143771, 9.0\n\nno devices were found\n";
        let found = parse_gpus(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[1], ("1".to_owned(), "NVIDIA H200, 143771 MiB, compute capability 9.0".to_owned()));
    }

    #[test]
    fn links() {
        let check = |text: &str, expected: &str| assert_eq!(parse_links(text), expected);
        let table = "\t\u{1b}[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\u{1b}[0m\n\
            GPU0\t X \tNV18\tSYS\tPIX\t0-15\t0\nGPU1\tNV18\t X \tSYS\tNODE\t0-15\t0\n\
            GPU2\tSYS\tSYS\t X \tSYS\t16-31\t1\nNIC0\tPIX\tNODE\tSYS\t X \t\t\n\nLegend:\n  X    = Self\n";
        check(table, "NVLink (NV18): 0-1; between NUMA nodes (SYS): 0-2 1-2");
        check("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n", "PCIe through the CPU (PHB): 0-1");
        check("\tGPU0\nGPU0\t X \n", "");
        check("no such command", "");
    }

    #[test]
    fn found_or_why_not() {
        let driver = || Some("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue".to_owned());
        let check = |seen: Seen, expected: &[(Status, &str)]| {
            let findings = seen.findings();
            let found: Vec<_> = findings.iter().map(|finding| (finding.status, finding.text.as_str())).collect();
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for ((status, text), (expected, mention)) in found.iter().zip(expected) {
                assert!(status == expected && text.contains(mention), "{text}: {mention}");
            }
        };
        check(Seen::default(), &[(Status::Ok, "no GPU: none on the bus")]);
        check(Seen { amd: 1, ..Seen::default() }, &[(Status::Ok, "1 AMD GPU")]);
        check(
            Seen { nvidia: 2, ..Seen::default() },
            &[(Status::Note, "2 NVIDIA GPUs on the bus, but no driver"), (Status::Note, "none found")],
        );
        check(
            Seen { driver: driver(), ..Seen::default() },
            &[(Status::Note, "NVIDIA 550.54.15, but no /dev/nvidia0"), (Status::Note, "none found")],
        );
        let mut libraries: BTreeMap<_, _> = LIBRARIES.iter().map(|(file, _)| (*file, PathBuf::from(file))).collect();
        libraries.insert("libcudnn.so", "/usr/lib/libcudnn.so.9.1.0".into());
        let whole = || Seen {
            nvidia: 1,
            driver: driver(),
            devices: 1,
            smi: Some(Ok("0, NVIDIA H200, 143771, 9.0\n".to_owned())),
            cuda: Some("12.4".to_owned()),
            libraries: libraries.clone(),
            ..Seen::default()
        };
        check(
            whole(),
            &[
                (Status::Ok, "NVIDIA 550.54.15, CUDA up to 12.4; 1 device; "),
                (Status::Ok, "NVIDIA H200, 143771 MiB"),
                (Status::Ok, "cuDNN 9.1.0 (/usr/lib/libcudnn.so.9.1.0), cuBLASLt (libcublasLt.so)"),
            ],
        );
        let mut lacking = whole();
        lacking.libraries.remove("libnccl.so");
        lacking.libraries.remove("libnvrtc.so");
        lacking.smi = Some(Err("Driver/library version mismatch".to_owned()));
        check(
            lacking,
            &[
                (Status::Ok, "550.54.15"),
                (Status::Note, "it fails: Driver/library version mismatch"),
                (Status::Note, "; not found: NVRTC"),
            ],
        );
        let mut several = Seen { devices: 2, smi: None, ..whole() };
        several.libraries.remove("libnccl.so");
        check(several, &[(Status::Ok, "; 2 devices; "), (Status::Note, "; not found: NCCL")]);
    }

    #[test]
    fn links_are_followed_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        for file in ["libcudnn.so.9.1.0", "libcudnn_graph.so.9.1.0", "libnccl.so.2"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("libcudnn.so.9.1.0", folder.path().join("libcudnn.so.9")).unwrap();
        std::fs::write(other.path().join("libnccl.so.2.9"), "").unwrap();
        let found = libraries(&[folder.path().to_owned(), PathBuf::from("/nowhere"), other.path().to_owned()]);
        let names: Vec<_> = found.values().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["libcudnn.so.9.1.0", "libnccl.so.2"]);
    }
}
