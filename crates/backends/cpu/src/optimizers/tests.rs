//! Every rule, with groups, against its formula in f64.

use enmasse_graph::ParameterGroup;
use enmasse_graph::optimizers::{AdamW, Custom, CustomOptimizer, Lars, Sgd, UpdateStep};

use super::*;
use crate::guard::{Edge, Guarded};
use crate::isa::Isa;
use crate::test_support::{assert_near, available, noise};

const ELEMENTS: usize = 40_037;
const LEARNING_RATE: f32 = 0.1;

/// The formulas in f64, for the elements of a range, with gradients that are multiplied by `clip`.
fn plain(
    optimizer: &Optimizer,
    range: &UpdateRange,
    step: i32,
    clip: f64,
    w: &mut [f64],
    g: &[f32],
    state: &mut [Vec<f64>],
) {
    let rate = f64::from(LEARNING_RATE) * f64::from(range.group.learning_rate_scale);
    let decay = f64::from(range.group.weight_decay);
    let norm = |x: &dyn Fn(usize) -> f64| (range.start..range.end()).map(|i| x(i).powi(2)).sum::<f64>().sqrt();
    let w_norm = norm(&|i| w[i]);
    let g_norm = norm(&|i| clip * f64::from(g[i]));
    let momentum = |g: f64, momentum: f32, nesterov: bool, state: &mut [Vec<f64>], i: usize| match state.first_mut() {
        None => g,
        Some(m) => {
            m[i] = f64::from(momentum) * m[i] + g;
            if nesterov { g + f64::from(momentum) * m[i] } else { m[i] }
        }
    };
    for i in range.start..range.end() {
        let w = &mut w[i];
        let g = clip * f64::from(g[i]);
        match optimizer {
            &Optimizer::Sgd(Sgd { momentum: factor, nesterov }) => {
                *w -= rate * momentum(g + decay * *w, factor, nesterov, state, i);
            }
            &Optimizer::Lars(Lars { momentum: factor, trust_coefficient, epsilon }) => {
                let trust = f64::from(trust_coefficient) * w_norm / (g_norm + decay * w_norm + f64::from(epsilon));
                let trust = if range.adaptive { trust } else { 1.0 };
                *w -= rate * momentum(trust * (g + decay * *w), factor, false, state, i);
            }
            &Optimizer::AdamW(AdamW { betas: [b1, b2], epsilon }) => {
                let (b1, b2) = (f64::from(b1), f64::from(b2));
                *w *= 1.0 - rate * decay;
                state[0][i] = b1 * state[0][i] + (1.0 - b1) * g;
                state[1][i] = b2 * state[1][i] + (1.0 - b2) * g * g;
                let root = (state[1][i] / (1.0 - b2.powi(step))).sqrt();
                *w -= rate * state[0][i] / (1.0 - b1.powi(step)) / (root + f64::from(epsilon));
            }
            Optimizer::Custom(_) => {
                state[0][i] = state[0][i] * f64::from(step) / f64::from(step + 1) + g;
                *w -= rate * (state[0][i] + decay * *w);
            }
        }
    }
}

/// Heavy-ball momentum, the longer the more steps there are.
#[derive(Debug)]
struct HeavyBall;

impl CustomOptimizer for HeavyBall {
    fn name(&self) -> &'static str {
        "heavy_ball"
    }

    fn state_names(&self) -> &'static [&'static str] {
        &["velocity", "unused"]
    }

    fn update(&self, step: &UpdateStep, weights: &mut [f64], gradients: &[f64], state: &mut [&mut [f64]]) {
        for (i, w) in weights.iter_mut().enumerate() {
            let velocity = &mut state[0][i];
            *velocity = *velocity * step.number as f64 / (step.number as f64 + 1.0) + gradients[i];
            *w -= step.learning_rate * (*velocity + step.weight_decay * *w);
        }
    }
}

fn optimizers() -> [Optimizer; 7] {
    let sgd = |momentum, nesterov| Sgd { momentum, nesterov }.into();
    let lars = |momentum| Lars { momentum, trust_coefficient: 0.5, epsilon: 0.25 }.into();
    let adamw = AdamW::default().into();
    [sgd(0.0, false), sgd(0.9, false), sgd(0.9, true), adamw, lars(0.0), lars(0.9), Custom::new(HeavyBall).into()]
}

/// One group for all; or small and large ranges of several groups, separated by elements that no range updates.
fn ranges() -> [Vec<UpdateRange>; 2] {
    let range = |start, len, weight_decay, learning_rate_scale| {
        let group = ParameterGroup { weight_decay, learning_rate_scale };
        UpdateRange { start, len, group, adaptive: weight_decay > 0.0 }
    };
    let several = vec![
        range(0, 5, 0.0, 1.0),
        range(16, 64, 0.01, 1.0),
        range(80, 30_000, 0.01, 0.5),
        range(30_080, 9957, 0.0, 3.0),
    ];
    [vec![range(0, ELEMENTS, 5e-4, 1.0)], several]
}

/// Weights and state after three steps, and the values by the formulas.
fn three_steps(update: &Update, isa: Isa) -> (Vec<Vec<f32>>, Vec<Vec<f64>>) {
    let edge = Edge::Last;
    let states = update.optimizer.state_names().len();
    let mut w = Guarded::new(edge, &noise(1, ELEMENTS));
    let mut state: Vec<_> = (0..states).map(|_| Guarded::filled(edge, 0f32, ELEMENTS)).collect();
    let mut w64: Vec<f64> = w.iter().map(|&v| f64::from(v)).collect();
    let mut state64 = vec![vec![0.0; ELEMENTS]; states];
    for step in 1..=3 {
        let g = Guarded::new(edge, &noise(step, ELEMENTS));
        // Above the limit only in the first step.
        let norm = if step == 1 { 8.0 } else { 0.125 };
        let limit = f64::from(update.clip_norm.unwrap_or(f32::INFINITY));
        let clip = (limit / (norm + 1e-6)).min(1.0);
        for range in &update.ranges {
            plain(&update.optimizer, range, step as i32, clip, &mut w64, &g, &mut state64);
        }
        let (regions, norm): (Vec<_>, _) = (state.iter_mut().map(|s| Region::of_mut(s)).collect(), [norm as f32]);
        let clip = update.clip_norm.map(|limit| Clip { limit, norm: Region::of(&norm) });
        let prepared = PreparedUpdate::new(update, Region::of_mut(&mut w), Region::of(&g), &regions, clip).unwrap();
        let context = &mut Context::new(2, isa, prepared.workspace()).unwrap();
        // SAFETY: live buffers of equal length.
        unsafe { prepared.run(context, LEARNING_RATE, step) };
    }
    let found = [&w].into_iter().chain(&state).map(|values| values.to_vec()).collect();
    (found, [w64].into_iter().chain(state64).collect())
}

#[test]
fn three_steps_equal_the_formulas() {
    for optimizer in optimizers() {
        for (ranges, clip_norm) in ranges().into_iter().zip([None, Some(2.0)]) {
            let update = Update { optimizer: optimizer.clone(), ranges, clip_norm, scaled: false };
            let mut first = None;
            for isa in available() {
                let (found, expected) = three_steps(&update, isa);
                for (tensor, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    assert_near(&format!("{update} {isa}, tensor {tensor}"), found, expected, 2e-6);
                }
                let bits = first.get_or_insert_with(|| found.clone());
                assert!(*bits == found, "{update}: the bits differ at {isa}");
            }
        }
    }
}

/// Splitting a range changes nothing: the bits equal those of one range with its neighbours.
#[test]
fn ranges_of_one_group_are_one_range() {
    for optimizer in optimizers().into_iter().filter(|optimizer| !optimizer.adapts()) {
        let [whole, _] = ranges();
        let cut = [0, 48, 64, 20_000, ELEMENTS];
        let parts =
            cut.windows(2).map(|ends| UpdateRange { start: ends[0], len: ends[1] - ends[0], ..whole[0] }).collect();
        let run = |ranges| {
            three_steps(&Update { optimizer: optimizer.clone(), ranges, clip_norm: None, scaled: false }, Isa::detect())
                .0
        };
        assert!(run(whole) == run(parts), "{optimizer}");
    }
}

/// Regression test: AdamW with the state of another optimiser silently did nothing.
#[test]
fn an_update_without_its_optimisers_state_is_refused() {
    let none = Region::new(std::ptr::null_mut(), 0);
    for optimizer in optimizers() {
        let update = Update { optimizer: optimizer.clone(), ranges: Vec::new(), clip_norm: None, scaled: false };
        for count in 0..4 {
            let found = PreparedUpdate::new(&update, none, none, &vec![none; count], None);
            assert_eq!(found.is_some(), count == optimizer.state_names().len(), "{optimizer} {count}");
        }
    }
}

/// A NaN norm makes every weight NaN, as in PyTorch; `f32::min` would hide it.
#[test]
fn clipping_keeps_nan() {
    let check = |norm: f32, expected: f32| {
        let value = [norm];
        let clip = Clip { limit: 2.0, norm: Region::of(&value) };
        // SAFETY: the value lives.
        let found = unsafe { clip.factor() };
        assert!(found == expected || found.is_nan() && expected.is_nan(), "{norm}: {found}");
    };
    check(0.0, 1.0);
    check(1.5, 1.0);
    check(8.0, 2.0 / (8.0 + 1e-6));
    check(f32::INFINITY, 0.0);
    check(f32::NAN, f32::NAN);
}
