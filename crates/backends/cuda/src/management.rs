//! What NVIDIA's management library (NVML) knows of a GPU, and CUDA does not: who else computes on it, and whether it is slowed
//! down.
//!
//! The library is a part of the driver. Where it is missing, or does not answer, nothing is said: no run depends on it.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fs::{read_link, read_to_string};
use std::os::unix::process::parent_id;
use std::ptr::null_mut;

use crate::driver::Properties;
use crate::libraries::{Libraries, Library, functions};

/// `nvmlProcessInfo_v2_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Process {
    pid: c_uint,
    bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlUtilization_t`: percents of the driver's last sample, which takes between a sixth of a second and a second.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Utilization {
    /// In which a kernel ran.
    pub gpu: c_uint,
    /// In which memory was read or written.
    memory: c_uint,
}

functions! {
    /// What enmasse calls of NVML. A status is 0, or an error's number.
    struct Functions {
        fn nvmlInit_v2() -> c_int;
        fn nvmlSystemGetDriverVersion(text: *mut c_char, length: c_uint) -> c_int;
        fn nvmlDeviceGetHandleByPciBusId_v2(address: *const c_char, device: *mut *mut c_void) -> c_int;
        fn nvmlDeviceGetUUID(device: *mut c_void, text: *mut c_char, length: c_uint) -> c_int;
        fn nvmlDeviceGetComputeRunningProcesses_v3(
            device: *mut c_void, count: *mut c_uint, processes: *mut Process,
        ) -> c_int;
        fn nvmlDeviceGetUtilizationRates(device: *mut c_void, rates: *mut Utilization) -> c_int;
        fn nvmlDeviceGetCurrentClocksThrottleReasons(device: *mut c_void, reasons: *mut u64) -> c_int;
    }
}

/// `NVML_VALUE_NOT_AVAILABLE`: the driver does not tell how much memory a process has.
const UNKNOWN: u64 = u64::MAX;

/// `NVML_ERROR_INSUFFICIENT_SIZE`: there are more processes than were asked for.
const INSUFFICIENT_SIZE: c_int = 7;

/// Processes that are asked for. A GPU with more is busy all the same.
const MAX_PROCESSES: usize = 64;

/// The processes that compute on a GPU.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Processes {
    /// Their numbers, and the bytes of the GPU that each has, where that is known.
    Few(Vec<(u32, Option<u64>)>),
    /// More than [`MAX_PROCESSES`], whose numbers the driver does not tell.
    Many,
}

/// Why a GPU lowers its clocks, by bits of `nvmlClocksEventReasons`. Idle GPUs and those at their power limit, where a GPU
/// in full use mostly is, are left out.
const SLOWDOWNS: [(u64, &str); 3] = [
    (0x20 | 0x40, "it is too hot; check its cooling"),
    (0x80, "its power supply limits it; check its power cables"),
    (0x08, "its hardware lowers the clocks; see nvidia-smi -q -d PERFORMANCE"),
];

/// A whole GPU, as NVML sees it.
#[derive(Debug)]
pub(crate) struct Management {
    functions: Functions,
    device: *mut c_void,
}

// SAFETY: NVML's functions may be called by any thread, and its handles are numbers.
unsafe impl Send for Management {}
// SAFETY: see above.
unsafe impl Sync for Management {}

impl Management {
    /// The GPU with these properties. `None` without NVML, and for an instance of a divided GPU (MIG): NVML's figures are then
    /// those of the whole GPU.
    pub fn of(libraries: &Libraries, gpu: &Properties) -> Option<Self> {
        let functions = Functions::load(libraries.load(Library::Management).ok()?).ok()?;
        let address = CString::new(gpu.address.as_str()).ok()?;
        let mut device = null_mut();
        let mut uuid = [0 as c_char; 96];
        // SAFETY: the text ends in a zero, and each place is valid for the result that NVML writes.
        let found = unsafe {
            (functions.nvmlInit_v2)() == 0
                && (functions.nvmlDeviceGetHandleByPciBusId_v2)(address.as_ptr(), &mut device) == 0
                && (functions.nvmlDeviceGetUUID)(device, uuid.as_mut_ptr(), uuid.len() as c_uint) == 0
        };
        let uuid = text(&uuid);
        let digits = uuid.trim_start_matches("GPU-").replace('-', "");
        (found && digits == gpu.digits()).then_some(Management { functions, device })
    }

    /// The driver's version, such as `570.86.10`.
    pub fn driver_version(&self) -> Option<String> {
        let mut version = [0 as c_char; 96];
        // SAFETY: the place is valid for as many bytes as NVML may write.
        let result =
            unsafe { (self.functions.nvmlSystemGetDriverVersion)(version.as_mut_ptr(), version.len() as c_uint) };
        (result == 0).then(|| text(&version))
    }

    /// Whether no process computes on the GPU; `None` if the driver does not tell.
    pub fn is_idle(&self) -> Option<bool> {
        self.processes().map(|processes| processes == Processes::Few(Vec::new()))
    }

    fn processes(&self) -> Option<Processes> {
        processes(|count, list| {
            // SAFETY: NVML writes at most `count` processes, for which there is room.
            unsafe { (self.functions.nvmlDeviceGetComputeRunningProcesses_v3)(self.device, count, list) }
        })
    }

    /// The processes of other jobs that compute on the GPU, in words; `None` if none are known. Ranks that the same launcher
    /// has started are no others: they run the same program. This process must not compute on the GPU yet: inside a container
    /// it may not know the number under which NVML lists it.
    pub fn others(&self) -> Option<String> {
        let parent = |pid: u32| {
            let status = read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name, which is in parentheses, may have spaces.
            status.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
        };
        let program = |pid: &str| read_link(format!("/proc/{pid}/exe")).ok();
        // A job that was started from the same shell has the same parent, too.
        let is_rank = |pid: u32| {
            parent(pid) == Some(parent_id())
                && program(&pid.to_string()).is_some_and(|its| Some(its) == program("self"))
        };
        let processes = match self.processes()? {
            Processes::Few(processes) => processes,
            Processes::Many => return Some(format!("more than {MAX_PROCESSES} processes")),
        };
        let others = processes.into_iter().filter(|(pid, _)| !is_rank(*pid));
        let words: Vec<String> = others.map(|(pid, bytes)| describe(pid, bytes)).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// The share of the driver's last sample in which a kernel ran; `None` if the driver does not tell.
    pub fn utilization(&self) -> Option<f64> {
        let mut rates = Utilization::default();
        // SAFETY: the place is valid.
        let result = unsafe { (self.functions.nvmlDeviceGetUtilizationRates)(self.device, &mut rates) };
        (result == 0).then(|| f64::from(rates.gpu.min(100)) / 100.0)
    }

    /// Why the GPU is slower than it could be; `None` if it is not.
    pub fn slowdown(&self) -> Option<&'static str> {
        let reasons = self.slowdowns();
        SLOWDOWNS.iter().find(|(bits, _)| reasons & bits != 0).map(|(_, why)| *why)
    }

    /// Why the GPU is too hot to be chosen; `None` if it is not.
    pub fn overheating(&self) -> Option<&'static str> {
        let (bits, why) = SLOWDOWNS[0];
        (self.slowdowns() & bits != 0).then_some(why)
    }

    fn slowdowns(&self) -> u64 {
        let mut reasons = 0;
        // SAFETY: the place is valid.
        let result = unsafe { (self.functions.nvmlDeviceGetCurrentClocksThrottleReasons)(self.device, &mut reasons) };
        if result == 0 { reasons } else { 0 }
    }
}

/// What `ask` lists: it writes at most as many processes as it is told, says how many there are, and returns a status.
pub(crate) fn processes(ask: impl FnOnce(&mut c_uint, *mut Process) -> c_int) -> Option<Processes> {
    let mut list = [Process::default(); MAX_PROCESSES];
    let mut count = MAX_PROCESSES as c_uint;
    let known = |process: &Process| (process.pid, Some(process.bytes).filter(|bytes| *bytes != UNKNOWN));
    match ask(&mut count, list.as_mut_ptr()) {
        0 => Some(Processes::Few(list.get(..count as usize)?.iter().map(known).collect())),
        INSUFFICIENT_SIZE => Some(Processes::Many),
        _ => None,
    }
}

/// What NVML wrote, up to the zero.
pub(crate) fn text(written: &[c_char]) -> String {
    written.iter().map(|byte| char::from(byte.to_ne_bytes()[0])).take_while(|letter| *letter != '\0').collect()
}

/// `python (pid 4242) with 8192 MiB`.
fn describe(pid: u32, bytes: Option<u64>) -> String {
    let name = read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = if name.trim().is_empty() { "a process" } else { name.trim() };
    let memory = bytes.map_or(String::new(), |bytes| format!(" with {} MiB", bytes >> 20));
    format!("{name} (pid {pid}){memory}")
}
