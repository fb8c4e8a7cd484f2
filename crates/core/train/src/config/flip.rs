//! `--flip CHANCE|alternating`.

use enmasse_graph::range::between;

use super::value::{SettingKind, SettingValue};

/// How training images are mirrored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flip {
    /// Each with this probability, from 0 to 1.
    Chance(f64),
    /// Each in every second epoch ([`enmasse_image::AlternatingFlip`]).
    Alternating,
}

impl SettingValue for Flip {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        if text == "alternating" {
            return Ok(Flip::Alternating);
        }
        let range = between(0, 1);
        let chance = text.parse().map_err(|_| format!("must be a number, {range}, or alternating"))?;
        <f64 as SettingValue>::check(&chance, &range)?;
        Ok(Flip::Chance(chance))
    }

    fn text(&self) -> Option<String> {
        match self {
            Flip::Chance(chance) => <f64 as SettingValue>::text(chance),
            Flip::Alternating => Some("alternating".to_owned()),
        }
    }

    fn to_toml(&self) -> Option<String> {
        match self {
            Flip::Chance(chance) => <f64 as SettingValue>::to_toml(chance),
            Flip::Alternating => Some("\"alternating\"".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chance_or_a_word() {
        let check = |text: &str, expected: Result<(Flip, &str), &str>| {
            let found = Flip::parse(text).map(|flip| (flip, flip.to_toml().unwrap_or_default()));
            assert_eq!(found, expected.map(|(flip, toml)| (flip, toml.to_owned())).map_err(str::to_owned), "{text}");
        };
        check("0.25", Ok((Flip::Chance(0.25), "0.25")));
        check("alternating", Ok((Flip::Alternating, "\"alternating\"")));
        check("2", Err("must be a finite number, from 0 to 1"));
        check("sometimes", Err("must be a number, from 0 to 1, or alternating"));
    }
}
