//! The optimisers of a plan, one file each: hyper-parameters with their defaults and ranges, state, and formula.
//!
//! An optimiser is a type that `optimizer!` defines, that implements [`Rule`] and that stands in the list `optimizers!`. Its name
//! and its hyper-parameters on command lines, [`Optimizer`], [`OptimizerKind`] and [`with_optimizer!`](crate::with_optimizer!)
//! follow from that. A device implements a trait of its own for each type, and
//! [`with_optimizer!`](crate::with_optimizer!) calls it: a device that lacks one does not compile.
//!
//! Learning rate and step number are inputs of each step. Weight decay belongs to the [`crate::ParameterGroup`].

/// Defines an optimiser: its documentation with the formula, its name, and for each hyper-parameter a sentence, and
/// `name: type = default, range;`. In a plan the hyper-parameters follow the name in this order.
macro_rules! optimizer {
    ($(#[$doc:meta])* $optimizer:ident = $name:literal {$(
        #[doc = $summary:literal] $hyperparameter:ident: $type:ty = $default:expr, $range:expr;
    )+}) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $optimizer {
            $(#[doc = $summary] pub $hyperparameter: $type,)+
        }

        impl Default for $optimizer {
            fn default() -> Self {
                $optimizer { $($hyperparameter: $default,)+ }
            }
        }

        impl $optimizer {
            pub(super) const NAME: &'static str = $name;
            pub(super) const HYPERPARAMETERS: &'static [Hyperparameter] = &[$(Hyperparameter {
                name: stringify!($hyperparameter),
                summary: $summary.trim_ascii(),
                default: || $crate::optimizers::Value::text(&$optimizer::default().$hyperparameter),
                range: $range,
            },)+];

            /// Sets a hyper-parameter from text.
            pub(super) fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
                match name {
                    $(stringify!($hyperparameter) => {
                        self.$hyperparameter = $crate::optimizers::Value::parse(text, &$range)
                            .map_err(|reason| format!("{name} {reason}"))?;
                        Ok(())
                    })+
                    _ => {
                        let names = [$(stringify!($hyperparameter)),+].join(", ");
                        Err(format!("{} has no hyper-parameter {name:?}: it has {names}", $name))
                    }
                }
            }
        }

        impl std::fmt::Display for $optimizer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($name)?;
                $($crate::optimizers::Value::write(&self.$hyperparameter, stringify!($hyperparameter), f)?;)+
                Ok(())
            }
        }
    };
}

mod adamw;
mod custom;
mod lars;
mod sgd;

use std::fmt;

pub use adamw::AdamW;
pub use custom::{Custom, CustomOptimizer, UpdateStep};
pub use lars::Lars;
pub use sgd::{MOMENTUM, Sgd};

use crate::range::Range;

/// What the passes ask of an optimiser. Its text is its name and its hyper-parameters, as in plans.
pub trait Rule: fmt::Display {
    /// PyTorch's names of the state tensors that each parameter has.
    fn state_names(&self) -> &'static [&'static str];

    /// Whether it uses the norms of each parameter, so that each parameter needs a separate range.
    fn adapts(&self) -> bool {
        false
    }
}

/// One hyper-parameter of an optimiser.
#[derive(Clone, Copy, Debug)]
pub struct Hyperparameter {
    /// Its name, in plans and on command lines.
    pub name: &'static str,
    /// What it is.
    pub summary: &'static str,
    /// The text of its default.
    pub default: fn() -> String,
    /// The allowed numbers.
    pub range: Range,
}

/// The type of a hyper-parameter. Errors are the end of a sentence that begins with its name.
trait Value: Sized {
    fn parse(text: &str, range: &Range) -> Result<Self, String>;

    /// The text that [`Value::parse`] takes.
    fn text(&self) -> String;

    /// What a plan says.
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

impl Value for f32 {
    fn parse(text: &str, range: &Range) -> Result<Self, String> {
        // Rounded twice, as a number that a configuration holds.
        let number = text.trim().parse::<f64>().ok().map(|number| number as f32);
        let number = number.filter(|number| range.contains((*number).into()));
        number.ok_or_else(|| format!("must be a number, {range}"))
    }

    fn text(&self) -> String {
        format!("{self:?}")
    }

    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {name} {self}")
    }
}

impl Value for [f32; 2] {
    fn parse(text: &str, range: &Range) -> Result<Self, String> {
        let pair = text
            .split_once(',')
            .and_then(|(first, second)| Some([f32::parse(first, range).ok()?, f32::parse(second, range).ok()?]));
        pair.ok_or_else(|| format!("must be 2 numbers separated by a comma, each {range}"))
    }

    fn text(&self) -> String {
        self.map(|number| number.text()).join(",")
    }

    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {name} {self:?}")
    }
}

impl Value for bool {
    fn parse(text: &str, _: &Range) -> Result<Self, String> {
        text.parse().map_err(|_| "must be true or false".to_owned())
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self { write!(f, " {name}") } else { Ok(()) }
    }
}

/// Makes [`Optimizer`], [`OptimizerKind`] and [`with_optimizer!`](crate::with_optimizer!) from the list of all optimisers. The first
/// token is a dollar sign, for the inner macro.
macro_rules! optimizers {
    ($d:tt $($optimizer:ident)*) => {
        /// The optimiser of a plan, with its hyper-parameters.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Optimizer {
            $(#[doc = concat!("See [`", stringify!($optimizer), "`].")] $optimizer($optimizer),)*
            /// One of a program's own.
            Custom(Custom),
        }

        $(impl From<$optimizer> for Optimizer {
            fn from(optimizer: $optimizer) -> Optimizer {
                Optimizer::$optimizer(optimizer)
            }
        })*

        /// An optimiser that has a name, without its hyper-parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum OptimizerKind {
            $(#[doc = concat!("See [`", stringify!($optimizer), "`].")] $optimizer,)*
            /// One of a program's own, in the record of its run: that program alone has it.
            Own,
        }

        impl OptimizerKind {
            /// All that have a name of their own.
            pub const ALL: &'static [OptimizerKind] = &[$(OptimizerKind::$optimizer),*];
            /// Their names.
            pub const NAMES: &'static [&'static str] = &[$($optimizer::NAME),*];

            /// The name, in plans and on command lines.
            pub const fn name(self) -> &'static str {
                match self {
                    $(OptimizerKind::$optimizer => $optimizer::NAME,)*
                    OptimizerKind::Own => "own",
                }
            }

            /// Its hyper-parameters.
            pub const fn hyperparameters(self) -> &'static [Hyperparameter] {
                match self {
                    $(OptimizerKind::$optimizer => $optimizer::HYPERPARAMETERS,)*
                    OptimizerKind::Own => &[],
                }
            }

            /// The optimiser with its defaults, except for the hyper-parameters that are given by name and text.
            ///
            /// # Errors
            /// The optimiser has no such hyper-parameter, a number is not allowed, or the optimiser is one of another
            /// program's own. The text says which names there are, or which numbers are allowed.
            pub fn with<'a>(self, given: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Optimizer, String> {
                match self {
                    $(OptimizerKind::$optimizer => {
                        let mut optimizer = $optimizer::default();
                        given.into_iter().try_for_each(|(name, text)| optimizer.set(name, text))?;
                        Ok(optimizer.into())
                    })*
                    OptimizerKind::Own => Err("is one of a program's own, which this program does not have".to_owned()),
                }
            }
        }

        /// Evaluates an expression with the hyper-parameters of an [`Optimizer`], whichever it is:
        /// `with_optimizer!(&update.optimizer, rule => rule.state_names())`.
        #[macro_export]
        macro_rules! with_optimizer {
            ($d optimizer:expr, $d rule:ident => $d result:expr) => {
                match $d optimizer {
                    $($crate::Optimizer::$optimizer($d rule) => $d result,)*
                    $crate::Optimizer::Custom($d rule) => $d result,
                }
            };
        }
    };
}

optimizers! { $
    Sgd AdamW Lars
}

impl Optimizer {
    /// See [`Rule::state_names`].
    pub fn state_names(&self) -> &'static [&'static str] {
        with_optimizer!(self, rule => rule.state_names())
    }

    /// See [`Rule::adapts`].
    pub fn adapts(&self) -> bool {
        with_optimizer!(self, rule => rule.adapts())
    }
}

impl From<Custom> for Optimizer {
    fn from(optimizer: Custom) -> Optimizer {
        Optimizer::Custom(optimizer)
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_optimizer!(self, rule => rule.fmt(f))
    }
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;
