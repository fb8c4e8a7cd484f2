//! Numbers, durations and foreign text, formatted for people.
//!
//! The program's output on a terminal, in logs and on the doctor's page is uniform because it is formatted here. Pure
//! functions.
//!
//! Use it for every number and every foreign name that people read.
//!
//! ```
//! use enmasse_wording::{counted, duration, grouped, one_line};
//! assert_eq!(grouped(11_181_642u64), "11,181,642");
//! assert_eq!(counted(3, "class"), "3 classes");
//! assert_eq!(duration(754.0), "12:34");
//! assert_eq!(one_line("a\u{1b}[31mred"), "a [31mred");
//! ```

use std::ffi::OsStr;

/// A number with thousands separators: `11,181,642`.
pub fn grouped(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes as MiB: `12.3 MiB`.
pub fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Seconds as a clock shows them: `0:05`, `12:34`, `1:02:34`; `?` for a number that is none.
pub fn clock(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "?".to_owned();
    }
    let seconds = seconds.round() as u64;
    let hours = seconds / 3600;
    let minutes = seconds / 60 % 60;
    let seconds = seconds % 60;
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// A duration in two or more digits: `1.2 s`, `12 s`, `12:34`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        ..9.95 => format!("{seconds:.1} s"),
        ..59.5 => format!("{seconds:.0} s"),
        _ => clock(seconds),
    }
}

/// A fraction as a percentage: `98.77 %`.
pub fn percent(fraction: f64) -> String {
    format!("{:.2} %", fraction * 100.0)
}

/// A rate of images: `812 img/s`, `0.05 img/s`; `None` where there were none.
pub fn speed(images_per_second: f64) -> Option<String> {
    match images_per_second {
        0.0 => None,
        slow if slow < 9.5 => Some(format!("{slow:.2} img/s")),
        fast => Some(format!("{fast:.0} img/s")),
    }
}

/// A noun with its number: `1 rank`, `3 classes`.
pub fn counted(count: usize, noun: &str) -> String {
    let plural = match noun {
        _ if count == 1 => "",
        noun if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", grouped(count as u64))
}

/// Messages quote text from users, files and other machines, which must not break the line, move the cursor, or show its
/// characters in another order than they have.
pub fn one_line(text: &str) -> String {
    blanked(text, misleads)
}

/// The same for a text of several lines, which stay as they are, and so do tabs.
pub fn block(text: &str) -> String {
    let lines = text.split('\n').map(|line| blanked(line, |c| c != '\t' && misleads(c)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A blank in place of each run of characters that `misleads` names.
fn blanked(text: &str, misleads: impl Fn(char) -> bool) -> String {
    text.split(misleads).filter(|piece| !piece.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Control characters, line and paragraph separators, and Unicode's overrides of the direction of text.
fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first `limit` names, each on one line, and how many more there are: `a, b and 3 more`.
pub fn listed(names: impl ExactSizeIterator<Item: AsRef<str>>, limit: usize) -> String {
    let more = names.len().saturating_sub(limit);
    let shown = names.take(limit).map(|name| one_line(name.as_ref())).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {} more", grouped(more as u64)) } else { shown }
}

/// A path or other text as one word of a shell's command line.
pub fn shell_word(text: impl AsRef<OsStr>) -> String {
    let text = text.as_ref().to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// `20260131-235959`, from seconds since 1970. Source: H. Hinnant, "chrono-compatible low-level date algorithms"
/// (`civil_from_days`), whose years begin in March, so that leap days come last.
pub fn utc_time(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let second = seconds % 86_400;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        let check = |text: &str, expected: &str| assert_eq!(shell_word(text), expected);
        check("train.py", "train.py");
        check("--lr=0.1", "--lr=0.1");
        check("runs/20260131-235959-resnet18", "runs/20260131-235959-resnet18");
        check("", "''");
        check("my runs", "'my runs'");
        check("it's $HOME", r"'it'\''s $HOME'");
    }

    #[test]
    fn numbers() {
        let check = |number: u64, expected: &str| assert_eq!(grouped(number), expected);
        check(0, "0");
        check(999, "999");
        check(1000, "1,000");
        check(11_181_642, "11,181,642");
        assert_eq!(mebibytes(3 << 19), "1.5 MiB");
        let check = |count, noun, expected: &str| assert_eq!(counted(count, noun), expected);
        check(1, "rank", "1 rank");
        check(1, "class", "1 class");
        check(0, "class", "0 classes");
        check(1500, "rank", "1,500 ranks");
    }

    #[test]
    fn foreign_text_stays_on_its_line() {
        let check = |text: &str, expected: &str| assert_eq!(one_line(text), expected);
        check("two words, \u{e9} \u{1f33c}", "two words, \u{e9} \u{1f33c}");
        check("a\nerror: b\r\n", "a error: b");
        check("\x1b]0;title\x07\x1b[2J\u{9b}31mred", "]0;title [2J 31mred");
        check("gpj.\u{202e}exe\u{2028}\u{2066}x", "gpj. exe x");
        check("\t\u{7f}", "");
        let check = |text: &str, expected: &str| assert_eq!(block(text), expected);
        check("a\n\n\tb\x1b[2J\rc\n", "a\n\n\tb [2J c\n");
    }

    #[test]
    fn lists_are_bounded() {
        let check = |names: &[&str], limit, expected: &str| assert_eq!(listed(names.iter(), limit), expected);
        check(&[], 2, "");
        check(&["a", "b"], 2, "a, b");
        check(&["a", "b\nerror: c", "d"], 2, "a, b error: c and 1 more");
        check(&["a"; 1500], 1, "a and 1,499 more");
    }

    #[test]
    fn durations() {
        let check = |seconds, expected| assert_eq!(clock(seconds), expected);
        check(0.0, "0:00");
        check(4.6, "0:05");
        check(59.6, "1:00");
        check(754.0, "12:34");
        check(3754.0, "1:02:34");
        check(360_000.0, "100:00:00");
        check(f64::INFINITY, "?");
        check(f64::NAN, "?");
        let check = |seconds, expected| assert_eq!(duration(seconds), expected);
        check(0.04, "0.0 s");
        check(9.94, "9.9 s");
        check(9.96, "10 s");
        check(59.4, "59 s");
        check(59.6, "1:00");
        check(754.0, "12:34");
    }

    #[test]
    fn speeds() {
        let check = |rate, expected: Option<&str>| assert_eq!(speed(rate).as_deref(), expected);
        check(812.4, Some("812 img/s"));
        check(9.6, Some("10 img/s"));
        check(9.4, Some("9.40 img/s"));
        // Of a slow run, and of one that only had to validate: "0 img/s" was printed.
        check(0.049, Some("0.05 img/s"));
        check(0.0, None);
    }

    /// As printed by `date -u -d @SECONDS`.
    #[test]
    fn times() {
        let check = |seconds, expected| assert_eq!(utc_time(seconds), expected);
        check(0, "19700101-000000");
        check(951_782_400, "20000229-000000");
        check(951_868_799, "20000229-235959");
        check(951_868_800, "20000301-000000");
        check(1_767_225_599, "20251231-235959");
        check(4_107_542_400, "21000301-000000");
    }
}
