//! The GPU on the bus, whether or not their driver is there. Only files are read.

use std::fs::{read_dir, read_to_string};
use std::path::Path;

/// NVIDIA's number among the vendors of [`vendors`].
pub const NVIDIA: &str = "0x10de";

/// The vendor of each display or 3-D controller on the PCI bus.
pub fn vendors() -> Vec<String> {
    let devices = read_dir(Path::new("/sys/bus/pci/devices")).into_iter().flatten().flatten();
    let read = |device: &Path, file: &str| {
        let text = read_to_string(device.join(file)).unwrap_or_default();
        text.trim().to_owned()
    };
    let controllers = devices.map(|entry| entry.path()).filter(|device| read(device, "class").starts_with("0x03"));
    controllers.map(|device| read(&device, "vendor")).collect()
}
