//! Every rule, with groups, against the reference's in f64.

use enmasse_graph::optimizers::{AdamW, Lars, Sgd};
use enmasse_graph::{Arena, Optimizer, ParameterGroup};
use enmasse_reference::ops::update::clip_factor;
use enmasse_reference::optimizers::Rule;

use super::*;
use crate::test_support::{Bench, assert_rounded, noise, wide};
use crate::work::Memory;

const ELEMENTS: usize = 40_037;
const LEARNING_RATE: f32 = 0.1;

fn optimizers() -> [Optimizer; 6] {
    let sgd = |momentum, nesterov| Optimizer::Sgd(Sgd { momentum, nesterov });
    let lars = |momentum| Optimizer::Lars(Lars { momentum, trust_coefficient: 0.5, epsilon: 0.25 });
    let adamw = Optimizer::AdamW(AdamW { betas: [0.9, 0.999], epsilon: 1e-8 });
    [sgd(0.0, false), sgd(0.9, false), sgd(0.9, true), adamw, lars(0.0), lars(0.9)]
}

fn range(start: usize, len: usize, weight_decay: f32, learning_rate_scale: f32) -> UpdateRange {
    let group = ParameterGroup { weight_decay, learning_rate_scale };
    UpdateRange { start, len, group, adaptive: weight_decay > 0.0 }
}

/// One group for all; or small and large ranges of several groups, separated by elements that no range updates. One of them
/// starts at an odd place.
fn ranges() -> [Vec<UpdateRange>; 2] {
    let several = vec![
        range(16, 5, 0.0, 1.0),
        range(32, 64, 0.01, 1.0),
        range(96, 1, 0.25, 2.0),
        range(112, 29_000, 0.01, 0.5),
        range(30_083, 9954, 0.0, 3.0),
    ];
    [vec![range(0, ELEMENTS, 5e-4, 1.0)], several]
}

/// Memory with weights, and state that is zero, for an update.
struct Case {
    bench: Bench,
    update: Update,
    gradients: Span,
    /// Weights, then state.
    changed: Vec<Span>,
    norm: Span,
    scaling: Scaling<Span>,
    kernels: Vec<Kernel>,
}

impl Case {
    fn new(update: &Update) -> Option<Self> {
        let mut bench = Bench::new()?;
        let weights = bench.put_in(Memory::Arena(Arena::Parameters), &noise::<f32>(1, ELEMENTS, 1.0));
        let gradients = bench.put_in(Memory::Arena(Arena::Gradients), &[f32::NAN; ELEMENTS]);
        let states = update.optimizer.state_names().len();
        let state = (0..states).map(|slot| bench.put_in(Memory::Arena(Arena::Optimizer(slot)), &[0f32; ELEMENTS]));
        let changed: Vec<Span> = std::iter::once(weights).chain(state.collect::<Vec<_>>()).collect();
        let norm = bench.put_in(Memory::Arena(Arena::Activations), &[1.0f32]);
        let unscale = bench.put_in(Memory::Arena(Arena::Activations), &[1.0f32, 1.0]);
        let skipped_steps = bench.put_in(Memory::Arena(Arena::LossScale), &[0.0f32]);
        let scaling = Scaling { unscale, skipped_steps };
        let operands = UpdateOperands {
            weights: weights.place,
            gradients: gradients.place,
            state: changed[1..].iter().map(|span| span.place).collect(),
            norm: update.clip_norm.map(|_| norm),
            scaling: update.scaled.then_some(scaling),
        };
        let mut constants = Constants::default();
        let kernels = super::update(update, &operands, &mut constants).unwrap();
        bench.constants(&constants);
        Some(Case { bench, update: update.clone(), gradients, changed, norm, scaling, kernels })
    }

    fn step(&mut self, step: u64, gradients: &[f32], norm: f32) {
        self.bench.set(self.gradients, gradients);
        self.bench.set(self.norm, &[norm]);
        self.bench.step(step, LEARNING_RATE, [false; 2]);
        self.bench.run_all(&self.kernels);
    }

    /// A factor that undoes a scale, and the number of steps skipped so far.
    fn scale(&mut self, factor: f32, skipped_steps: f32) {
        self.bench.set(self.scaling.unscale, &[factor, 1.0 / factor]);
        self.bench.set(self.scaling.skipped_steps, &[skipped_steps]);
    }

    /// Weights and state.
    fn bits(&self) -> Vec<Vec<u8>> {
        self.changed.iter().map(|&span| self.bench.get::<u8>(span)).collect()
    }

    /// One step of the reference on weights and state in f64.
    fn reference(&self, step: u64, gradients: &[f32], norm: f32, values: &mut [Vec<f64>]) {
        let clip = self.update.clip_norm.map_or(1.0, |limit| clip_factor(limit, norm.into()));
        let gradients = wide(gradients);
        for range in &self.update.ranges {
            let rule = Rule {
                optimizer: &self.update.optimizer,
                weight_decay: range.group.weight_decay.into(),
                learning_rate: f64::from(LEARNING_RATE) * f64::from(range.group.learning_rate_scale),
                adaptive: range.adaptive,
                clip,
                step,
            };
            let elements = range.start..range.end();
            let mut parts = values.iter_mut().map(|values| &mut values[elements.clone()]);
            let weights = parts.next().unwrap();
            rule.update(weights, &gradients[elements.clone()], parts.collect());
        }
    }
}

#[test]
fn three_steps_equal_the_reference() {
    for optimizer in optimizers() {
        for (ranges, clip_norm) in ranges().into_iter().zip([None, Some(2.0)]) {
            let update = Update { optimizer: optimizer.clone(), ranges, clip_norm, scaled: false };
            let Some(mut case) = Case::new(&update) else { return };
            let mut expected: Vec<_> = case.changed.iter().map(|&span| wide(&case.bench.get::<f32>(span))).collect();
            for step in 1..=3 {
                // Above the limit only in the first step.
                let norm = if step == 1 { 8.0 } else { 0.125 };
                let gradients = noise::<f32>(step, ELEMENTS, 1.0);
                case.step(step, &gradients, norm);
                case.reference(step, &gradients, norm, &mut expected);
            }
            for (tensor, (&span, expected)) in case.changed.iter().zip(&expected).enumerate() {
                assert_rounded(&format!("{optimizer}, tensor {tensor}"), &case.bench.get::<f32>(span), expected, 2e-6);
            }
        }
    }
}

/// A scaled loss has other gradients, and the same update, whose number does not count skipped steps.
#[test]
fn a_scale_is_undone() {
    for optimizer in optimizers() {
        for (ranges, clip_norm) in ranges().into_iter().zip([None, Some(2.0)]) {
            let bits = |scaled: bool| {
                let mut case =
                    Case::new(&Update { optimizer: optimizer.clone(), ranges: ranges.clone(), clip_norm, scaled })?;
                for step in 1..=2 {
                    let gradients = noise::<f32>(step, ELEMENTS, 1.0);
                    if scaled {
                        case.scale(1.0 / 4096.0, 7.0);
                        let scaled: Vec<f32> = gradients.iter().map(|gradient| 4096.0 * gradient).collect();
                        case.step(step + 7, &scaled, 8.0);
                    } else {
                        case.step(step, &gradients, 8.0);
                    }
                }
                Some(case.bits())
            };
            assert!(bits(true) == bits(false), "{optimizer}");
        }
    }
}

#[test]
fn nothing_changes_in_a_step_that_is_skipped() {
    for optimizer in optimizers() {
        let [ranges, _] = ranges();
        let Some(mut case) =
            Case::new(&Update { optimizer: optimizer.clone(), ranges, clip_norm: Some(1.0), scaled: true })
        else {
            return;
        };
        case.step(1, &noise::<f32>(1, ELEMENTS, 1.0), 1.0);
        let before = case.bits();
        case.scale(0.0, 0.0);
        case.step(2, &[f32::INFINITY; ELEMENTS], f32::NAN);
        assert!(case.bits() == before, "{optimizer}");
    }
}

#[test]
fn there_may_be_more_ranges_than_blocks() {
    let many = |at: usize| range(16 * at, 1 + at % 16, (at % 3) as f32 * 0.01, (at % 5) as f32);
    let [_, _, sgd, adamw, _, lars] = optimizers();
    for optimizer in [sgd, adamw, lars] {
        let ranges = (0..BLOCKS + 100).map(many).collect();
        let Some(mut case) =
            Case::new(&Update { optimizer: optimizer.clone(), ranges, clip_norm: None, scaled: false })
        else {
            return;
        };
        let mut expected: Vec<_> = case.changed.iter().map(|&span| wide(&case.bench.get::<f32>(span))).collect();
        case.step(1, &noise::<f32>(1, ELEMENTS, 1.0), 1.0);
        case.reference(1, &noise::<f32>(1, ELEMENTS, 1.0), 1.0, &mut expected);
        for (&span, expected) in case.changed.iter().zip(&expected) {
            assert_rounded(&format!("{optimizer}"), &case.bench.get::<f32>(span), expected, 1e-6);
        }
    }
}

#[test]
fn nothing_changes_after_a_failure() {
    for optimizer in optimizers() {
        let [ranges, _] = ranges();
        let Some(mut case) =
            Case::new(&Update { optimizer: optimizer.clone(), ranges, clip_norm: None, scaled: false })
        else {
            return;
        };
        case.step(1, &noise::<f32>(1, ELEMENTS, 1.0), 1.0);
        let before = case.bits();
        case.bench.fail();
        case.step(2, &[f32::NAN; ELEMENTS], 1.0);
        assert!(case.bits() == before, "{optimizer}");
        case.bench.set(FAILURE, &[0u32; 2]);
        case.step(2, &noise::<f32>(2, ELEMENTS, 1.0), 1.0);
        assert!(case.bits() != before, "{optimizer}");
    }
}

/// The corrections of AdamW hold from the first step to the millionth.
#[test]
fn corrections_are_exact_at_any_step() {
    let optimizer = Optimizer::AdamW(AdamW { betas: [0.9, 0.9999], epsilon: 1e-8 });
    for step in [1, 10, 1000, 1_000_000] {
        let update = Update {
            optimizer: optimizer.clone(),
            ranges: vec![range(0, 33, 0.1, 1.0)],
            clip_norm: None,
            scaled: false,
        };
        let Some(mut case) = Case::new(&update) else { return };
        let mut expected: Vec<_> = case.changed.iter().map(|&span| wide(&case.bench.get::<f32>(span))).collect();
        case.step(step, &noise::<f32>(9, ELEMENTS, 1.0), 1.0);
        case.reference(step, &noise::<f32>(9, ELEMENTS, 1.0), 1.0, &mut expected);
        assert_rounded(&format!("step {step}"), &case.bench.get::<f32>(case.changed[0]), &expected[0], 1e-6);
    }
}

/// Splitting a range changes nothing: the bits equal those of one range with its neighbours.
#[test]
fn ranges_of_one_group_are_one_range() {
    for optimizer in optimizers().into_iter().filter(|optimizer| !optimizer.adapts()) {
        let bits = |cuts: &[usize]| {
            let ranges = cuts.windows(2).map(|ends| range(ends[0], ends[1] - ends[0], 5e-4, 1.0)).collect();
            let mut case = Case::new(&Update { optimizer: optimizer.clone(), ranges, clip_norm: None, scaled: false })?;
            (1..=2).for_each(|step| case.step(step, &noise::<f32>(step, ELEMENTS, 1.0), 1.0));
            Some(case.bits())
        };
        assert!(bits(&[0, ELEMENTS]) == bits(&[0, 48, 63, 64, 20_000, ELEMENTS]), "{optimizer}");
    }
}

/// A NaN norm makes every weight NaN, as in PyTorch; a minimum would hide it.
#[test]
fn clipping_keeps_nan() {
    let optimizer = Optimizer::Sgd(Sgd { momentum: 0.0, nesterov: false });
    let update = Update {
        optimizer: optimizer.clone(),
        ranges: vec![range(0, 5, 0.0, 1.0)],
        clip_norm: Some(2.0),
        scaled: false,
    };
    for norm in [0.0, 1.5, 8.0, f32::INFINITY, f32::NAN] {
        let Some(mut case) = Case::new(&update) else { return };
        let mut expected = [wide(&case.bench.get::<f32>(case.changed[0]))];
        case.step(1, &noise::<f32>(3, ELEMENTS, 1.0), norm);
        case.reference(1, &noise::<f32>(3, ELEMENTS, 1.0), norm, &mut expected);
        assert_rounded(&format!("norm {norm}"), &case.bench.get::<f32>(case.changed[0]), &expected[0], 1e-6);
    }
}

/// LARS updates weights of norm zero, and those without a gradient, as SGD does.
#[test]
fn trust_needs_both_norms() {
    let optimizer = Optimizer::Lars(Lars { momentum: 0.0, trust_coefficient: 0.5, epsilon: 0.25 });
    let update =
        Update { optimizer: optimizer.clone(), ranges: vec![range(0, 100, 0.5, 1.0)], clip_norm: None, scaled: false };
    for (weight, gradient) in [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0)] {
        let Some(mut case) = Case::new(&update) else { return };
        case.bench.set(case.changed[0], &[weight; ELEMENTS]);
        let mut expected = [vec![f64::from(weight); ELEMENTS]];
        case.step(1, &[gradient; ELEMENTS], 1.0);
        case.reference(1, &[gradient; ELEMENTS], 1.0, &mut expected);
        assert_rounded(&format!("{weight} {gradient}"), &case.bench.get::<f32>(case.changed[0]), &expected[0], 1e-6);
    }
}

#[test]
fn an_update_without_its_optimisers_state_is_refused() {
    let place = Place { memory: Memory::Arena(Arena::Parameters), offset: 0 };
    for optimizer in optimizers() {
        let update = Update { optimizer: optimizer.clone(), ranges: Vec::new(), clip_norm: None, scaled: false };
        for count in 0..4 {
            let state = vec![place; count];
            let operands = UpdateOperands { weights: place, gradients: place, state, norm: None, scaling: None };
            let found = super::update(&update, &operands, &mut Constants::default()).ok();
            let expected = (count == optimizer.state_names().len()).then(Vec::new);
            assert_eq!(found, expected, "{optimizer} {count}");
        }
    }
}
