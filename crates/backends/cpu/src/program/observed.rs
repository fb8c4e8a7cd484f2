//! What is measured of a program's instructions: the total time of each, or when each ran. Usually nothing.

use std::time::{Duration, Instant};

use enmasse_device::InstructionSpan;
use enmasse_graph::{Mode, Plan, Plans};

/// The measurements of a program.
#[derive(Default)]
pub(super) struct Observed {
    /// For training and for evaluation.
    totals: Option<[Vec<Duration>; 2]>,
    /// Of training, within the capacity allocated at the start.
    spans: Option<Vec<InstructionSpan>>,
}

impl Observed {
    pub(super) fn start_totals(&mut self, plans: &Plans) {
        let zero = |plan: &Plan| vec![Duration::ZERO; plan.instructions.len()];
        self.totals = Some([plans.train.as_ref().map(zero).unwrap_or_default(), zero(&plans.evaluate)]);
    }

    pub(super) fn totals(&self, mode: Mode) -> Vec<Duration> {
        self.totals.as_ref().map(|totals| totals[place(mode)].clone()).unwrap_or_default()
    }

    pub(super) fn start_spans(&mut self, capacity: usize) {
        self.spans = Some(Vec::with_capacity(capacity));
    }

    pub(super) fn take_spans(&mut self) -> Vec<InstructionSpan> {
        self.spans.take().unwrap_or_default()
    }

    /// Whether anybody wants to know when a mode's instructions ran.
    pub(super) fn asks(&self, mode: Mode) -> bool {
        self.totals.is_some() || (self.spans.is_some() && mode == Mode::Train)
    }

    /// An instruction of a shard ended just now. Allocates nothing.
    pub(super) fn ran(&mut self, mode: Mode, shard: usize, instruction: usize, began: Instant) {
        let ended = Instant::now();
        if let Some(totals) = &mut self.totals {
            totals[place(mode)][instruction] += ended - began;
        }
        if let Some(spans) = self.spans.as_mut().filter(|spans| mode == Mode::Train && spans.len() < spans.capacity()) {
            spans.push(InstructionSpan { instruction, shard, began, ended });
        }
    }
}

fn place(mode: Mode) -> usize {
    match mode {
        Mode::Train => 0,
        Mode::Evaluate => 1,
    }
}
