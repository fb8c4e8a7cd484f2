//! A run on a terminal: no line is wider than the screen, and nothing of the line of progress remains.

use std::process::{Command, ExitStatus};

use crate::common::terminal::Terminal;
use crate::common::{images, program};

/// What a command wrote to a terminal, byte by byte, and what is left to be seen.
struct Seen {
    status: ExitStatus,
    bytes: String,
    lines: Vec<String>,
    /// Lines that the terminal had to break.
    broken: Vec<String>,
}

/// Runs a command on a terminal of this width.
fn on_terminal(command: &mut Command, width: u16) -> Seen {
    let terminal = Terminal::open(width);
    let mut child = terminal.start(command);
    let bytes = terminal.read();
    let status = child.wait().unwrap();
    let (lines, broken) = screen(&bytes, width.into());
    Seen { status, bytes, lines, broken }
}

/// A terminal that knows what the program uses: line breaks, the start of a line, and erasing to the end of the screen.
fn screen(bytes: &str, width: usize) -> (Vec<String>, Vec<String>) {
    let mut lines = vec![Vec::new()];
    let mut column = 0;
    let mut broken = Vec::new();
    let mut rest = bytes;
    while let Some(c) = rest.chars().next() {
        let line = lines.last_mut().unwrap();
        if let Some(after) = rest.strip_prefix("\x1b[J") {
            line.truncate(column);
            rest = after;
            continue;
        }
        match c {
            '\r' => column = 0,
            '\n' => lines.push(Vec::new()),
            c => {
                assert!(!c.is_control(), "{c:?} in {bytes:?}");
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
                if column > width {
                    broken.push(line.iter().collect::<String>());
                }
            }
        }
        rest = &rest[c.len_utf8()..];
    }
    (lines.into_iter().map(|line| line.into_iter().collect()).collect(), broken)
}

#[test]
fn a_run_fits_any_terminal() {
    let folder = tempfile::tempdir().unwrap();
    images(folder.path(), 20);
    for width in [80, 40] {
        for (out, others) in
            [("a", "--devices cpu:1"), ("b", "--devices cpu:2 --metrics top2,gradient_norm"), ("c", "--json")]
        {
            let mut command = program();
            let fixed =
                ["train", "images", "--model", "mlp", "--size", "8", "--batch", "2", "--epochs", "2", "--out", out];
            command.args(fixed).args(others.split_whitespace()).current_dir(folder.path());
            let seen = on_terminal(&mut command, width);
            std::fs::remove_dir_all(folder.path().join(out)).unwrap();
            let text = seen.lines.join("\n");
            assert!(seen.status.success(), "{text}");
            // Scripts read JSON, of any length.
            let broken: Vec<_> = seen.broken.iter().filter(|line| !line.starts_with('{')).collect();
            assert!(broken.is_empty(), "{width} {others}: {broken:#?}");
            for part in ["epoch 1/2: first step…", "epoch 1/2 validation", " left"] {
                assert!(seen.bytes.contains(part), "{part:?} in {:?}", seen.bytes);
            }
            for part in ["first step…", " left", "[="] {
                assert!(!seen.lines.iter().any(|line| line.contains(part)), "{part:?} remains in {text}");
            }
            for part in ["epoch 1/2  loss ", "epoch 2/2  loss ", "done in ", "evaluate: enmasse eval "] {
                assert_eq!(seen.lines.iter().filter(|line| line.starts_with(part)).count(), 1, "{part:?} in {text}");
            }
        }
    }
}

#[test]
fn an_error_replaces_the_line_of_progress() {
    let folder = tempfile::tempdir().unwrap();
    images(folder.path(), 20);
    for devices in ["cpu:1", "cpu:2"] {
        let mut command = program();
        let fixed =
            ["train", "images", "--model", "mlp", "--size", "8", "--batch", "2", "--lr", "1e30", "--devices", devices];
        let seen = on_terminal(command.args(fixed).current_dir(folder.path()), 80);
        let text = seen.lines.join("\n");
        assert!(seen.status.code() == Some(1) && seen.bytes.contains("first step…"), "{text}");
        let remains = seen.lines.iter().any(|line| line.contains("first step…") || line.contains(" left"));
        assert!(!remains && seen.lines.iter().any(|line| line.starts_with("error: ")), "{text}");
    }
}
