//! The tile registers in plain Rust, after the pseudocode of Intel's manual, so that loops over registers are tested on
//! any machine. Unlike the hardware registers, these keep denormal numbers.

use std::cell::RefCell;

use enmasse_tensor::Bf16;

use super::{SIDE, TileRegisters};
use crate::isa::Sixteen;

type Register = [[f32; SIDE]; SIDE];

thread_local! {
    /// The registers of this thread, while they are configured.
    static REGISTERS: RefCell<Option<[Register; 8]>> = const { RefCell::new(None) };
}

/// Registers that panic if used without being configured; the hardware would end the process.
pub(in crate::gemm) struct Emulated;

fn with<R>(work: impl FnOnce(&mut [Register; 8]) -> R) -> R {
    REGISTERS.with_borrow_mut(|registers| work(registers.as_mut().expect("configured registers")))
}

impl TileRegisters for Emulated {
    type Vectors = Sixteen;
    unsafe fn configure() {
        // Hardware registers would be zero, but no code relies on that.
        REGISTERS.set(Some([[[f32::NAN; SIDE]; SIDE]; 8]));
    }
    unsafe fn release() {
        REGISTERS.set(None);
    }
    unsafe fn zero<const T: usize>() {
        with(|registers| registers[T] = [[0.0; SIDE]; SIDE]);
    }
    unsafe fn load<const T: usize>(from: *const f32, stride: usize) {
        with(|registers| {
            for (i, row) in registers[T].iter_mut().enumerate() {
                // SAFETY: the rows are the caller's responsibility.
                unsafe { std::ptr::copy_nonoverlapping(from.add(i * stride), row.as_mut_ptr(), SIDE) };
            }
        });
    }
    unsafe fn store<const T: usize>(to: *mut f32, stride: usize) {
        with(|registers| {
            for (i, row) in registers[T].iter().enumerate() {
                // SAFETY: the rows are the caller's responsibility.
                unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), to.add(i * stride), SIDE) };
            }
        });
    }
    unsafe fn multiply_add<const C: usize, const A: usize, const B: usize>() {
        // A product of two bf16 values is exact in f32, so fusing its addition changes nothing.
        let halves = |word: f32| [word.to_bits() << 16, word.to_bits() & 0xffff_0000].map(f32::from_bits);
        with(|registers| {
            let a = registers[A];
            let b = registers[B].map(|row| row.map(halves));
            for (a, c) in a.iter().zip(&mut registers[C]) {
                let mut sums = [[0.0; 2]; SIDE];
                for (a, b) in a.map(halves).iter().zip(&b) {
                    for (sum, b) in sums.iter_mut().zip(b) {
                        (sum[0], sum[1]) = (sum[0] + a[0] * b[0], sum[1] + a[1] * b[1]);
                    }
                }
                for (c, sum) in c.iter_mut().zip(sums) {
                    *c += sum[0] + sum[1];
                }
            }
        });
    }
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for (row, column) in (0..SIDE).flat_map(|row| (0..SIDE).map(move |column| (row, column))) {
            // SAFETY: the rows are the caller's responsibility.
            unsafe { *to.add(column * to_stride + row) = *from.add(row * from_stride + column) };
        }
    }
    unsafe fn split(rows: [*const f32; 2], to: [*mut f32; 3]) {
        for lane in 0..SIDE {
            // SAFETY: the rows are the caller's responsibility.
            let mut rest = unsafe { rows.map(|row| *row.add(lane)) };
            for to in to {
                let parts = rest.map(Bf16::from_f32);
                rest = [0, 1].map(|half| rest[half] - parts[half].to_f32());
                let word = u32::from(parts[0].to_bits()) | u32::from(parts[1].to_bits()) << 16;
                // SAFETY: as above.
                unsafe { *to.add(lane) = f32::from_bits(word) };
            }
        }
    }
}
