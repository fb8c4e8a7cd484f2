//! The processors near a device: those of the memory node that its bus belongs to. Memory of another node is slower to reach,
//! both for the device and for the threads that prepare its data.

use std::fs::read_to_string;
use std::path::Path;

/// The processors of one memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearProcessors {
    /// The node's number.
    pub node: usize,
    /// Numbers of its processors, ascending.
    pub processors: Vec<usize>,
}

impl NearProcessors {
    /// Of the device at an address on the PCI bus, such as `0000:1b:00.0`, those among `allowed`. `None` if that leaves out
    /// nothing or everything: on a machine with one node, or for a device that belongs to none.
    pub fn of_pci(address: &str, allowed: &[usize]) -> Option<Self> {
        Self::below(Path::new("/sys"), address, allowed)
    }

    /// The same with another folder for `/sys`.
    fn below(sys: &Path, address: &str, allowed: &[usize]) -> Option<Self> {
        // The kernel writes addresses with small letters, and -1 for a device of no node.
        let device = sys.join("bus/pci/devices").join(address.to_lowercase());
        let node = read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()?;
        let list = read_to_string(sys.join(format!("devices/system/node/node{node}/cpulist"))).ok()?;
        let processors: Vec<usize> = allowed.iter().copied().filter(|&number| is_in(&list, number)).collect();
        (!processors.is_empty() && processors.len() < allowed.len()).then_some(NearProcessors { node, processors })
    }
}

/// Whether a list in the kernel's notation, such as `0-3,8`, has a number. Malformed parts have none.
fn is_in(list: &str, number: usize) -> bool {
    list.trim().split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        matches!((first.parse::<usize>(), last.parse::<usize>()), (Ok(first), Ok(last)) if (first..=last).contains(&number))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn processors_of_the_gpus_node() {
        let sys = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = sys.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("devices/system/node/node0/cpulist", "0-1,4-5\n");
        write("devices/system/node/node1/cpulist", "2-3,6-7\n");
        write("devices/system/node/node2/cpulist", "\n");
        for (address, node) in
            [("0000:1b:00.0", "0\n"), ("0000:a1:00.0", "1"), ("0000:b1:00.0", "-1"), ("0000:c1:00.0", "2")]
        {
            write(&format!("bus/pci/devices/{address}/numa_node"), node);
        }
        let check = |address: &str, allowed: &[usize], expected: Option<(usize, &[usize])>| {
            let found = NearProcessors::below(sys.path(), address, allowed);
            assert_eq!(found.as_ref().map(|near| (near.node, &near.processors[..])), expected, "{address} {allowed:?}");
        };
        let all: Vec<usize> = (0..8).collect();
        check("0000:1b:00.0", &all, Some((0, &[0, 1, 4, 5])));
        check("0000:A1:00.0", &all, Some((1, &[2, 3, 6, 7])));
        // Of those that the process may use.
        check("0000:a1:00.0", &[0, 1, 2], Some((1, &[2])));
        check("0000:a1:00.0", &[2, 3], None);
        check("0000:a1:00.0", &[0, 1], None);
        // A device of no node, a node without processors, and a device that is not there.
        check("0000:b1:00.0", &all, None);
        check("0000:c1:00.0", &all, None);
        check("0000:d1:00.0", &all, None);
    }

    #[test]
    fn lists() {
        let check = |list: &str, expected: &[usize]| {
            assert_eq!((0..10).filter(|&number| is_in(list, number)).collect::<Vec<_>>(), expected, "{list}");
        };
        check("0-3,8\n", &[0, 1, 2, 3, 8]);
        check("5", &[5]);
        check("", &[]);
        check("3-1,x,0-,2", &[2]);
    }
}
