//! `--keep last,best|N|all`: which checkpoints stay.

use super::value::{SettingKind, SettingValue, quoted};

/// Which epochs keep a checkpoint of their own, beside `last` and `best`, which always stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// So many of the newest epochs; 0 is written `last,best`.
    Newest(u64),
    /// Every epoch.
    All,
}

impl SettingValue for Keep {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "last,best" => Ok(Keep::Newest(0)),
            "all" => Ok(Keep::All),
            _ => text.parse().map(Keep::Newest).map_err(|_| "must be last,best or all or a whole number".to_owned()),
        }
    }

    fn text(&self) -> Option<String> {
        Some(match self {
            Keep::Newest(0) => "last,best".to_owned(),
            Keep::Newest(epochs) => epochs.to_string(),
            Keep::All => "all".to_owned(),
        })
    }

    fn to_toml(&self) -> Option<String> {
        match self {
            Keep::Newest(1..) => self.text(),
            _ => self.text().map(quoted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers() {
        let check = |text: &str, expected: Result<Keep, &str>, written: &str| {
            let found = Keep::parse(text);
            assert_eq!(found.as_ref().map_err(String::as_str), expected.as_ref().map_err(|reason| *reason), "{text}");
            assert_eq!(found.ok().and_then(|keep| keep.text()).unwrap_or_default(), written);
        };
        check("last,best", Ok(Keep::Newest(0)), "last,best");
        check("0", Ok(Keep::Newest(0)), "last,best");
        check("3", Ok(Keep::Newest(3)), "3");
        check("all", Ok(Keep::All), "all");
        for text in ["best", "-1", "1.5", ""] {
            check(text, Err("must be last,best or all or a whole number"), "");
        }
    }
}
