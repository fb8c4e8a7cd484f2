//! `--cache-limit 200GB`: numbers of bytes.

use super::value::{SettingKind, SettingValue};

/// The units, each with its bytes: those of disks, then those of memory.
const UNITS: [(&str, u64); 8] = [
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1000),
];

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCount(pub u64);

impl SettingValue for ByteCount {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        let refused = || "must be a number of bytes with a unit, such as 200GB or 512MiB".to_owned();
        let unit = text.find(|letter: char| letter.is_ascii_alphabetic()).ok_or_else(refused)?;
        let number = text[..unit].trim();
        let unit = &text[unit..];
        let (_, bytes) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(refused)?;
        let number: f64 = number.parse().map_err(|_| refused())?;
        let bytes = number * *bytes as f64;
        // All whole numbers up to 2^53 are exact.
        if bytes >= 0.0 && bytes < (1_u64 << 53) as f64 { Ok(ByteCount(bytes as u64)) } else { Err(refused()) }
    }

    /// In the largest decimal unit without a fraction.
    fn text(&self) -> Option<String> {
        let ByteCount(bytes) = *self;
        let whole = UNITS.iter().filter(|(name, unit)| !name.contains('i') && bytes.is_multiple_of(*unit));
        Some(match whole.max_by_key(|(_, unit)| *unit) {
            Some((name, unit)) => format!("{}{name}", bytes / unit),
            None => format!("{}KB", bytes as f64 / 1000.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        let check = |text: &str, expected: Option<u64>, written: &str| {
            let found = ByteCount::parse(text).ok();
            assert_eq!(found, expected.map(ByteCount), "{text}");
            let again = found.and_then(|found| found.text());
            assert_eq!(again.as_deref().unwrap_or_default(), written);
            assert_eq!(again.and_then(|again| ByteCount::parse(&again).ok()), found);
        };
        check("200GB", Some(200_000_000_000), "200GB");
        check("200 gb", Some(200_000_000_000), "200GB");
        check("1.5TB", Some(1_500_000_000_000), "1500GB");
        check("1MiB", Some(1 << 20), "1048.576KB");
        check("0MB", Some(0), "0TB");
        for text in ["", "200", "GB", "-1GB", "1XB", "1e30GB", "NaNGB"] {
            check(text, None, "");
        }
    }
}
