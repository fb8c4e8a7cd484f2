//! Every kind of device in this build, by name.
//!
//! A device is a crate that implements [`Device`], and a line here. No other crate of the program names one.
//!
//! ```
//! let device = enmasse_devices::open("cpu", &Default::default())?;
//! assert!(device.name().starts_with("cpu ("));
//! let unknown = enmasse_devices::open("tpu", &Default::default()).err().map(|error| error.to_string());
//! assert_eq!(unknown.as_deref(), Some("this build has no device of kind tpu; it has cpu, gpu and reference"));
//! # Ok::<(), enmasse_device::DeviceError>(())
//! ```

use enmasse_device::{Device, DeviceError, DeviceRequest};

/// A kind of device, as named in `--devices KIND:N`.
#[derive(Clone, Copy)]
pub struct DeviceKind {
    /// Its name.
    pub name: &'static str,
    open: fn(&DeviceRequest) -> Result<Box<dyn Device>, DeviceError>,
}

/// All kinds. The first is the default.
pub static KINDS: &[DeviceKind] = &[
    DeviceKind { name: "cpu", open: enmasse_cpu::open },
    DeviceKind { name: "gpu", open: enmasse_cuda::open },
    DeviceKind { name: "reference", open: enmasse_reference::open },
];

/// The kind with that name. The error lists all kinds.
pub fn find(kind: &str) -> Result<&'static DeviceKind, DeviceError> {
    KINDS.iter().find(|known| known.name == kind).ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|known| known.name).collect();
        let (last, others) = names.split_last().map_or(("", &[][..]), |(last, others)| (*last, others));
        let others = others.join(", ");
        DeviceError::Unsupported(format!("this build has no device of kind {kind}; it has {others} and {last}"))
    })
}

/// A device of a kind, for one rank.
pub fn open(kind: &str, request: &DeviceRequest) -> Result<Box<dyn Device>, DeviceError> {
    (find(kind)?.open)(request)
}

/// A device of a kind with this many computing threads, for programs other than `enmasse`.
pub fn with_threads(kind: &str, threads: usize) -> Result<Box<dyn Device>, DeviceError> {
    open(kind, &DeviceRequest { threads: vec![threads], ..DeviceRequest::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_requests_are_refused() {
        let check = |kind: &str, request: DeviceRequest, expected: &str| {
            let found = open(kind, &request).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(found.starts_with(expected), "{found}");
        };
        let usual = DeviceRequest::default;
        check("tpu", usual(), "this build has no device of kind tpu; it has cpu, gpu and reference");
        check("gpu", DeviceRequest { isa: Some("avx2".into()), ..usual() }, "--isa avx2: a GPU has no instruction-set");
        check("cpu", DeviceRequest { isa: Some("sse2".into()), ..usual() }, "--isa sse2: must be portable or avx2");
        check("cpu", DeviceRequest { ordinal: Some(1), ..usual() }, "cores have no numbers here: use cpu:N");
        check("reference", DeviceRequest { ordinal: Some(1), ..usual() }, "the reference device has no numbers");
        check("reference", DeviceRequest { isa: Some("avx2".into()), ..usual() }, "--isa avx2: the reference device");
        check("reference", DeviceRequest { exact: true, ..usual() }, "--exact: the reference device");
    }
}
