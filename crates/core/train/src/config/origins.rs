//! Where each setting of a run comes from, in words, through all of its starts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LayeredConfig, RunConfig, SETTINGS, SettingSource};

/// Where the values of a run's settings come from, by their names. A setting that is not there has its default, or what the program
/// chose for the data and the machine.
///
/// ```
/// use enmasse_train::{LayeredConfig, SettingOrigins};
/// let mut layers = LayeredConfig::new();
/// layers.argument("epochs", "5")?;
/// let origins = SettingOrigins::of(&layers, None);
/// assert_eq!((origins.get("epochs"), origins.get("batch")), (Some("command line"), None));
/// # Ok::<(), enmasse_train::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SettingOrigins(BTreeMap<String, String>);

impl SettingOrigins {
    /// The origins of the settings that were given. What a resumed run has from its earlier starts keeps its origin there, which
    /// `earlier` has; of a run that kept none, only what differs from the default has one.
    pub fn of(layers: &LayeredConfig, earlier: Option<&SettingOrigins>) -> Self {
        let defaults = RunConfig::default();
        let origin = |name: &str| match (layers.source(name)?, earlier) {
            (SettingSource::Default, _) => None,
            (SettingSource::Saved(_), Some(earlier)) => earlier.get(name).map(str::to_owned),
            (source @ SettingSource::Saved(_), None) => {
                (layers.config().get(name) != defaults.get(name)).then(|| source.to_string())
            }
            (source, _) => Some(source.to_string()),
        };
        let known = SETTINGS.iter().filter_map(|setting| Some((setting.name.to_owned(), origin(setting.name)?)));
        SettingOrigins(known.collect())
    }

    /// Where a setting comes from, unless it has its default or what the program chose.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The origins of a run, and of its resumption with another learning rate.
    #[test]
    fn a_resumed_run_keeps_the_first_origins() {
        let mut layers = LayeredConfig::new();
        layers.argument("epochs", "5").unwrap();
        layers.argument("lr", "0.5").unwrap();
        layers.recipe("fine-tune").unwrap();
        let first = SettingOrigins::of(&layers, None);
        assert_eq!((first.get("epochs"), first.get("batch")), (Some("command line"), None));
        assert!(first.get("optimizer").is_some_and(|origin| origin.starts_with("recipe fine-tune")), "{first:?}");

        let saved = layers.config().to_toml();
        let resumed = |earlier: Option<&SettingOrigins>| {
            let mut layers = LayeredConfig::new();
            layers.saved_run(&saved, Path::new("runs/a")).unwrap();
            layers.environment([("ENMASSE_LR".into(), "0.25".into())]).unwrap();
            SettingOrigins::of(&layers, earlier)
        };
        let again = resumed(Some(&first));
        assert_eq!(
            (again.get("epochs"), again.get("lr"), again.get("batch")),
            (Some("command line"), Some("environment"), None)
        );
        assert_eq!(again.get("optimizer"), first.get("optimizer"));
        let unknown = resumed(None);
        assert_eq!((unknown.get("epochs"), unknown.get("batch")), (Some("saved run runs/a"), None));
        let text = serde_json::to_string(&again).unwrap();
        assert_eq!(serde_json::from_str::<SettingOrigins>(&text).unwrap(), again);
    }
}
