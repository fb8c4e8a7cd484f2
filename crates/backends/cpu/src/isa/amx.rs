//! Whether this process may use AMX tiles.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Bits of CPUID leaf 7, in EDX: dot products of bf16, and tiles.
const AMX_BF16: u32 = 1 << 22;
const AMX_TILE: u32 = 1 << 24;

/// `arch_prctl`, the request, and the state that is requested: tile data. From `asm/prctl.h` and `fpu/types.h`.
const SYS_ARCH_PRCTL: isize = 158;
const ARCH_REQ_XCOMP_PERM: isize = 0x1023;
const XFEATURE_XTILEDATA: isize = 18;

/// Whether the machine has the instructions and Linux lets this process use them. Asks only once: the permission
/// belongs to the process, and from then on to all its threads. Linux refuses if the kernel is old, in a sandbox, or if
/// a signal stack is too small for the tiles.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && permitted())
}

fn has_instructions() -> bool {
    let both = AMX_BF16 | AMX_TILE;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & both == both
}

fn permitted() -> bool {
    let result: isize;
    // SAFETY: the call takes two numbers and touches no memory of this process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_kernels_flags_of_the_processor() {
        let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") else {
            return println!("skipped: no /proc/cpuinfo");
        };
        let flags: Vec<&str> = text.lines().find(|line| line.starts_with("flags")).unwrap().split(' ').collect();
        let expected = ["amx_bf16", "amx_tile"].iter().all(|flag| flags.contains(flag));
        // The kernel may omit a flag if it does not support tiles; then it permits none.
        assert_eq!(has_instructions() && permitted(), expected);
        assert_eq!(available(), expected);
    }
}
