//! The fastest engine for each convolution: from the GPU's record, or by running each candidate
//! alone.
//!
//! Only engines that a plan may have are candidates: those that give the same bits each time, in
//! the plan's arithmetic, within the workspace of an untuned plan. At most 24 are run for a
//! problem, and a slow one is dropped after a run. Products of matrices keep the algorithm of
//! cuBLASLt's own estimate, which has no name that makes it again.

mod contest;
mod operands;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use enmasse_device::Tuned;
use enmasse_graph::{Choices, Plans};

use crate::CudaError;
use crate::cudnn::{ConvolutionPlan, Engine, Problem};
use crate::driver::Graph;
use crate::gpu::Gpu;
use crate::ops::conv2d::convolution_of;
use contest::fastest;
use operands::Operands;
use record::Record;
pub(crate) use record::file_name;

/// The most engines that are measured for a problem, with their knobs. cuDNN names the best by its estimate first, and some at the
/// top are one engine with several tiles.
const CANDIDATES: usize = 24;

/// Chooses the engines of the plans' convolutions, except those in `known`. `folder` has the records of GPUs.
pub(crate) fn tune(plans: &Plans, known: &Choices, gpu: &Gpu, folder: Option<&Path>) -> Result<Tuned, CudaError> {
    gpu.context.enter()?;
    // Includes choices made for other plans, since a run keeps all its choices.
    known.iter().try_for_each(|(signature, name)| check(name, signature))?;
    let operations = operations(plans, known, gpu)?;
    let mut record = Record::open(folder, gpu);
    let mut tuned = Tuned { warning: record.warning.clone(), ..Tuned::default() };
    let (mut engines, mut candidates) = (HashMap::new(), Vec::new());
    for problem in operations.values().flatten() {
        if engines.contains_key(problem) {
            continue;
        }
        // An engine that no longer works is measured against the others again.
        let recorded = record.get(problem).and_then(|name| gpu.engines.named(problem, name).ok());
        if recorded.is_none() {
            let plans = gpu.engines.candidates(problem, CANDIDATES)?;
            if plans.len() > 1 {
                candidates.push(plans);
            }
        }
        engines.insert(*problem, recorded.map(|plan| (plan, true)));
    }
    for (problem, plan) in measure(&candidates, gpu)? {
        record.insert(&problem, &plan.name());
        gpu.engines.keep(&plan);
        engines.insert(problem, Some((plan, false)));
    }
    record.write();
    for (signature, problem) in operations {
        if let Some(Some((plan, is_recorded))) = problem.and_then(|problem| engines.get(&problem)) {
            tuned.choices.insert(signature, plan.name());
            tuned.reused += usize::from(*is_recorded);
        }
    }
    Ok(tuned)
}

/// A choice of another device names no engine.
fn check(name: &str, signature: &str) -> Result<(), CudaError> {
    name.parse::<Engine>().map(drop).map_err(|()| {
        let name = name.escape_default();
        CudaError::Unsupported(format!(
            "the gpu has no engine \"{name}\" for {signature}: the run was tuned on another device; continue with `tune = false`"
        ))
    })
}

/// The problem of each operation that has no known choice, by signature; `None` if operations of one signature have different
/// problems, since a choice is for all of them.
fn operations(plans: &Plans, known: &Choices, gpu: &Gpu) -> Result<BTreeMap<String, Option<Problem>>, CudaError> {
    let mut operations = BTreeMap::new();
    for plan in plans.train.iter().chain([&plans.evaluate]) {
        for node in &plan.instructions {
            let signature = plan.signature(node);
            let chosen = known.get(&signature);
            let Some(engine) = convolution_of(plan, node, chosen, &gpu.engines)? else { continue };
            if chosen.is_none() {
                let problem = engine.problem();
                let entry = operations.entry(signature).or_insert(Some(*problem));
                *entry = entry.filter(|other| other == problem);
            }
        }
    }
    Ok(operations)
}

/// The fastest of each problem's candidates.
fn measure(
    candidates: &[Vec<Arc<ConvolutionPlan>>],
    gpu: &Gpu,
) -> Result<Vec<(Problem, Arc<ConvolutionPlan>)>, CudaError> {
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let operands = Operands::new(gpu, candidates.iter().flatten().map(Arc::as_ref))?;
    let mut found = Vec::new();
    for plans in candidates {
        operands.fill(gpu, &plans[0])?;
        let mut graphs: Vec<Option<Graph>> = plans.iter().map(|_| None).collect();
        let mut measure = |index: usize| {
            let runs = match graphs[index].take() {
                Some(runs) => runs,
                None => operands.capture(gpu, &plans[index])?,
            };
            operands.time(graphs[index].insert(runs))
        };
        if let Some(index) = fastest(plans.len(), &mut measure)? {
            found.push((*plans[index].problem(), plans[index].clone()));
        }
    }
    Ok(found)
}
