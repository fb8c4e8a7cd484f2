//! How the ranks of a group exchange numbers, which they agree on before the first step: by NCCL,
//! if each has it and a GPU of its own, otherwise by way of the host.

use enmasse_comm::{Algorithm, AlgorithmChoice, Group};
use enmasse_device::{DeviceError, Summation};

use crate::driver::Properties;
use crate::gpu::Gpu;

/// How ranks exchange numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through page-locked memory, by the group.
    Host,
    /// From GPU to GPU, by NCCL.
    Nccl(Summation),
}

impl Way {
    /// What the ranks of programs on such GPUs take, as far as one rank knows.
    pub fn expected(gpu: &Gpu, summation: Summation) -> Way {
        if gpu.nccl().is_ok() { Way::Nccl(summation) } else { Way::Host }
    }

    /// The same for all ranks of a group, which all call this, with a line that says it to people.
    pub fn agree(gpu: &Gpu, group: &Group, summation: Summation) -> Result<(Way, String), DeviceError> {
        let own = Candidate::of(gpu, group).to_text();
        let all = group.all_gather_bytes(own.as_bytes())?;
        let all: Vec<Candidate> = all.iter().map(|text| Candidate::from_text(&String::from_utf8_lossy(text))).collect();
        if let Some(why) = against_nccl(&all) {
            if summation == Summation::Bf16 {
                return Err(DeviceError::Unsupported(format!("`reduce_precision = bf16` needs NCCL: {why}")));
            }
            return Ok((Way::Host, format!("gradients go by way of the hosts, not by NCCL: {why}")));
        }
        let sums = match summation {
            Summation::Library => ", and are summed in its order",
            Summation::Bf16 => " in bf16, and are summed in its order",
            Summation::F16 => return Err(DeviceError::Unsupported("NCCL does not sum gradients in f16 here".into())),
            Summation::Tree => " to every rank, which sums them in the fixed tree",
        };
        let idle = idle(group.algorithm_choice());
        let version = all[0].nccl.as_deref().unwrap_or_default();
        Ok((Way::Nccl(summation), format!("gradients go by NCCL {version}{sums}{idle}")))
    }
}

/// What a rank has for NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    /// The GPU, as in [`place`].
    gpu: String,
    /// Its version of NCCL, or why there is none.
    nccl: Result<String, String>,
}

impl Candidate {
    fn of(gpu: &Gpu, group: &Group) -> Self {
        let host = group.host(group.rank()).unwrap_or_default();
        let nccl = gpu.nccl().map(|nccl| nccl.version().to_string()).map_err(|error| error.to_string());
        Candidate { gpu: place(&gpu.context.properties, host), nccl }
    }

    fn to_text(&self) -> String {
        let (mark, text) = match &self.nccl {
            Ok(version) => ("has", version),
            Err(why) => ("lacks", why),
        };
        [&self.gpu, mark, text].join("\n")
    }

    fn from_text(text: &str) -> Self {
        let mut lines = text.splitn(3, '\n').map(str::to_owned);
        let gpu = lines.next();
        let mark = lines.next();
        let text = lines.next().unwrap_or_default();
        let nccl = if mark.as_deref() == Some("has") { Ok(text) } else { Err(text) };
        Candidate { gpu: gpu.unwrap_or_default(), nccl }
    }
}

/// What a line about NCCL says of the algorithm that the configuration asks for.
fn idle(asked: AlgorithmChoice) -> String {
    match asked {
        AlgorithmChoice::Named(Algorithm::Tree) => String::new(),
        other => format!("; `all_reduce = {other}` has no effect, because NCCL has algorithms of its own"),
    }
}

/// Where a GPU is, which parts of it (MIG) have in common, unlike their names: NCCL takes one rank on each GPU.
fn place(properties: &Properties, host: &str) -> String {
    format!("{} of {host}", properties.address)
}

/// Why these ranks do not use NCCL, if so.
fn against_nccl(ranks: &[Candidate]) -> Option<String> {
    let without = ranks.iter().enumerate().find_map(|(rank, own)| Some((rank, own.nccl.as_ref().err()?)));
    if let Some((rank, why)) = without {
        return Some(format!("on rank {rank}, {why}"));
    }
    (1..ranks.len()).find_map(|rank| {
        let [own, first] = [rank, 0].map(|rank| ranks[rank].nccl.as_deref().unwrap_or_default());
        if own != first {
            return Some(format!("rank 0 has version {first}, and rank {rank} has {own}"));
        }
        let other = ranks[..rank].iter().position(|other| other.gpu == ranks[rank].gpu)?;
        Some(format!("ranks {other} and {rank} share {}", ranks[rank].gpu))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_that_nccl_does_not_use_is_told() {
        let check = |asked: AlgorithmChoice, expected: &str| assert_eq!(idle(asked), expected);
        check(Algorithm::Tree.into(), "");
        let told =
            |name: &str| format!("; `all_reduce = {name}` has no effect, because NCCL has algorithms of its own");
        check(Algorithm::Ring.into(), &told("ring"));
        check(AlgorithmChoice::Auto, &told("auto"));
    }

    #[test]
    fn all_ranks_need_one_version_and_a_gpu_of_their_own() {
        let check = |ranks: &[(&str, Result<&str, &str>)], expected: Option<&str>| {
            let candidate = |&(gpu, nccl): &(&str, Result<&str, &str>)| Candidate {
                gpu: gpu.to_owned(),
                nccl: nccl.map(str::to_owned).map_err(str::to_owned),
            };
            let ranks: Vec<Candidate> = ranks.iter().map(candidate).collect();
            let sent = ranks.iter().map(|rank| Candidate::from_text(&rank.to_text()));
            assert_eq!(sent.collect::<Vec<_>>(), ranks);
            assert_eq!(against_nccl(&ranks).as_deref(), expected);
        };
        check(&[("a", Ok("2.27.3")), ("b", Ok("2.27.3"))], None);
        check(&[("a", Ok("2.27.3")), ("a", Ok("2.27.3"))], Some("ranks 0 and 1 share a"));
        // Parts of one GPU, whose names end in their profiles.
        let [large, small] = ["3g.71gb", "1g.18gb"].map(|profile| {
            let name = format!("NVIDIA H200 MIG {profile}");
            let address = "0000:1b:00.0".to_owned();
            let ordinal = 0;
            let uuid = [0; 16];
            let capability = [9, 0];
            let multiprocessors = 16;
            place(&Properties { ordinal, name, address, uuid, capability, multiprocessors, l2_cache: 0 }, "node1")
        });
        let shared = Some("ranks 0 and 1 share 0000:1b:00.0 of node1");
        check(&[(&large, Ok("2.27.3")), (&small, Ok("2.27.3"))], shared);
        check(&[("a", Ok("2.27.3")), ("b", Ok("2.21.5"))], Some("rank 0 has version 2.27.3, and rank 1 has 2.21.5"));
        let missing = "NCCL is missing: no libnccl.so.2\nhere";
        check(&[("a", Ok("2.27.3")), ("a", Err(missing))], Some("on rank 1, NCCL is missing: no libnccl.so.2\nhere"));
    }
}
