//! A grid of hyper-parameters: every combination of the values of some settings, one array element each.

use crate::ScriptError;
use crate::value::MAX_ELEMENTS;

/// Length limit of a value in a folder's name.
const MAX_NAME: usize = 40;

/// A setting and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The setting's flag, without dashes.
    pub name: String,
    /// The values of the setting.
    pub values: Vec<String>,
}

impl Axis {
    /// Parses `NAME=VALUE,VALUE,...`.
    ///
    /// # Errors
    /// It is not of this form, or the name cannot be that of a setting.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let malformed = || ScriptError::Axis(text.to_owned());
        let (name, values) = text.split_once('=').ok_or_else(malformed)?;
        let name = name.trim_start_matches('-');
        let of_flag = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(of_flag) {
            return Err(malformed());
        }
        let values: Vec<String> = values.split(',').map(str::to_owned).collect();
        if values.iter().any(String::is_empty) {
            return Err(malformed());
        }
        Ok(Axis { name: name.to_owned(), values })
    }
}

/// One combination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepElement {
    /// Its array index.
    pub index: usize,
    /// Settings and values, in the order of the axes.
    pub values: Vec<(String, String)>,
}

impl SweepElement {
    /// The flags that set these values.
    pub fn flags(&self) -> Vec<String> {
        self.values.iter().map(|(name, value)| format!("--{name}={value}")).collect()
    }

    /// The folder of its run: the index, which makes it unique, and the values for people.
    pub(crate) fn folder(&self) -> String {
        let mut folder = self.index.to_string();
        for (name, value) in &self.values {
            let kept = |c: char| if c.is_ascii_alphanumeric() || ".+-_".contains(c) { c } else { '_' };
            folder.push_str(&format!("-{name}={}", value.chars().take(MAX_NAME).map(kept).collect::<String>()));
        }
        folder
    }
}

/// All combinations of some axes; the last axis changes fastest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    pub(crate) axes: Vec<Axis>,
}

impl Sweep {
    /// The combinations of these axes; without axes there is no array.
    ///
    /// # Errors
    /// Two axes have the same name, or there are more combinations than Slurm accepts.
    pub fn new(axes: Vec<Axis>) -> Result<Self, ScriptError> {
        for (place, axis) in axes.iter().enumerate() {
            // Flags may be written with either.
            let same = |other: &Axis| other.name.replace('_', "-") == axis.name.replace('_', "-");
            if axes.iter().take(place).any(same) {
                return Err(ScriptError::AxisTwice(axis.name.clone()));
            }
        }
        let count = axes.iter().try_fold(1usize, |product, axis| product.checked_mul(axis.values.len()));
        match count {
            Some(..=MAX_ELEMENTS) => Ok(Sweep { axes }),
            _ => Err(ScriptError::TooManyElements),
        }
    }

    /// Whether there is no array.
    pub fn is_empty(&self) -> bool {
        self.axes.is_empty()
    }

    /// Every combination, by index.
    pub fn elements(&self) -> Vec<SweepElement> {
        let count = if self.is_empty() { 0 } else { self.axes.iter().map(|axis| axis.values.len()).product() };
        (0..count).map(|index| self.element(index)).collect()
    }

    fn element(&self, index: usize) -> SweepElement {
        let mut left = index;
        let value = |axis: &Axis| {
            let place = left % axis.values.len();
            left /= axis.values.len();
            (axis.name.clone(), axis.values[place].clone())
        };
        let mut values: Vec<_> = self.axes.iter().rev().map(value).collect();
        values.reverse();
        SweepElement { index, values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(axes: &[&str]) -> Result<Sweep, ScriptError> {
        Sweep::new(axes.iter().map(|axis| Axis::parse(axis)).collect::<Result<_, _>>()?)
    }

    #[test]
    fn the_last_axis_changes_fastest() {
        let sweep = sweep(&["lr=0.1,0.01", "--batch=64,128", "model=mlp"]).unwrap();
        let flags: Vec<String> = sweep.elements().iter().map(|element| element.flags().join(" ")).collect();
        let expected = [
            "--lr=0.1 --batch=64 --model=mlp",
            "--lr=0.1 --batch=128 --model=mlp",
            "--lr=0.01 --batch=64 --model=mlp",
            "--lr=0.01 --batch=128 --model=mlp",
        ];
        assert_eq!(flags, expected);
        assert_eq!(sweep.elements()[2].folder(), "2-lr=0.01-batch=64-model=mlp");
        assert_eq!(Sweep::default().elements(), []);
    }

    #[test]
    fn folders_are_plain_names() {
        let value = format!("../a b/{}", "x".repeat(99));
        let element = SweepElement { index: 3, values: vec![("weights".into(), value)] };
        assert_eq!(element.folder(), format!("3-weights=.._a_b_{}", "x".repeat(MAX_NAME - 7)));
    }

    #[test]
    fn refused() {
        let check = |axes: &[&str], expected: &str| assert_eq!(sweep(axes).unwrap_err().to_string(), expected);
        for axis in ["lr", "=1", "lr=", "lr=1,,2", "l r=1", "1=2", "0-9"] {
            let expected = format!("--array {axis}: must be NAME=VALUE,VALUE,... with the name of a setting");
            check(&[axis], &expected);
        }
        check(
            &["weight-decay=1", "lr=1", "weight_decay=2"],
            "--array weight_decay: is given twice; list all its values once",
        );
        let wide = format!("lr={}", vec!["1"; 100].join(","));
        let other = wide.replace("lr", "batch");
        check(&[&wide, &other], "--array: more than 1001 combinations, which is Slurm's limit; use fewer values");
    }
}
