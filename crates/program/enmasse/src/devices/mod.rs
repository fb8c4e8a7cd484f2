//! Every kind of device in this build, by name.
//!
//! A device is a crate that implements [`Device`], and a line here. No other crate of the program names one.
//!
//! ```
//! let device = enmasse::devices::open("cpu", &Default::default())?;
//! assert!(device.name().starts_with("cpu ("));
//! let unknown = enmasse::devices::open("tpu", &Default::default()).err().map(|error| error.to_string());
//! assert_eq!(unknown.as_deref(), Some("this build has no device of kind tpu; it has cpu, gpu and reference"));
//! # Ok::<(), enmasse_device::DeviceError>(())
//! ```

#[cfg(feature = "gpu")]
mod self_test;
mod share;

use std::sync::{Arc, OnceLock};

use enmasse_comm::Group;
use enmasse_device::{Device, DeviceError, DeviceRequest, Seen};
use enmasse_train::ProgramConfig;

#[cfg(feature = "gpu")]
pub use enmasse_cuda::{GpuProcess, GpuStatus};
#[cfg(feature = "gpu")]
pub use self_test::{has_passed, self_test};
pub use share::Share;

/// A kind of device, as named in `--devices KIND:N`.
#[derive(Clone, Copy)]
pub struct DeviceKind {
    /// Its name.
    pub name: &'static str,
    open: fn(&DeviceRequest) -> Result<Box<dyn Device>, DeviceError>,
    /// For kinds whose devices have numbers, and which `auto` prefers to the default.
    numbered: Option<Numbered>,
}

/// How devices with numbers are found without being opened.
#[derive(Clone, Copy)]
struct Numbered {
    /// Whether this machine has such a device, even one that cannot be used.
    is_there: fn() -> bool,
    /// The number of devices that this process may use; `None` if that cannot be found out.
    count: fn() -> Option<usize>,
    /// The numbers of those on which no program computes; `None` if that cannot be found out.
    idle: fn() -> Option<Vec<usize>>,
    /// All that this process may use, which are not opened.
    seen: fn() -> Result<Vec<Seen>, DeviceError>,
}

/// All kinds. The first is the default.
pub static KINDS: &[DeviceKind] = &[
    DeviceKind { name: "cpu", open: enmasse_cpu::open, numbered: None },
    #[cfg(feature = "gpu")]
    DeviceKind {
        name: "gpu",
        open: enmasse_cuda::open,
        numbered: Some(Numbered {
            is_there: enmasse_cuda::is_there,
            count: enmasse_cuda::count,
            idle: enmasse_cuda::idle,
            seen: enmasse_cuda::seen,
        }),
    },
    #[cfg(feature = "gpu")]
    DeviceKind { name: "reference", open: enmasse_reference::open, numbered: None },
];

/// The word that leaves the choice of devices to the program: those of [`preferred`] that pass their self-test, otherwise the default.
pub const AUTO: &str = "auto";

/// The devices that `auto` prefers to the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preferred {
    /// Their kind.
    pub kind: &'static str,
    /// All that this process may use, as seen when it first asked. An error says why there are none.
    pub seen: Result<Vec<Seen>, String>,
}

/// The devices that `auto` prefers to the default; `None` on a machine without any, even one that cannot be used.
pub fn preferred() -> Option<&'static Preferred> {
    static PREFERRED: OnceLock<Option<Preferred>> = OnceLock::new();
    let look = || {
        KINDS.iter().find_map(|kind| {
            let Numbered { is_there, seen, .. } = kind.numbered?;
            match seen() {
                Ok(seen) => Some(Preferred { kind: kind.name, seen: Ok(seen) }),
                Err(error) => is_there().then(|| Preferred { kind: kind.name, seen: Err(error.to_string()) }),
            }
        })
    };
    PREFERRED.get_or_init(look).as_ref()
}

/// Opens one of the [`preferred`] devices in this process and tests it, unless it is known to have passed.
///
/// # Errors
/// It cannot be opened, or it computes wrongly.
#[cfg(feature = "gpu")]
pub fn test(kind: &str, seen: &Seen) -> Result<(), String> {
    if has_passed(&seen.key) {
        return Ok(());
    }
    let request = DeviceRequest { ordinal: Some(seen.number), threads: vec![1], ..DeviceRequest::default() };
    let device = open(kind, &request).map_err(|error| error.to_string())?;
    self_test(device.as_ref())?;
    self_test::remember(&seen.key);
    Ok(())
}

/// The number of devices of a kind that this process may use, where devices have numbers and can be counted.
pub fn count(kind: &str) -> Option<usize> {
    find(kind).ok()?.numbered.and_then(|numbered| (numbered.count)())
}

/// The numbers of a kind's devices on which no program computes, where devices have numbers and tell.
pub fn idle(kind: &str) -> Option<Vec<usize>> {
    find(kind).ok()?.numbered.and_then(|numbered| (numbered.idle)())
}

/// All GPUs of this machine, as NVIDIA's management library sees them now; `None` without it. None is opened.
#[cfg(feature = "gpu")]
pub fn gpus() -> Option<Vec<GpuStatus>> {
    enmasse_cuda::status()
}

/// The kind with that name.
///
/// # Errors
/// This build has no such kind. The text lists all kinds.
pub fn find(kind: &str) -> Result<&'static DeviceKind, DeviceError> {
    KINDS.iter().find(|known| known.name == kind).ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|known| known.name).collect();
        let names = match &names[..] {
            [others @ .., before, last] => {
                format!("{}{before} and {last}", others.iter().map(|name| format!("{name}, ")).collect::<String>())
            }
            names => names.concat(),
        };
        DeviceError::Unsupported(format!("this build has no device of kind {kind}; it has {names}"))
    })
}

/// A device of a kind, for one rank. `auto` opens the first idle one of the [`preferred`] that passes its self-test, which may run in this
/// process.
///
/// # Errors
/// There is no such kind, or its device cannot be opened as requested.
pub fn open(kind: &str, request: &DeviceRequest) -> Result<Arc<dyn Device>, DeviceError> {
    if kind != AUTO {
        return (find(kind)?.open)(request).map(Arc::from);
    }
    // A request for instruction-set levels is one for cores.
    #[cfg(feature = "gpu")]
    if request.isa.is_none() {
        for (kind, seen) in
            preferred().iter().flat_map(|found| found.seen.iter().flatten().map(|seen| (found.kind, seen)))
        {
            if seen.unusable.is_none() && seen.busy.is_none() && test(kind, seen).is_ok() {
                return open(kind, &DeviceRequest { ordinal: Some(seen.number), ..request.clone() });
            }
        }
    }
    (KINDS[0].open)(request).map(Arc::from)
}

/// A device of a kind with this many computing threads, for programs other than `enmasse`.
///
/// # Errors
/// Those of [`open`].
pub fn with_threads(kind: &str, threads: usize) -> Result<Arc<dyn Device>, DeviceError> {
    open(kind, &DeviceRequest { threads: vec![threads], ..DeviceRequest::default() })
}

/// A device of a kind for this rank of a group, for programs other than `enmasse`: the ranks of a machine divide its cores, and take
/// the GPU of their number. All ranks must call it.
///
/// # Errors
/// Those of [`open`], or the group fails.
pub fn of_rank(kind: &str, group: &Group) -> Result<Arc<dyn Device>, DeviceError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    open(kind, &Share::of(group, 0)?.request(&ProgramConfig::default(), cores))
}

#[cfg(test)]
mod tests {
    use enmasse_device::Summation;

    use super::*;

    #[test]
    fn unsupported_requests_are_refused() {
        let check = |kind: &str, request: DeviceRequest, expected: &str| {
            let found = open(kind, &request).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(found.starts_with(expected), "{found}");
        };
        let default = DeviceRequest::default;
        check("tpu", default(), "this build has no device of kind tpu; it has cpu, gpu and reference");
        check(
            "gpu",
            DeviceRequest { isa: Some("avx2".into()), ..default() },
            "`isa = avx2`: a GPU has no instruction-set",
        );
        check("cpu", DeviceRequest { isa: Some("sse2".into()), ..default() }, "`isa = sse2`: must be portable or avx2");
        check("cpu", DeviceRequest { ordinal: Some(1), ..default() }, "cores have no numbers here: use cpu:N");
        let narrow = || DeviceRequest { summation: Summation::Bf16, ..default() };
        check("reference", narrow(), "`reduce_precision = bf16`: the reference device");
        check("reference", DeviceRequest { ordinal: Some(1), ..default() }, "the reference device has no numbers");
        check(
            "reference",
            DeviceRequest { isa: Some("avx2".into()), ..default() },
            "`isa = avx2`: the reference device",
        );
        check("reference", DeviceRequest { exact: true, ..default() }, "`exact`: the reference device");
    }
}
