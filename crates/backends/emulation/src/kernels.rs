//! Runs kernels on host memory.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::path::Path;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::build;

/// One thread of a kernel.
type Body = unsafe extern "C" fn(*const c_void);

/// `emulation_run` in `cpp/host.cpp`.
type Run = unsafe extern "C" fn(Body, *const c_uint, c_uint, *const c_void, usize, c_int, *mut c_char, usize) -> c_int;

/// The order in which blocks and threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first one first.
    Forwards,
    /// The last one first.
    Backwards,
}

/// The kernels of the `cuda` crate, compiled for the host.
pub struct Kernels {
    library: Library,
}

impl Kernels {
    /// Compiles them at the first call. `None` without a compiler: the test is then in the table of those that did not run.
    pub fn get() -> Option<&'static Self> {
        static KERNELS: OnceLock<Kernels> = OnceLock::new();
        build::compiler().then(|| KERNELS.get_or_init(|| Self::open(&build::KERNELS.build())))
    }

    fn open(path: &Path) -> Self {
        // SAFETY: a shared object that this crate has built, whose initialisers do no harm.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.unwrap_or_else(|error| panic!("{error}"));
        Kernels { library }
    }

    /// Runs a kernel with `block` threads in each block of the grid, one block after another. `arguments` are the bytes of
    /// its struct. Where the result depends on the order, threads use each other's results without waiting for them.
    ///
    /// # Errors
    /// Says which kernel there is not, or takes a struct of another size, or waits for threads that do not come.
    ///
    /// # Safety
    /// The addresses among the arguments are valid for everything that the kernel does.
    pub unsafe fn run(
        &self,
        name: &str,
        grid: [u32; 3],
        block: u32,
        arguments: &[u8],
        order: Order,
    ) -> Result<(), String> {
        // SAFETY: the types in `cpp/host.cpp`, and in `KERNEL` of `cpp/host.h`.
        let (run, body, size): (Symbol<Run>, Symbol<Body>, Symbol<*const c_ulong>) = unsafe {
            let body = self.library.get(name).map_err(|_| format!("there is no kernel {name}"))?;
            let size = self.library.get(format!("{name}_size")).map_err(|_| format!("{name} is no kernel"))?;
            (self.library.get("emulation_run").expect("a runner"), body, size)
        };
        // SAFETY: see above.
        let size = unsafe { **size };
        if size != arguments.len() as c_ulong {
            return Err(format!("{name} takes {size} bytes of arguments, not {}", arguments.len()));
        }
        let mut message = [0u8; 1024];
        let text = message.as_mut_ptr().cast();
        let room = message.len();
        let packed = arguments.as_ptr().cast();
        let backwards = c_int::from(order == Order::Backwards);
        // SAFETY: the caller's promise; the runner copies the arguments, and ends the message with a zero.
        let result = unsafe { run(*body, grid.as_ptr(), block, packed, arguments.len(), backwards, text, room) };
        if result == 0 {
            return Ok(());
        }
        let message = CStr::from_bytes_until_nul(&message).map_or_else(|_| "".into(), CStr::to_string_lossy);
        Err(format!("{name}: {message}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel of `cpp/rules.cu` writes for each thread.
    fn run(name: &str, grid: [u32; 3], block: u32, order: Order) -> Option<Result<Vec<u32>, String>> {
        static RULES: OnceLock<Kernels> = OnceLock::new();
        if !build::compiler() {
            return None;
        }
        let kernels = RULES.get_or_init(|| Kernels::open(&build::RULES.build()));
        let mut y = vec![0u32; (grid.iter().product::<u32>() * block) as usize];
        // SAFETY: every kernel writes one number for each thread.
        let result = unsafe { kernels.run(name, grid, block, &(y.as_mut_ptr() as u64).to_ne_bytes(), order) };
        Some(result.map(|()| y))
    }

    #[test]
    fn kernels_that_keep_the_rules() {
        let check = |name, grid, block, expected: &dyn Fn(u32) -> u32| {
            for order in [Order::Forwards, Order::Backwards] {
                let Some(found) = run(name, grid, block, order) else { return };
                let threads = grid.iter().product::<u32>() * block;
                assert_eq!(found, Ok((0..threads).map(expected).collect()), "{name}");
            }
        };
        check("number_threads", [3, 2, 2], 32, &|i| i);
        check("pass_on", [3, 1, 1], 256, &|i| (i % 256 + 2) % 256);
        check("add_lanes", [1; 3], 64, &|i| if i < 32 { 496 + (i ^ 1) } else { 1520 + (i ^ 1) });
        check("some_leave", [1; 3], 7, &|i| 1 - i % 2);
        // Also in the second block, which has the memory of the first.
        check("read_before_write", [2, 1, 1], 256, &|_| u32::MAX);
    }

    #[test]
    fn kernels_that_break_a_rule_end_and_say_so() {
        let check = |name, block, expected: &str| {
            let Some(found) = run(name, [1; 3], block, Order::Forwards) else { return };
            let message = found.expect_err(name);
            assert!(message.contains(expected), "{message}");
        };
        // Each leaves fibers behind, which the next one does not meet.
        for _ in 0..2 {
            check("two_barriers", 32, "threads wait at two barriers");
            check("lane_is_missing", 64, "thread 32 waits for lane 8, which is not there");
            check("lane_waits_elsewhere", 32, "thread 0 waits for lane 5, which is not there");
            check("add_lanes", 33, "thread 32 waits for lane 1, which is not there");
            check("shares_too_much", 32, "thread 0: the block shares 49156 bytes");
            check("unknown", 32, "there is no kernel unknown");
        }
        kernels_that_keep_the_rules();
    }

    #[test]
    fn what_depends_on_the_order_differs() {
        let run = |order| run("do_not_wait", [1; 3], 32, order).map(|found| found.expect("numbers"));
        let (Some(first), Some(second)) = (run(Order::Forwards), run(Order::Backwards)) else { return };
        assert_ne!(first, second);
    }

    #[test]
    fn arguments_must_have_the_size_of_the_struct() {
        let Some(kernels) = build::compiler().then(|| Kernels::open(&build::RULES.build())) else { return };
        // SAFETY: it does not run.
        let found = unsafe { kernels.run("pass_on", [1; 3], 32, &[0; 4], Order::Forwards) };
        assert_eq!(found, Err("pass_on takes 8 bytes of arguments, not 4".into()));
    }
}
