//! Error files, in which a rank writes why it failed: the format of PyTorch's `@record`, read and written.
//!
//! `{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"}}}`

use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// The variable with the path of the rank's error file.
pub const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// Size limit of a file that is read, in bytes: more than a traceback needs.
const LIMIT: u64 = 1 << 20;

/// The content of an error file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorRecord {
    /// One line, usually the exception.
    pub(crate) message: String,
    /// The traceback.
    pub(crate) lines: Vec<String>,
    /// When the file was written, in milliseconds since 1970. The timestamp inside it has whole seconds.
    pub(crate) time: u64,
}

impl ErrorRecord {
    /// The content of a file; `None` if it is missing or malformed.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let file = enmasse_system::files::open_regular(path).ok()?;
        let written = file.metadata().ok()?.modified().ok()?;
        let mut text = Vec::new();
        file.take(LIMIT).read_to_end(&mut text).ok()?;
        Self::parse(&String::from_utf8_lossy(&text), milliseconds(written))
    }

    pub(crate) fn parse(text: &str, time: u64) -> Option<Self> {
        let record: Value = serde_json::from_str(text).ok()?;
        let message = record.get("message")?;
        let text = message.as_str().or_else(|| message.get("message")?.as_str())?;
        let stack = message.get("extraInfo").and_then(|extra| extra.get("py_callstack")?.as_str()).unwrap_or_default();
        let lines = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.chars().filter(|c| !c.is_control() || *c == '\t').collect()).collect()
        };
        let message = lines(text).into_iter().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let lines = lines(stack).into_iter().filter(|line| *line != message).collect();
        Some(ErrorRecord { message, lines, time })
    }
}

/// Writes the error file that this process's launcher has requested, if it has. `lines` may be empty; `code` is the
/// exit code if a child process failed.
pub fn write_error_file(message: &str, lines: &[String], code: Option<u8>) {
    let Some(path) = std::env::var_os(ERROR_FILE).filter(|path| !path.is_empty()) else { return };
    let seconds = milliseconds(SystemTime::now()) / 1000;
    // torchrun prints only the call stack, if there is one; without one the message takes its place.
    let stack = if lines.is_empty() { message.to_owned() } else { lines.join("\n") };
    let extra = json!({ "py_callstack": stack, "timestamp": seconds.to_string() });
    let mut message = json!({ "message": message, "extraInfo": extra });
    if let (Some(code), Some(fields)) = (code, message.as_object_mut()) {
        fields.insert("errorCode".to_owned(), code.into());
    }
    // The caller reports the failure in any case.
    let _ = fs::write(path, json!({ "message": message }).to_string());
}

fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_record_held_up_the_launcher() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("error.json");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(ErrorRecord::read(&pipe), None);
    }

    #[test]
    fn records() {
        let check = |text: &str, expected: Option<(&str, &[&str])>| {
            let found = ErrorRecord::parse(text, 5);
            let found = found.as_ref().map(|found| (found.message.as_str(), found.lines.iter().map(String::as_str)));
            let found = found.map(|(message, lines)| (message, lines.collect::<Vec<_>>()));
            assert_eq!(found, expected.map(|(message, lines)| (message, lines.to_vec())), "{text}");
        };
        check(
            r#"{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "a\n  b\n", "timestamp": "17"}}}"#,
            Some(("ValueError: no", &["a", "  b"])),
        );
        check(
            r#"{"message": {"message": "no disk", "extraInfo": {"py_callstack": "no disk"}}}"#,
            Some(("no disk", &[])),
        );
        check(r#"{"message": "plain\nsecond", "timestamp": 17}"#, Some(("plain", &[])));
        check(r#"{"message": {"message": "\u001b[31mred"}}"#, Some(("[31mred", &[])));
        check(r#"{"message": 5}"#, None);
        check(r#"{"msg": ""}"#, None);
        check("", None);
        check("[1", None);
    }
}
