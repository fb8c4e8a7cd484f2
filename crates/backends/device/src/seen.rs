//! A device with a number, as it is seen without being opened.

/// A device that a process may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its number among those that the process may use.
    pub number: usize,
    /// Its name for people, such as `gpu 0 (NVIDIA H100, 0000:1b:00.0)`.
    pub name: String,
    /// The physical device, as [`crate::Device::unit`] names it.
    pub unit: String,
    /// The name of a file for what is known of the device with its driver and libraries: another name for another of them.
    pub key: String,
    /// Why no program can compute on it, if so.
    pub unusable: Option<String>,
    /// Why nobody else should compute on it now, if so: `python (pid 4242) with 8192 MiB computes on it`.
    pub busy: Option<String>,
}
