//! The line of progress of bytes that are fetched or copied.

use std::time::Instant;

use enmasse_remote::fetch::Event;
use enmasse_wording::{mebibytes, one_line};

use crate::output::{say, screen};
use crate::report::progress::{ProgressLine, REDRAW};

/// Bytes on their way.
pub struct Transfer {
    /// The line's first word.
    pub what: String,
    /// When the first bytes were told, and their number: a transfer may go on with those of an earlier one.
    began: Option<(Instant, u64)>,
    /// When the line was last replaced.
    drawn: Option<Instant>,
}

impl Transfer {
    /// A transfer that begins now. `what` is the line's first word.
    pub fn new(what: impl Into<String>) -> Self {
        Transfer { what: what.into(), began: None, drawn: None }
    }

    /// Shows that `done` of `total` bytes are there, where there is somebody to see it.
    pub fn show(&mut self, done: u64, total: u64) {
        let now = Instant::now();
        let (began, first) = *self.began.get_or_insert((now, done));
        if self.drawn.is_some_and(|drawn| now.saturating_duration_since(drawn) < REDRAW) {
            return;
        }
        self.drawn = Some(now);
        if let Some(width) = screen::width() {
            let seconds = now.saturating_duration_since(began).as_secs_f64();
            let recent = done.saturating_sub(first);
            screen::show(&ProgressLine::of_transfer(&self.what, done, total, recent, seconds).line(width));
        }
    }
}

/// Tells what the fetcher does.
pub fn follow(event: Event, transfer: &mut Transfer) {
    match event {
        Event::Asking { url } => say(format_args!("asking {}", one_line(url))),
        Event::Received { archive, bytes, total } => {
            if transfer.what != archive {
                *transfer = Transfer::new(archive);
            }
            transfer.show(bytes, total);
            if bytes == total {
                say(format_args!("{archive}: {}", mebibytes(total as usize)));
            }
        }
        Event::Waiting { file } => say(format_args!("waiting for another process that fetches {}", one_line(file))),
        Event::Refused { why } => say(format_args!("warning: {}", one_line(why))),
        Event::Unpacking { archive } => say(format_args!("extracting {archive}")),
    }
}
