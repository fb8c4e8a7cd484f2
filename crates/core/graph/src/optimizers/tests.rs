//! Names, texts and hyper-parameters of all optimisers.

use super::*;
use crate::{CompileOptions, GraphError, Tensor, compile};

#[test]
fn texts_in_plans() {
    let check = |kind: OptimizerKind, given: &[(&str, &str)], expected: &str| {
        assert_eq!(kind.with(given.iter().copied()).unwrap().to_string(), expected);
    };
    use OptimizerKind::{AdamW, Lars, Sgd};
    check(Sgd, &[], "sgd momentum 0.9");
    check(Sgd, &[("momentum", "0"), ("nesterov", "true")], "sgd momentum 0 nesterov");
    check(AdamW, &[], "adamw betas [0.9, 0.999] epsilon 0.00000001");
    check(AdamW, &[("betas", "0.9, 0.95"), ("epsilon", "0")], "adamw betas [0.9, 0.95] epsilon 0");
    check(Lars, &[], "lars momentum 0.9 trust_coefficient 0.001 epsilon 0.00000001");
    check(Lars, &[("trust_coefficient", "1e-2")], "lars momentum 0.9 trust_coefficient 0.01 epsilon 0.00000001");
}

#[test]
fn wrong_hyperparameters_say_what_there_is() {
    let check = |kind: OptimizerKind, name: &str, text: &str, expected: &str| {
        assert_eq!(kind.with([(name, text)]).unwrap_err(), expected);
    };
    use OptimizerKind::{AdamW, Lars, Sgd};
    check(AdamW, "beta", "0.9", "adamw has no hyper-parameter \"beta\": it has betas, epsilon");
    check(Sgd, "betas", "0.9,0.95", "sgd has no hyper-parameter \"betas\": it has momentum, nesterov");
    let pair = "betas must be 2 numbers separated by a comma, each from 0 to below 1";
    ["0.9", "0.9,0.95,0.99", "0.9,x", "0.9,1", "-0.1,0.9", "0.9,NaN", ""]
        .into_iter()
        .for_each(|text| check(AdamW, "betas", text, pair));
    // Below 1 as text, and 1 as the optimiser computes.
    check(AdamW, "betas", "0.9,0.999999999", pair);
    check(AdamW, "epsilon", "-1", "epsilon must be a number, 0 or more");
    check(AdamW, "epsilon", "inf", "epsilon must be a number, 0 or more");
    check(Lars, "trust_coefficient", "0", "trust_coefficient must be a number, above 0");
    check(Sgd, "nesterov", "yes", "nesterov must be true or false");
}

#[test]
fn defaults_and_names_read_back() {
    for (&kind, &name) in OptimizerKind::ALL.iter().zip(OptimizerKind::NAMES) {
        let defaults: Vec<_> = kind.hyperparameters().iter().map(|own| (own.name, (own.default)())).collect();
        let given = defaults.iter().map(|(name, text)| (*name, text.as_str()));
        assert_eq!(kind.with(given), kind.with([]));
        let text = kind.with([]).unwrap().to_string();
        assert_eq!(text.split(' ').next(), Some(name), "{kind}");
        for Hyperparameter { summary, .. } in kind.hyperparameters() {
            assert!(summary.ends_with('.') && !summary.contains('\n'), "{kind}: {summary}");
        }
    }
}

/// Adds what it is to each weight.
#[derive(Debug)]
struct Own(&'static [&'static str], &'static str);

impl CustomOptimizer for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    fn hyperparameters(&self) -> String {
        self.1.to_owned()
    }

    fn state_names(&self) -> &'static [&'static str] {
        self.0
    }

    fn update(&self, _: &UpdateStep, _: &mut [f64], _: &[f64], _: &mut [&mut [f64]]) {}
}

#[test]
fn an_own_optimiser_in_a_plan() {
    let net = |x: Tensor| x.flatten().linear("fc", 10).relu().linear("out", 10);
    let plan = |own: Own| {
        let optimizer = Custom::new(own).into();
        compile(&net, &CompileOptions { optimizer, ..CompileOptions::new("net", 2, 4, 10) })
    };
    let plans = plan(Own(&["slow", "fast"], "factor 2")).unwrap();
    // Padding ends a range, since the rule need not leave it zero.
    let text = plans.train.as_ref().unwrap().to_string();
    assert!(
        text.contains("update {own factor 2; 0..100 weight_decay 0; 112..122 weight_decay 0; 128..618 weight_decay 0}"),
        "{text}"
    );
    let state = plans.state.iter().filter(|tensor| tensor.name.starts_with("optimizer."));
    let mut names: Vec<&str> = state.map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names.len(), 8);
    names.retain(|name| name.ends_with("out.bias"));
    assert_eq!(names, ["optimizer.slow.out.bias", "optimizer.fast.out.bias"]);
    assert!(plan(Own(&[], "")).unwrap().train.unwrap().to_string().contains("update {own; 0.."));
    let check = |names: &'static [&'static str], expected: &str| match plan(Own(names, "")) {
        Err(GraphError::Option(reason)) => assert_eq!(reason, expected),
        found => panic!("{names:?}: {found:?}"),
    };
    check(&["a", "b", "c", "d", "e"], "the optimiser own keeps 5 tensors for each parameter; at most 4 fit");
    let wrong = |name: &str| format!("the optimiser own cannot name its state {name:?}: take one word for each tensor");
    check(&["a", "a"], &wrong("a"));
    check(&["a.b"], &wrong("a.b"));
    check(&[""], &wrong(""));
    check(&["loss_scale"], &wrong("loss_scale"));
}

#[test]
fn own_optimisers_are_the_same_by_name_and_hyperparameters() {
    let own = |text| Optimizer::from(Custom::new(Own(&[], text)));
    assert_eq!(own("factor 1"), own("factor 1"));
    assert_ne!(own("factor 1"), own("factor 2"));
    assert_ne!(own(""), OptimizerKind::Sgd.with([]).unwrap());
}
