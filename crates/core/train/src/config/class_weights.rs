//! `--class-weights balanced|FILE`: how much each class counts in the loss.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use enmasse_system::files::read_text;

use super::value::{SettingKind, SettingValue, quoted};

/// Where the weights of classes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassWeights {
    /// The numbers of images.
    Balanced,
    /// A JSON object from the names of all classes to their weights.
    File(PathBuf),
}

impl ClassWeights {
    /// The weights of a file, by the classes' labels. The error is the reason why the setting cannot be obeyed.
    pub(crate) fn read(path: &Path, classes: &[String]) -> Result<Vec<f64>, String> {
        let text = read_text(path).map_err(|error| format!("cannot be read: {error}"))?;
        let by_name: BTreeMap<String, f64> =
            serde_json::from_str(&text).map_err(|error| format!("is no JSON object of numbers: {error}"))?;
        if let Some(name) = by_name.keys().find(|name| !classes.contains(name)) {
            return Err(format!("has a weight for {name:?}, which is not among the classes"));
        }
        let weight = |class: &String| {
            let weight = by_name.get(class).copied();
            weight.filter(|weight| weight.is_finite() && *weight >= 0.0).ok_or_else(|| match weight {
                Some(weight) => format!("has the weight {weight} for {class:?}: it must be at least 0"),
                None => format!("has no weight for {class:?}"),
            })
        };
        classes.iter().map(weight).collect()
    }
}

impl SettingValue for ClassWeights {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("must be balanced, or a JSON file".to_owned()),
            "balanced" => Ok(ClassWeights::Balanced),
            _ => PathBuf::parse(text).map(ClassWeights::File),
        }
    }

    fn text(&self) -> Option<String> {
        Some(match self {
            ClassWeights::Balanced => "balanced".to_owned(),
            ClassWeights::File(path) => path.display().to_string(),
        })
    }

    fn to_toml(&self) -> Option<String> {
        self.text().map(quoted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_a_weight_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.json");
        let classes = ["a", "b"].map(str::to_owned);
        let check = |text: &str, expected: Result<&[f64], &str>| {
            std::fs::write(&path, text).unwrap();
            let found = ClassWeights::read(&path, &classes);
            match expected {
                Ok(weights) => assert_eq!(found.as_deref(), Ok(weights), "{text}"),
                Err(part) => assert!(found.as_ref().unwrap_err().contains(part), "{text}: {found:?}"),
            }
        };
        check(r#"{"b": 2.5, "a": 0}"#, Ok(&[0.0, 2.5]));
        check(r#"{"a": 1}"#, Err("no weight for \"b\""));
        check(r#"{"a": 1, "b": 1, "c": 1}"#, Err("\"c\", which is not among the classes"));
        check(r#"{"a": -1, "b": 1}"#, Err("the weight -1 for \"a\""));
        check("[1, 2]", Err("no JSON object of numbers"));
        std::fs::remove_file(&path).unwrap();
        assert!(ClassWeights::read(&path, &classes).unwrap_err().contains("cannot be read"));
    }
}
