//! Which blocks of a model backward computes again: all, or as few as a budget of memory needs.
//!
//! What a choice saves and costs follows from the plan that marks the blocks and computes none again. A value that a block need not
//! keep takes its memory from the end of the block's forward to the beginning of its backward. The blocks whose values lie in
//! memory at a place of the step are therefore the first ones, up to a number. That makes the choice a knapsack whose capacity is known
//! for each such number, and a table over quantised bytes solves it for a peak.
//!
//! Peaks between the least and the most give a list of choices, from the least work to the most, which no budget changes. The first
//! one whose compiled plans fit is taken, so that a larger budget never computes more again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::builder::Forward;
use crate::compile::train_plan;
use crate::passes::{Blocks, nodes_again};
use crate::plan::aligned_bytes;
use crate::{Arena, CompileOptions, Cost, GraphError, Phase, Plan, Plans, Target, ValueId};

/// Peaks for which a choice is sought.
const PEAKS: usize = 32;
/// Steps of bytes in the table.
const LEVELS: usize = 1024;
/// Part of a budget by which an estimate may exceed it: choices beyond are not compiled.
const ESTIMATE: usize = 20;

/// Which blocks of the model backward computes again, so that memory need not keep their activations. The results have the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Recompute {
    /// None.
    #[default]
    Nothing,
    /// All.
    All,
    /// Those with the least work with which the arenas of all plans take at most this many bytes together.
    Within(usize),
    /// The same for a share of what they take without.
    Share(f64),
}

/// What backward computes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recomputed {
    /// The first layer of each block that is computed again.
    pub layers: Vec<String>,
    /// Blocks of the model.
    pub blocks: usize,
    /// Bytes of the arenas of all plans: without, and with it.
    pub bytes: [usize; 2],
    /// Floating-point operations of a step, as [`Cost::flops`]: without, and with it.
    pub flops: [u64; 2],
}

/// One line of the plan's text.
impl fmt::Display for Recomputed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = self.layers.join(" ");
        let [bytes, fewer] = self.bytes;
        let [flops, more] = self.flops;
        write!(f, "recompute {} of {} blocks, ", self.layers.len(), self.blocks)?;
        write!(f, "{bytes} -> {fewer} bytes, {flops} -> {more} flops: {layers}")
    }
}

impl Target<'_> {
    /// The plans of a model with marked blocks, of which backward computes some again. `without` are the plans that compute none again.
    pub(crate) fn recomputing(
        &self,
        forward: Forward,
        options: &CompileOptions,
        without: Plans,
    ) -> Result<Plans, GraphError> {
        let blocks = Blocks::new(&forward.graph.nodes, &forward.graph.values);
        let compiled = |chosen: &[bool]| -> Result<Plans, GraphError> {
            let (train, _) = train_plan(forward.clone(), options, chosen)?;
            Ok(self.plans(Some(train), without.evaluate.clone(), without.state.clone()))
        };
        let said = |mut plans: Plans, chosen: &[bool]| {
            let flops = |plans: &Plans| plans.train.iter().map(|plan| plan.total_cost().flops).sum();
            let layers = blocks.layers.iter().zip(chosen).filter(|(_, chosen)| **chosen);
            let recomputed = Recomputed {
                layers: layers.map(|(layer, _)| layer.clone()).collect(),
                blocks: blocks.layers.len(),
                bytes: [without.bytes(), plans.bytes()],
                flops: [flops(&without), flops(&plans)],
            };
            plans.train.iter_mut().for_each(|plan| plan.recomputed = Some(recomputed.clone()));
            plans
        };
        let all = vec![true; blocks.layers.len()];
        let budget = match options.recompute {
            Recompute::Within(bytes) => bytes,
            Recompute::Share(share) => (without.bytes() as f64 * share) as usize,
            Recompute::All if all.is_empty() => {
                let reason = "`recompute` has no effect: no block of the model can be computed again";
                return Err(GraphError::Option(reason.to_owned()));
            }
            Recompute::All | Recompute::Nothing => return Ok(said(compiled(&all)?, &all)),
        };
        if without.bytes() <= budget {
            return Ok(said(without.clone(), &[]));
        }
        let marked = compiled(&vec![false; all.len()])?;
        let model = marked.train.as_ref().map(|plan| Estimate::new(plan, &blocks)).unwrap_or_default();
        let others = marked.bytes() - marked.arena_bytes(Arena::Activations);
        let of_evaluation = without.evaluate.arena_bytes(Arena::Activations);
        let mut smallest = without.bytes();
        for (chosen, peak) in model.choices() {
            let estimate = others + peak.max(of_evaluation);
            let least = estimate - estimate / (ESTIMATE + 1);
            if least <= budget {
                let plans = compiled(&chosen)?;
                if plans.bytes() <= budget {
                    return Ok(said(plans, &chosen));
                }
                smallest = smallest.min(plans.bytes().max(least));
            } else {
                smallest = smallest.min(compiled(&chosen)?.bytes().max(least));
            }
        }
        let reason = format!(
            "`recompute` within {}: no choice of blocks to compute again takes less than {}, of {} without any",
            text_of(budget),
            text_of(smallest),
            text_of(without.bytes())
        );
        Err(GraphError::Option(reason))
    }
}

/// Bytes rounded up, so that they suffice.
fn text_of(bytes: usize) -> String {
    let (unit, name) = if bytes < 10 << 20 { (1 << 10, "KiB") } else { (1 << 20, "MiB") };
    format!("{} {name}", bytes.div_ceil(unit))
}

/// What choices of blocks take and cost, estimated from a plan that computes none again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Estimate {
    /// Bytes that a block's values take between its forward and its backward.
    bytes: Vec<usize>,
    /// Operations and bytes of computing it again.
    work: Vec<u64>,
    /// The most bytes of activations at places of the step where the values of so many first blocks are kept.
    peaks: Vec<usize>,
}

impl Estimate {
    fn new(plan: &Plan, blocks: &Blocks) -> Self {
        let count = blocks.layers.len();
        let nodes = &plan.instructions;
        // The first and the last instruction that touches each activation.
        let mut lives: BTreeMap<ValueId, (usize, usize)> = BTreeMap::new();
        for (at, node) in nodes.iter().enumerate() {
            let operands = node.inputs.iter().chain(&node.outputs);
            for &id in operands.filter(|id| plan.slot(**id).arena == Arena::Activations) {
                lives.entry(id).or_insert((at, at)).1 = at;
            }
        }
        let bytes_of = |id: ValueId| aligned_bytes(plan.shape(id), plan.value(id).dtype);
        // A result may take the place of an operand that ends there.
        let ends: BTreeSet<(usize, usize)> =
            lives.iter().map(|(&id, &(_, last))| (plan.slot(id).offset, last)).collect();
        let mut changes = vec![0_isize; nodes.len() + 2];
        for (&id, &(first, last)) in &lives {
            let takes_place = first < last && ends.contains(&(plan.slot(id).offset, first));
            changes[first + usize::from(takes_place)] += bytes_of(id) as isize;
            changes[last + 1] -= bytes_of(id) as isize;
        }
        let backward = nodes.partition_point(|node| node.phase < Phase::Backward);
        let producers = producers(plan);
        let mut bytes = vec![0; count];
        let mut work = vec![0; count];
        let mut spans = Vec::new();
        for block in 0..count {
            let of_block = |id: &ValueId| blocks.of(*id) == Some(block);
            let touches = |at: &usize| nodes[*at].inputs.iter().chain(&nodes[*at].outputs).any(&of_block);
            let last = (0..backward).rev().find(touches).unwrap_or(0);
            let first = (backward..nodes.len()).find(touches).unwrap_or(last);
            let kept = lives.iter().filter(|(id, life)| of_block(id) && life.0 <= last && life.1 >= first);
            bytes[block] = kept.filter(|_| first > last).map(|(&id, _)| bytes_of(id)).sum();
            let read = nodes[backward..].iter().flat_map(|node| &node.inputs).copied().filter(of_block).collect();
            let again = nodes_again(nodes, &producers, read, |id| of_block(&id));
            let cost = again.into_iter().map(|place| plan.cost(&nodes[place])).fold(Cost::default(), Cost::plus);
            work[block] = cost.flops + cost.bytes;
            spans.push(last + 1..first);
        }
        let mut peaks = vec![0; count + 1];
        let mut now = 0;
        for (at, change) in changes[..nodes.len()].iter().enumerate() {
            now += change;
            let depth = spans.iter().filter(|span| span.contains(&at)).count();
            peaks[depth] = peaks[depth].max(now as usize);
        }
        Estimate { bytes, work, peaks }
    }

    /// Choices with their peaks, from the least work to the most. The last one is of all blocks.
    fn choices(&self) -> Vec<(Vec<bool>, usize)> {
        let all = vec![true; self.bytes.len()];
        let least = self.peak(&all);
        let most = self.peak(&vec![false; all.len()]);
        let peaks = (0..PEAKS).rev().map(|part| least + (most - least) * part / PEAKS);
        let mut choices: Vec<Vec<bool>> = peaks.filter_map(|peak| self.choice(peak)).chain([all]).collect();
        choices.sort_by_key(|chosen| self.work_of(chosen));
        choices.dedup();
        let peaks: Vec<usize> = choices.iter().map(|chosen| self.peak(chosen)).collect();
        choices.into_iter().zip(peaks).collect()
    }

    fn work_of(&self, chosen: &[bool]) -> u64 {
        self.work.iter().zip(chosen).filter(|(_, chosen)| **chosen).map(|(work, _)| work).sum()
    }

    /// Bytes that lie in memory if the chosen blocks are computed again.
    fn peak(&self, chosen: &[bool]) -> usize {
        let mut saved = 0;
        let mut peak = self.peaks[0];
        for (block, after) in self.peaks[1..].iter().enumerate() {
            saved += if chosen[block] { self.bytes[block] } else { 0 };
            peak = peak.max(after.saturating_sub(saved));
        }
        peak
    }

    /// The choice with the least work that has at most this peak; `None` if quantising leaves none.
    fn choice(&self, peak: usize) -> Option<Vec<bool>> {
        let step = self.bytes.iter().sum::<usize>().div_ceil(LEVELS).max(1);
        // The least work by the bytes that are kept, in steps, and for each block whether the last one of these was kept.
        let mut least: Vec<Option<u64>> = vec![None; LEVELS + self.bytes.len() + 1];
        least[0] = Some(0);
        let mut all = 0;
        let mut table = Vec::new();
        for (block, &bytes) in self.bytes.iter().enumerate() {
            let kept = bytes.div_ceil(step);
            let mut next = vec![None; least.len()];
            let mut is_kept = vec![false; least.len()];
            all += bytes;
            // What may be kept of the blocks so far.
            let most = (peak + all).checked_sub(self.peaks[block + 1])? / step;
            for level in 0..least.len().min(most.saturating_add(1)) {
                let again = least[level].map(|work| work + self.work[block]);
                let keeps = level.checked_sub(kept).and_then(|before| least[before]);
                let keeps_is_less = keeps.is_some_and(|keeps| again.is_none_or(|again| keeps <= again));
                (next[level], is_kept[level]) = if keeps_is_less { (keeps, true) } else { (again, false) };
            }
            least = next;
            table.push((kept, is_kept));
        }
        let (_, mut level) = least.iter().enumerate().filter_map(|(level, work)| Some(((*work)?, level))).min()?;
        let mut chosen = vec![false; table.len()];
        for (block, (kept, is_kept)) in table.iter().enumerate().rev() {
            chosen[block] = !is_kept[level];
            level -= if is_kept[level] { *kept } else { 0 };
        }
        Some(chosen)
    }
}

fn producers(plan: &Plan) -> Vec<Option<usize>> {
    let mut producers = vec![None; plan.values.len()];
    for (place, node) in plan.instructions.iter().enumerate() {
        node.outputs.iter().for_each(|output| producers[output.0] = Some(place));
    }
    producers
}

#[cfg(test)]
#[path = "recomputation_tests.rs"]
mod tests;
