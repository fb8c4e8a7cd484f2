//! Which of the visible GPUs is a rank's own.
//!
//! `--gres=gpu:2` shows both devices to every task of a node, so a task takes the one of its local number. With
//! `--gpus-per-task=1` each task sees only its own, which is number 0 to it, whatever its local number.

use std::ffi::OsString;

use thiserror::Error;

use super::variables::Variables;
use super::{EnvironmentError, LaunchedRank};

/// Why a rank has no device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceOrdinalError {
    /// More ranks than devices.
    #[error(
        "{ranks} ranks of this node see the same {devices} GPUs: ask for --gres=gpu:{ranks} or --gpus-per-task=1, or for \
         --ntasks-per-node={devices}"
    )]
    TooFew {
        /// Ranks of this node.
        ranks: usize,
        /// Devices that each of them sees.
        devices: usize,
    },
    /// None at all.
    #[error("this rank sees no GPU ({variable} is {value:?}): ask Slurm for --gpus-per-task=1, or train on cpu")]
    None {
        /// The variable that hides them.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// A variable that makes no sense.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
}

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
const ON_NODE: &str = "SLURM_GPUS_ON_NODE";

/// The number of this rank's device among those that it sees, where `found` devices are in the machine.
///
/// ```
/// use enmasse_launch::{LaunchedRank, device_ordinal};
/// let place = LaunchedRank::from_lookup(|name| match name {
///     "RANK" | "LOCAL_RANK" => Some("1".into()),
///     "WORLD_SIZE" | "LOCAL_WORLD_SIZE" => Some("2".into()),
///     "MASTER_ADDR" => Some("localhost".into()),
///     "MASTER_PORT" => Some("29500".into()),
///     _ => None,
/// })?.expect("it was launched");
/// assert_eq!(device_ordinal(&place, 2, |_| None), Ok(1));
/// # Ok::<(), enmasse_launch::EnvironmentError>(())
/// ```
pub fn device_ordinal(
    place: &LaunchedRank,
    found: usize,
    lookup: impl Fn(&str) -> Option<OsString>,
) -> Result<usize, DeviceOrdinalError> {
    let variables = Variables(&lookup);
    let (mask, on_node) = (variables.text(VISIBLE)?, variables.count(ON_NODE)?);
    // CUDA stops reading at the first entry that is no device: "-1", or "NoDevFiles".
    let is_device = |entry: &&str| {
        let entry = entry.trim();
        ["GPU-", "MIG-"].iter().any(|prefix| entry.starts_with(prefix)) || entry.parse::<u16>().is_ok()
    };
    let visible = match &mask {
        Some(mask) => mask.split(',').take_while(is_device).count(),
        None => found,
    };
    let LaunchedRank { local_rank, local_world_size, .. } = *place;
    // Fewer than the step has on this node: they are this rank's own. A single one beside others is, too.
    let is_own =
        mask.is_some() && (on_node.is_some_and(|on_node| visible < on_node) || visible == 1 && on_node.is_none());
    match visible {
        0 => Err(DeviceOrdinalError::None { variable: VISIBLE, value: mask.unwrap_or_default() }),
        _ if is_own => Ok(0),
        _ if local_world_size <= visible => Ok(local_rank),
        _ => Err(DeviceOrdinalError::TooFew { ranks: local_world_size, devices: visible }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_ask_slurm_for_devices() {
        let check = |local: [usize; 2], mask: Option<&str>, on_node: Option<&str>, expected: Result<usize, &str>| {
            let place = LaunchedRank {
                rank: local[0],
                world_size: local[1],
                local_rank: local[0],
                local_world_size: local[1],
                node: 0,
                node_count: 1,
                master: None,
                restart_count: 0,
                max_restarts: 0,
                run_id: String::new(),
            };
            let lookup = |name: &str| match name {
                VISIBLE => mask.map(OsString::from),
                ON_NODE => on_node.map(OsString::from),
                _ => None,
            };
            let found = device_ordinal(&place, 4, lookup).map_err(|error| error.to_string());
            match expected {
                Ok(ordinal) => assert_eq!(found, Ok(ordinal), "{local:?} {mask:?}"),
                Err(part) => assert!(found.as_ref().unwrap_err().contains(part), "{local:?} {mask:?}: {found:?}"),
            }
        };
        // --gres=gpu:2, two tasks per node; as seen on a cluster, like those below.
        check([0, 2], Some("0,1"), Some("2"), Ok(0));
        check([1, 2], Some("0,1"), Some("2"), Ok(1));
        // --gres=gpu:2, four tasks.
        check([0, 4], Some("0,1"), Some("2"), Err("4 ranks of this node see the same 2 GPUs"));
        check([3, 4], Some("0,1"), Some("2"), Err("--gres=gpu:4"));
        // --gpus-per-task=1.
        check([0, 2], Some("0"), Some("2"), Ok(0));
        check([1, 2], Some("1"), Some("2"), Ok(0));
        check([0, 1], Some("3"), Some("1"), Ok(0));
        // --gpus-per-task=2.
        check([0, 2], Some("0,1"), Some("4"), Ok(0));
        check([1, 2], Some("2,3"), Some("4"), Ok(0));
        // --gres=gpu:1, two tasks.
        check([1, 2], Some("0"), Some("1"), Err("2 ranks of this node see the same 1 GPUs"));
        // No Slurm: everything that is there, or what a person or another launcher shows.
        check([3, 4], None, None, Ok(3));
        check([4, 5], None, None, Err("5 ranks of this node see the same 4 GPUs"));
        check([1, 2], Some("2,3"), None, Ok(1));
        check([1, 2], Some("GPU-8932f937, MIG-1"), None, Ok(1));
        check([1, 2], Some("1"), None, Ok(0));
        for mask in ["-1", "NoDevFiles", "-1,0"] {
            check([0, 1], Some(mask), None, Err("sees no GPU"));
        }
        check([0, 1], Some("0"), Some("many"), Err("SLURM_GPUS_ON_NODE is \"many\""));
    }
}
