//! What a run says of the images that it skips because they cannot be read: a warning at the first one, and a line at the
//! end that counts and names them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use enmasse_data::BadSample;
use enmasse_wording::{counted, one_line};

/// Images that are named on the screen, at most.
const NAMED: usize = 5;

/// The images that were skipped, as far as this rank knows.
#[derive(Debug, Default)]
pub struct Skipped {
    samples: BTreeSet<BadSample>,
    /// Whether the warning was given.
    is_warned: bool,
    /// The file that lists all of them, if there is one.
    list: Option<PathBuf>,
}

impl Skipped {
    /// Begins with the images that an earlier part of the run skipped.
    pub fn resume(&mut self, earlier: &[BadSample]) {
        self.samples.extend(earlier.iter().cloned());
    }

    /// Names the file that lists all of them.
    pub fn listed_in(&mut self, list: PathBuf) {
        self.list = Some(list);
    }

    /// Adds an image. Returns the warning if it is the first one.
    pub fn add(&mut self, sample: &BadSample) -> Option<String> {
        self.samples.insert(sample.clone());
        let is_first = !std::mem::replace(&mut self.is_warned, true);
        let sample = one_line(&sample.to_string());
        is_first.then(|| format!("warning: skipped an image that cannot be read: {sample}"))
    }

    /// The line at the end; `None` if nothing was skipped.
    pub fn line(&self) -> Option<String> {
        let count = self.samples.len();
        if count == 0 {
            return None;
        }
        let names: Vec<String> = self.samples.iter().take(NAMED).map(|sample| one_line(&sample.to_string())).collect();
        let more = if count > NAMED { format!(", and {} more", count - NAMED) } else { String::new() };
        let list = self.list.as_deref().map_or(String::new(), |list: &Path| format!("; listed in {}", list.display()));
        let verb = if count == 1 { "was" } else { "were" };
        Some(format!("unreadable: {} {verb} skipped: {}{more}{list}", counted(count, "image"), names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_five_are_named() {
        let check = |count: usize, list: Option<&str>, expected: Option<&str>| {
            let mut skipped = Skipped::default();
            list.into_iter().for_each(|list| skipped.listed_in(list.into()));
            for number in (0..count).chain(0..count) {
                let sample = BadSample { name: format!("red/{number}.jpg"), problem: "the file is empty".to_owned() };
                skipped.add(&sample);
            }
            let named = |text: &str| text.replace("()", "(the file is empty)");
            assert_eq!(skipped.line(), expected.map(named));
        };
        check(0, Some("unreadable.txt"), None);
        check(1, None, Some("unreadable: 1 image was skipped: red/0.jpg ()"));
        let two = "unreadable: 2 images were skipped: red/0.jpg (), red/1.jpg (); listed in run/logs/unreadable.txt";
        check(2, Some("run/logs/unreadable.txt"), Some(two));
        let five = "red/0.jpg (), red/1.jpg (), red/2.jpg (), red/3.jpg (), red/4.jpg ()";
        check(5, None, Some(&format!("unreadable: 5 images were skipped: {five}")));
        let more = format!("unreadable: 7 images were skipped: {five}, and 2 more; listed in a");
        check(7, Some("a"), Some(&more));
    }

    #[test]
    fn the_first_one_is_a_warning() {
        let sample = |name: &str| BadSample {
            name: name.to_owned(),
            problem: "not a JPEG, PNG, WebP, BMP or GIF image".to_owned(),
        };
        let mut skipped = Skipped::default();
        skipped.resume(&[sample("a.jpg")]);
        let warning = "warning: skipped an image that cannot be read: b.jpg (not a JPEG, PNG, WebP, BMP or GIF image)";
        assert_eq!(skipped.add(&sample("b.jpg")).as_deref(), Some(warning));
        assert_eq!(skipped.add(&sample("c.jpg")), None);
        assert!(skipped.line().unwrap().starts_with("unreadable: 3 images were skipped: a.jpg"));
    }
}
