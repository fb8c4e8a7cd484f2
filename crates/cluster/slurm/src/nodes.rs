//! The nodes of a cluster, as sinfo lists them.

use crate::check::gpus_of;
use crate::value::number;

/// The arguments of sinfo for [`cores_beside_gpus`].
pub const NODES: [&str; 3] = ["--noheader", "--exact", "--format=%P %c %G"];

/// The most cores of a node with this number of GPUs, in a partition or in the default one.
///
/// ```
/// let text = "cpu* 64 (null)\ngpu 8 gpu:2\ngpu 32 gpu:a100:4(S:0-1)\n";
/// let cores = |partition, gpus| enmasse_slurm::cores_beside_gpus(text, partition, gpus);
/// assert_eq!((cores(Some("gpu"), 2), cores(Some("gpu"), 8), cores(None, 1)), (Some(32), None, None));
/// ```
pub fn cores_beside_gpus(text: &str, partition: Option<&str>, gpus: usize) -> Option<usize> {
    let cores = |line: &str| {
        let mut fields = line.split_whitespace();
        let (name, cores, gres) = (fields.next()?, fields.next()?, fields.next()?);
        let is_asked = partition
            .map_or(name.ends_with('*'), |asked| asked.split(',').any(|one| one == name.trim_end_matches('*')));
        let enough = gpus_of(gres, "gres")? >= gpus as u64;
        (is_asked && enough).then(|| number(cores)).flatten()
    };
    text.lines().filter_map(cores).max().and_then(|cores| usize::try_from(cores).ok())
}
