//! `--opt-arg NAME=VALUE`: hyper-parameters of the chosen optimiser that are no settings.

use std::fmt;
use std::str::FromStr;

use enmasse_graph::{Optimizer, OptimizerKind};

use super::value::ListItem;
use super::{SETTINGS, Setting, TrainConfig};

/// A hyper-parameter of the chosen optimiser, by name, and its value as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptimizerArgument {
    /// The name: see [`OptimizerKind::hyperparameters`].
    pub name: String,
    /// The value, such as `0.9,0.95`.
    pub value: String,
}

impl fmt::Display for OptimizerArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

impl FromStr for OptimizerArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        match parts.filter(|(name, value)| !name.is_empty() && !value.is_empty()) {
            Some((name, value)) => Ok(OptimizerArgument { name: name.to_owned(), value: value.to_owned() }),
            None => Err("must be NAME=VALUE, such as epsilon=1e-6".to_owned()),
        }
    }
}

/// A value may have commas itself: `betas=0.9,0.95`.
impl ListItem for OptimizerArgument {
    fn continues(text: &str) -> bool {
        !text.contains('=')
    }
}

/// The settings that are hyper-parameters of optimisers, each with the names of these optimisers.
pub(crate) fn of_optimizers() -> impl Iterator<Item = (&'static Setting, Vec<&'static str>)> {
    SETTINGS.iter().filter_map(|setting| {
        let has = |kind: &&OptimizerKind| kind.hyperparameters().iter().any(|own| own.name == setting.name);
        let names: Vec<&str> = OptimizerKind::ALL.iter().filter(has).map(|kind| kind.name()).collect();
        (!names.is_empty()).then_some((setting, names))
    })
}

impl TrainConfig {
    /// The optimiser with its hyper-parameters. The error is the end of a sentence about `opt_arg`, or without it `optimizer`.
    pub(crate) fn chosen_optimizer(&self) -> Result<Optimizer, String> {
        let kind = self.optimizer;
        let of_kind = of_optimizers().filter(|(_, kinds)| kinds.contains(&kind.name()));
        let given: Vec<(&str, String)> =
            of_kind.filter_map(|(setting, _)| Some((setting.name, self.inspect(setting)?.text?))).collect();
        for (at, OptimizerArgument { name, value }) in self.opt_arg.iter().enumerate() {
            if let Some(setting) = Setting::find(name) {
                return Err(format!("{name} is a setting: use `{} = {value}`", setting.name));
            }
            if self.opt_arg[..at].iter().any(|earlier| earlier.name == *name) {
                return Err(format!("gives {name} twice"));
            }
        }
        let arguments = self.opt_arg.iter().map(|argument| (argument.name.as_str(), argument.value.as_str()));
        kind.with(given.iter().map(|(name, text)| (*name, text.as_str())).chain(arguments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunConfig;

    fn config(pairs: &[(&str, &str)]) -> RunConfig {
        let mut config = RunConfig::default();
        pairs.iter().for_each(|(name, value)| config.set(name, value).unwrap());
        config
    }

    #[test]
    fn settings_and_arguments_are_hyperparameters() {
        let check = |pairs: &[(&str, &str)], expected: Result<&str, &str>| {
            let config = config(pairs);
            let found = config.check().map(|()| config.train.chosen_optimizer().unwrap().to_string());
            assert_eq!(found.as_deref().map_err(ToString::to_string), expected.map_err(str::to_owned), "{pairs:?}");
            assert_eq!(RunConfig::from_toml(&config.to_toml()).unwrap(), config);
        };
        check(&[], Ok("sgd momentum 0.9"));
        check(&[("momentum", "0.25"), ("nesterov", "true")], Ok("sgd momentum 0.25 nesterov"));
        // Not those of another optimiser.
        check(&[("optimizer", "adamw"), ("momentum", "0.25")], Ok("adamw betas [0.9, 0.999] epsilon 0.00000001"));
        let adamw = |argument| [("optimizer", "adamw"), ("opt_arg", argument)];
        check(&adamw("betas=0.9,0.95"), Ok("adamw betas [0.9, 0.95] epsilon 0.00000001"));
        check(&adamw("epsilon=1, betas = 0.5, 0.25"), Ok("adamw betas [0.5, 0.25] epsilon 1"));
        let lars = [("optimizer", "lars"), ("momentum", "0"), ("opt_arg", "trust_coefficient=0.5")];
        check(&lars, Ok("lars momentum 0 trust_coefficient 0.5 epsilon 0.00000001"));
        let refused = "opt_arg beta=0.9: adamw has no hyper-parameter \"beta\": it has betas, epsilon";
        check(&adamw("beta=0.9"), Err(refused));
        let pair = "opt_arg betas=0.9,1: betas must be 2 numbers separated by a comma, each from 0 to below 1";
        check(&adamw("betas=0.9,1"), Err(pair));
        check(&adamw("epsilon=1,epsilon=2"), Err("opt_arg epsilon=1,epsilon=2: gives epsilon twice"));
        let refused = "opt_arg betas=0.9,0.95: sgd has no hyper-parameter \"betas\": it has momentum, nesterov";
        check(&[("opt_arg", "betas=0.9,0.95")], Err(refused));
        let refused = "opt_arg momentum=0.5: momentum is a setting: use `momentum = 0.5`";
        check(&[("opt_arg", "momentum=0.5")], Err(refused));
        // Below 1, and 1 as the optimiser computes.
        let refused = "optimizer sgd: momentum must be a number, from 0 to below 1";
        check(&[("momentum", "0.99999999999")], Err(refused));
    }

    #[test]
    fn arguments_are_names_with_values() {
        for text in ["betas", "=1", "betas=", "0.9,0.95"] {
            let error = RunConfig::default().set("opt_arg", text).unwrap_err().to_string();
            assert_eq!(error, format!("opt_arg {text}: must be NAME=VALUE, such as epsilon=1e-6"));
        }
        assert_eq!(config(&[("opt_arg", "")]), RunConfig::default());
    }

    /// The help of `opt_arg` and the page of optimisers list what there is.
    #[test]
    fn documents_list_every_hyperparameter() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/optimizers.md");
        let page = std::fs::read_to_string(page).unwrap();
        let help = Setting::find("opt_arg").unwrap().details;
        let mut rows = 0;
        for kind in OptimizerKind::ALL {
            for own in kind.hyperparameters() {
                let name = own.name;
                let default = (own.default)();
                let flag = match Setting::find(name) {
                    Some(setting) => format!("`{}`", setting.flag()),
                    None => {
                        assert!(help.contains(&format!("{name}={default}")), "{kind} {name}: {help}");
                        format!("`--opt-arg {name}=`")
                    }
                };
                let row = format!("| {kind} | {flag} | {default} | {} | {} |", own.range, own.summary);
                assert!(page.contains(&row), "docs/optimizers.md lacks:\n{row}");
                rows += 1;
            }
        }
        let listed =
            page.lines().filter(|line| OptimizerKind::ALL.iter().any(|kind| line.starts_with(&format!("| {kind} |"))));
        assert_eq!(listed.count(), rows);
    }
}
