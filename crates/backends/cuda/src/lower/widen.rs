//! Gradients that engines write in 16 bits become f32, many by one kernel: before something touches one of them, or another stream
//! may.

use enmasse_graph::Arena;

use super::Lowering;
use crate::kernels::elementwise::{RANGES, cast_ranges};
use crate::sequence::Call;
use crate::work::{Memory, Place, Span};

impl Lowering<'_> {
    /// Where an engine writes a gradient of parameters in 16 bits, so that it becomes f32 later, in its own place. `None` outside the
    /// arena of gradients. The engine's call comes next.
    pub fn widen_later(&mut self, gradient: Span) -> Option<Span> {
        if gradient.place.memory != Memory::Arena(Arena::Gradients) {
            return None;
        }
        let place = Place { memory: Memory::Narrow, offset: gradient.place.offset / 2 };
        let narrow = Span { place, bytes: gradient.bytes / 2 };
        self.narrow.push([narrow, gradient]);
        Some(narrow)
    }

    /// Whether a call touches a gradient that is not f32 yet, or lets another stream do so.
    pub(super) fn needs_wide(&self, call: &Call) -> bool {
        let touches = |[_, gradient]: &[Span; 2]| call.accesses().all().any(|span| span.overlaps(*gradient));
        matches!(call, Call::Record(_)) || self.narrow.iter().any(touches)
    }

    /// Whether one kernel cannot take more.
    pub(super) fn is_full(&self) -> bool {
        self.narrow.len() >= RANGES
    }

    /// Makes them f32, as work of an instruction.
    pub(super) fn widen(&mut self, instruction: usize) {
        let narrow = std::mem::take(&mut self.narrow);
        let dtype = self.plan.precision.activations();
        for ranges in narrow.chunks(RANGES) {
            self.push(instruction, Call::Kernel(cast_ranges(dtype, ranges)));
        }
    }
}
