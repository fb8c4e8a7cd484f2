//! `--fine-tune head|all|last:N`: which layers of a model with weights are trained.

use super::TrainConfig;
use super::value::{SettingKind, SettingValue};

/// The layers that are trained. The first epoch trains the head alone, on features that are computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FineTune {
    /// The head alone: the run is this one epoch.
    Head,
    /// All layers, from the second epoch.
    All,
    /// The head, and from the second epoch as many layers before it ([`enmasse_graph::layers`]).
    Last(usize),
}

impl TrainConfig {
    /// The first epochs of the run that train the head alone: one with `--fine-tune`, otherwise none.
    pub fn epochs_of_head(&self) -> usize {
        usize::from(self.fine_tune.is_some())
    }

    /// The epochs that the run can have: for the head alone one, since later ones would have nothing to train.
    pub fn epochs_of_run(&self) -> usize {
        if self.fine_tune == Some(FineTune::Head) { 1 } else { self.epochs }
    }
}

impl SettingValue for FineTune {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        let last = || text.strip_prefix("last:")?.parse().ok().filter(|layers| *layers > 0).map(FineTune::Last);
        match text {
            "head" => Ok(FineTune::Head),
            "all" => Ok(FineTune::All),
            _ => last().ok_or_else(|| "must be head or all or last:N, such as last:2".to_owned()),
        }
    }

    fn text(&self) -> Option<String> {
        Some(match self {
            FineTune::Head => "head".to_owned(),
            FineTune::All => "all".to_owned(),
            FineTune::Last(layers) => format!("last:{layers}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_of_layers() {
        let check = |text: &str, expected: Option<FineTune>| {
            let found = FineTune::parse(text);
            assert_eq!(found.as_ref().ok(), expected.as_ref(), "{text}");
            match found {
                Ok(found) => assert_eq!(found.text().as_deref(), Some(text)),
                Err(reason) => assert_eq!(reason, "must be head or all or last:N, such as last:2"),
            }
        };
        check("head", Some(FineTune::Head));
        check("all", Some(FineTune::All));
        check("last:3", Some(FineTune::Last(3)));
        for text in ["", "last", "last:", "last:0", "last:-1", "Head"] {
            check(text, None);
        }
    }
}
