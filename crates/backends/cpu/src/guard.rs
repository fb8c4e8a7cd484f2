//! Buffers between inaccessible pages. In tests, a kernel that reads or writes one value past its buffer ends the
//! process at once, even where the compiler's checks or the adjacent memory would have hidden the error.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::isa::Isa;
use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// The edge of a buffer that coincides with an inaccessible page. At the other edge there may be room up to such a
/// page. The room is filled with ones, which read as NaN in f32 and bf16, and a write there is detected when the buffer
/// is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    First,
    Last,
}

impl Edge {
    pub(crate) const BOTH: [Edge; 2] = [Edge::First, Edge::Last];
}

/// A multiple of the kernel's page size on every machine.
const PAGE: usize = 1 << 16;

/// The byte that fills the room around the values.
const ROOM: u8 = 0xff;

/// Values that begin or end at such a page. They are a slice with no more than the required alignment.
pub(crate) struct Guarded<T> {
    /// Three parts: a page, the pages that the values need, a page.
    mapping: NonNull<u8>,
    mapped: usize,
    values: NonNull<T>,
    len: usize,
}

// SAFETY: the buffer owns its mapping; access follows the usual borrow rules.
unsafe impl<T: Send> Send for Guarded<T> {}
// SAFETY: as above; shared references only read.
unsafe impl<T: Sync> Sync for Guarded<T> {}

impl<T: Copy> Guarded<T> {
    /// A copy of `values`.
    pub(crate) fn new(edge: Edge, values: &[T]) -> Self {
        let bytes = size_of_val(values);
        let inside = bytes.div_ceil(PAGE).max(1) * PAGE;
        let mapped = inside + 2 * PAGE;
        // SAFETY: a fresh private anonymous mapping aliases nothing.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::empty(), MapFlags::PRIVATE).expect("memory")
        };
        let open = base.cast::<u8>().wrapping_add(PAGE);
        // SAFETY: the pages between the first and the last one of the mapping.
        unsafe { mprotect(open.cast(), inside, MprotectFlags::READ | MprotectFlags::WRITE).expect("pages") };
        let start = match edge {
            Edge::First => open,
            Edge::Last => open.wrapping_add(inside - bytes),
        };
        assert!(PAGE.is_multiple_of(align_of::<T>()) && size_of::<T>().is_multiple_of(align_of::<T>()));
        // SAFETY: the open pages, to which no other pointer exists.
        unsafe { open.write_bytes(ROOM, inside) };
        let start = start.cast::<T>();
        // SAFETY: the open pages hold the values from `start`, and no other pointer to them exists.
        unsafe { start.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        let pointer = "a mapping is never at null";
        Guarded {
            mapping: NonNull::new(base.cast()).expect(pointer),
            mapped,
            values: NonNull::new(start).expect(pointer),
            len: values.len(),
        }
    }

    /// `len` copies of `value`.
    pub(crate) fn filled(edge: Edge, value: T, len: usize) -> Self {
        Guarded::new(edge, &vec![value; len])
    }
}

impl<T> Guarded<T> {
    /// Whether the room around the values is unchanged.
    fn is_whole(&self) -> bool {
        let values = self.values.as_ptr().cast::<u8>();
        // SAFETY: the pages between the first and the last one of the mapping are open and were written by `new`.
        let open = unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(PAGE), self.mapped - 2 * PAGE) };
        let first = values.addr() - open.as_ptr().addr();
        let last = first + self.len * size_of::<T>();
        open[..first].iter().chain(&open[last..]).all(|&byte| byte == ROOM)
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote the values there.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.values.as_ptr(), self.len) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let is_whole = self.is_whole();
        // SAFETY: the mapping was made by `new`, and no borrow of it remains.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped) };
        assert!(is_whole || std::thread::panicking(), "a write fell outside the values");
    }
}

/// A context whose workspace consists of such buffers, all NaN, as an earlier instruction may have left them. This also
/// detects a kernel that reads a value before writing it.
pub(crate) struct GuardedContext {
    context: Context,
    _workspace: Vec<Guarded<f32>>,
}

impl GuardedContext {
    pub(crate) fn new(edge: Edge, threads: usize, isa: Isa, workspace: Workspace) -> Self {
        let mut context = Context::new(threads, isa, Workspace::default()).expect("threads");
        let mut buffers: Vec<_> = (0..threads).map(|_| Guarded::filled(edge, f32::NAN, workspace.private)).collect();
        context.private = buffers.iter_mut().map(|buffer| Region::of_mut(buffer)).collect();
        buffers.push(Guarded::filled(edge, f32::NAN, workspace.shared));
        context.shared = Region::of_mut(&mut buffers[threads]);
        GuardedContext { context, _workspace: buffers }
    }
}

impl Deref for GuardedContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl DerefMut for GuardedContext {
    fn deref_mut(&mut self) -> &mut Context {
        &mut self.context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's access permissions at an address, such as `rw-p`; empty if nothing is mapped there.
    fn permissions(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_line = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let bounds = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
            (bounds[0]..bounds[1]).contains(&address).then(|| rest[..4].to_owned())
        };
        maps.lines().find_map(of_line).unwrap_or_default()
    }

    #[test]
    fn memory_past_the_edge_is_inaccessible() {
        for (edge, len) in
            Edge::BOTH.into_iter().flat_map(|edge| [0, 1, 1023, PAGE / 4, PAGE / 4 + 1].map(|len| (edge, len)))
        {
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let mut guarded = Guarded::new(edge, &values);
            assert_eq!(*guarded, *values);
            guarded.iter_mut().for_each(|value| *value += 1.0);
            assert!(guarded.iter().zip(&values).all(|(found, value)| *found == value + 1.0));
            let bounds = guarded.as_ptr_range();
            let before = bounds.start as usize - 1;
            let behind = bounds.end as usize;
            let (inside, outside) = ("rw-p", "---p");
            match edge {
                Edge::First => assert_eq!(permissions(before), outside, "{len}"),
                Edge::Last => assert_eq!(permissions(behind), outside, "{len}"),
            }
            if len > 0 {
                assert_eq!([permissions(before + 1), permissions(behind - 1)], [inside, inside], "{edge:?} {len}");
            }
        }
        for (edge, beside) in [(Edge::Last, -1), (Edge::First, 3)] {
            let mut guarded = Guarded::filled(edge, 0.0f32, 3);
            assert!(guarded.is_whole());
            let place = guarded.as_mut_ptr().wrapping_offset(beside);
            // SAFETY: the page has room around the values.
            unsafe { assert!(place.replace(0.0).is_nan()) };
            assert!(!guarded.is_whole());
            // SAFETY: as above.
            unsafe { place.cast::<u32>().write(u32::MAX) };
        }
        assert!(Guarded::filled(Edge::Last, 7u8, 70_000).iter().all(|&value| value == 7));
    }
}
