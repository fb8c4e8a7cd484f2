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

/// Takes note of each instruction that has run.
pub(super) struct Observer<'a> {
    totals: Option<&'a mut [Duration]>,
    spans: Option<&'a mut Vec<InstructionSpan>>,
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

    /// The observer of a mode's instructions; `None` if nobody wants to know.
    pub(super) fn of_mode(&mut self, mode: Mode) -> Option<Observer<'_>> {
        let totals = self.totals.as_mut().map(|totals| totals[place(mode)].as_mut_slice());
        let spans = self.spans.as_mut().filter(|_| mode == Mode::Train);
        (totals.is_some() || spans.is_some()).then_some(Observer { totals, spans })
    }
}

fn place(mode: Mode) -> usize {
    match mode {
        Mode::Train => 0,
        Mode::Evaluate => 1,
    }
}

impl Observer<'_> {
    /// An instruction of a shard ended just now. Allocates nothing.
    pub(super) fn ran(&mut self, shard: usize, instruction: usize, began: Instant) {
        let ended = Instant::now();
        if let Some(totals) = &mut self.totals {
            totals[instruction] += ended - began;
        }
        if let Some(spans) = &mut self.spans
            && spans.len() < spans.capacity()
        {
            spans.push(InstructionSpan { instruction, shard, began, ended });
        }
    }
}
