//! What each GPU of this machine does now, and for whom, as NVIDIA's management library (NVML) says. No GPU is opened, and those that
//! `CUDA_VISIBLE_DEVICES` hides are there too.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::ptr::null_mut;

use crate::libraries::{Libraries, Library, functions};
use crate::management::{Process, Processes, Utilization, processes, text};

/// `nvmlMemory_t`, in bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

functions! {
    /// What the status calls of NVML. A status is 0, or an error's number.
    struct Functions {
        fn nvmlInit_v2() -> c_int;
        fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int;
        fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut *mut c_void) -> c_int;
        fn nvmlDeviceGetName(device: *mut c_void, text: *mut c_char, length: c_uint) -> c_int;
        fn nvmlDeviceGetMemoryInfo(device: *mut c_void, memory: *mut Memory) -> c_int;
        fn nvmlDeviceGetTemperature(device: *mut c_void, sensor: c_int, degrees: *mut c_uint) -> c_int;
        fn nvmlDeviceGetUtilizationRates(device: *mut c_void, rates: *mut Utilization) -> c_int;
        fn nvmlDeviceGetComputeRunningProcesses_v3(
            device: *mut c_void, count: *mut c_uint, processes: *mut Process,
        ) -> c_int;
    }
}

/// `NVML_TEMPERATURE_GPU`: the sensor of the chip.
const CHIP: c_int = 0;

/// A GPU now. What the driver does not tell is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuStatus {
    /// Its number among all of the machine, as in `nvidia-smi`.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// The share of the driver's last sample in which a kernel ran.
    pub utilization: Option<f64>,
    /// Bytes in use, and all.
    pub memory: Option<[u64; 2]>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// The processes that compute on it.
    pub processes: Option<Vec<GpuProcess>>,
}

/// A process that computes on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// Its number, as the driver lists it.
    pub pid: u32,
    /// The name of its program; `None` if it is not known here, as inside a container.
    pub name: Option<String>,
    /// Whose it is: a name, or a number without one.
    pub user: Option<String>,
    /// Bytes of the GPU that it has.
    pub bytes: Option<u64>,
}

/// All GPUs of this machine; `None` without NVML.
pub fn status() -> Option<Vec<GpuStatus>> {
    let functions = Functions::load(Libraries::gather().load(Library::Management).ok()?).ok()?;
    let mut count = 0;
    // SAFETY: the place is valid.
    let found = unsafe { (functions.nvmlInit_v2)() == 0 && (functions.nvmlDeviceGetCount_v2)(&mut count) == 0 };
    found.then(|| (0..count).filter_map(|number| look(&functions, number)).collect())
}

fn look(functions: &Functions, number: c_uint) -> Option<GpuStatus> {
    let mut device = null_mut();
    // SAFETY: the place is valid.
    if unsafe { (functions.nvmlDeviceGetHandleByIndex_v2)(number, &mut device) } != 0 {
        return None;
    }
    let mut name = [0 as c_char; 96];
    let mut memory = Memory::default();
    let mut degrees = 0;
    let mut rates = Utilization::default();
    // SAFETY: each place is valid for what NVML writes, the name for as many bytes as it is told.
    let [named, remembers, has_sensor, samples] = unsafe {
        [
            (functions.nvmlDeviceGetName)(device, name.as_mut_ptr(), name.len() as c_uint),
            (functions.nvmlDeviceGetMemoryInfo)(device, &mut memory),
            (functions.nvmlDeviceGetTemperature)(device, CHIP, &mut degrees),
            (functions.nvmlDeviceGetUtilizationRates)(device, &mut rates),
        ]
        .map(|result| result == 0)
    };
    let listed = processes(|count, list| {
        // SAFETY: NVML writes at most `count` processes, for which there is room.
        unsafe { (functions.nvmlDeviceGetComputeRunningProcesses_v3)(device, count, list) }
    });
    Some(GpuStatus {
        number: number as usize,
        name: if named { text(&name) } else { "GPU".to_owned() },
        utilization: samples.then(|| f64::from(rates.gpu.min(100)) / 100.0),
        memory: remembers.then_some([memory.used, memory.total]),
        temperature: has_sensor.then_some(degrees),
        processes: match listed {
            Some(Processes::Few(list)) => Some(list.into_iter().map(|(pid, bytes)| process(pid, bytes)).collect()),
            Some(Processes::Many) | None => None,
        },
    })
}

fn process(pid: u32, bytes: Option<u64>) -> GpuProcess {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim().to_owned());
    let owner = fs::metadata(format!("/proc/{pid}")).ok().map(|folder| folder.uid());
    GpuProcess { pid, name: name.filter(|name| !name.is_empty()), user: owner.map(user), bytes }
}

/// The name of a user, where this machine's own list has it.
fn user(number: u32) -> String {
    let list = fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_in(&list, number).unwrap_or_else(|| number.to_string())
}

fn name_in(list: &str, number: u32) -> Option<String> {
    list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names() {
        let list = "root:x:0:0:root:/root:/bin/sh\nbroken\nada:x:1000:1000::/home/ada:/bin/sh\n";
        let check = |number: u32, expected: Option<&str>| assert_eq!(name_in(list, number).as_deref(), expected);
        check(0, Some("root"));
        check(1000, Some("ada"));
        check(7, None);
    }

    #[test]
    fn a_process_of_this_machine_is_named() {
        let own = process(std::process::id(), Some(1));
        assert!(own.name.is_some() && own.user.is_some(), "{own:?}");
        // No process has this number.
        let none = GpuProcess { pid: u32::MAX, name: None, user: None, bytes: None };
        assert_eq!(process(u32::MAX, None), none);
    }
}
