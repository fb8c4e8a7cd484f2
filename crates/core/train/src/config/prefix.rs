//! `--prefix OLD=NEW`: other beginnings for the names of a weights file.

use enmasse_weights::Rename;

use super::value::{SettingKind, SettingValue};

impl SettingValue for Vec<Rename> {
    const KIND: SettingKind = SettingKind::List;

    fn parse(text: &str) -> Result<Self, String> {
        Vec::<String>::parse(text)?.iter().map(|rename| rename.parse()).collect()
    }

    fn text(&self) -> Option<String> {
        Some(self.iter().map(Rename::to_string).collect::<Vec<_>>().join(","))
    }

    fn to_toml(&self) -> Option<String> {
        self.iter().map(Rename::to_string).collect::<Vec<_>>().to_toml()
    }
}
