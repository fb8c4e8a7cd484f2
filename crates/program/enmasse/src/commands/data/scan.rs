//! The line of progress of a command that looks at every image.

use std::time::Instant;

use crate::output::screen;
use crate::report::progress::{ProgressLine, REDRAW};

/// Counts the images of a scan.
pub struct Scan {
    what: &'static str,
    total: usize,
    done: usize,
    began: Instant,
    /// When the line was last replaced.
    drawn: Instant,
}

impl Scan {
    /// A scan of `total` images that begins now. `what` is the line's first word, such as "checking".
    pub fn new(what: &'static str, total: usize) -> Self {
        let now = Instant::now();
        Scan { what, total, done: 0, began: now, drawn: now }
    }

    /// Counts an image, and shows the line where there is somebody to see it.
    pub fn step(&mut self) {
        self.done += 1;
        let now = Instant::now();
        if now.saturating_duration_since(self.drawn) < REDRAW {
            return;
        }
        self.drawn = now;
        if let Some(width) = screen::width() {
            let seconds = now.saturating_duration_since(self.began).as_secs_f64();
            screen::show(&ProgressLine::of_scan(self.what, self.done, self.total, seconds).line(width));
        }
    }
}
