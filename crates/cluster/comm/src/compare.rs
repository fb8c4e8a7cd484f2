//! Checks before the first step that all ranks run the same thing.
//!
//! Equal ranks exchange one hash each. Only if two differ do they send more, so that the error can name the item and
//! the first differing line. The user needs that line to find the reason.

use std::sync::Arc;

use crate::cause::{Cause, CauseKind};
use crate::group::Group;

/// Limit of one item's text that is sent to find the difference, in bytes.
const TEXT_LIMIT: usize = 16 << 20;
/// Limit of the displayed part of a differing line, in characters.
const SHOWN: usize = 160;

/// A text that ranks compare. It comes in pieces, so a long one need not be in memory.
pub trait ComparedText {
    /// Calls `piece` with each piece of the text, in order. The same text may come in other pieces.
    fn each_piece(&self, piece: &mut dyn FnMut(&str));
}

impl<T: AsRef<str>> ComparedText for T {
    fn each_piece(&self, piece: &mut dyn FnMut(&str)) {
        piece(self.as_ref());
    }
}

impl Group {
    /// Fails on all ranks unless all pass the same (name, text) pairs: the plan, the configuration, the list of files,
    /// a hash of the weights, the program's version. The cause names the first item that differs, the two ranks, and
    /// the first differing line of both.
    ///
    /// # Errors
    /// The group's [`Cause`]: the texts of two ranks differ, a rank calls another operation, has failed or left, or
    /// comes too late.
    pub fn compare(&self, items: &[(&str, &dyn ComparedText)]) -> Result<(), Arc<Cause>> {
        let outline = outline(items);
        let hash = *blake3::hash(outline.as_bytes()).as_bytes();
        let mut hashes = vec![0; hash.len() * self.world_size()];
        self.all_gather(&hash, &mut hashes)?;
        let (hashes, _) = hashes.as_chunks::<32>();
        let Some(other) = hashes.iter().position(|other| other != &hashes[0]) else {
            return Ok(());
        };

        let [first, differing] = [0, other].map(|rank| self.job_rank(rank));
        let ours = self.text_of(0, &outline)?;
        let theirs = self.text_of(other, &outline)?;
        let (line, [item, other_item]) = first_difference(&ours, &theirs);
        let message = match [item, other_item].map(|item| item.split_once(' ')) {
            // Equal names, different hashes.
            [Some((_, name)), Some((_, other_name))] if name == other_name => {
                let own = items.get(line).map_or(&"" as &dyn ComparedText, |(_, text)| *text);
                let (text, other_text) = (self.text_of(0, own)?, self.text_of(other, own)?);
                let (line, shown) = first_difference(&text, &other_text);
                let [shown, other_shown] = shown.map(show);
                format!(
                    "{name} differs: line {} is {shown} on rank {first} and {other_shown} on rank {differing}: start all ranks with \
                     the same program, options and data",
                    line + 1,
                )
            }
            names => {
                let [name, other_name] = names.map(|item| item.map_or("(nothing)".into(), |(_, name)| show(name)));
                format!(
                    "item {line} to compare is {name} on rank {first} and {other_name} on rank {differing}: run one program"
                )
            }
        };
        self.abort(self.cause_of(other, CauseKind::Desync, message).during("a comparison", 0));
        self.check()
    }

    /// `text` of rank `root`, on all ranks; truncated if it is very long.
    fn text_of(&self, root: usize, text: &dyn ComparedText) -> Result<String, Arc<Cause>> {
        let text = if self.rank() == root { beginning(text) } else { String::new() };
        let mut length = [text.len() as i64];
        self.broadcast(&mut length, root)?;
        let mut bytes = vec![0; usize::try_from(length[0]).map_or(0, |length| length.min(TEXT_LIMIT))];
        if self.rank() == root {
            bytes.copy_from_slice(text.as_bytes());
        }
        self.broadcast(&mut bytes, root)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// As much of a text as is sent.
fn beginning(text: &dyn ComparedText) -> String {
    let mut found = String::new();
    text.each_piece(&mut |piece| found.push_str(&piece[..piece.floor_char_boundary(TEXT_LIMIT - found.len())]));
    found
}

/// One line per item: its hash and its name.
fn outline(items: &[(&str, &dyn ComparedText)]) -> String {
    let line = |(name, text): &(&str, &dyn ComparedText)| {
        let mut hasher = blake3::Hasher::new();
        text.each_piece(&mut |piece| {
            hasher.update(piece.as_bytes());
        });
        format!("{} {}\n", hasher.finalize().to_hex(), name.replace('\n', " "))
    };
    items.iter().map(line).collect()
}

/// The index of the first line that differs, and that line on both sides; empty where a side has no such line.
fn first_difference<'a>(left: &'a str, right: &'a str) -> (usize, [&'a str; 2]) {
    let (mut left, mut right) = (left.split('\n'), right.split('\n'));
    let mut index = 0;
    loop {
        match (left.next(), right.next()) {
            (Some(left), Some(right)) if left == right => index += 1,
            (left, right) => return (index, [left.unwrap_or_default(), right.unwrap_or_default()]),
        }
    }
}

fn show(line: &str) -> String {
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}…", &line[..end]),
        None => format!("{line:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text in pieces is the text, and no more of it is sent than of a whole one.
    #[test]
    fn texts_in_pieces() {
        struct Pieces(usize);
        impl ComparedText for Pieces {
            fn each_piece(&self, piece: &mut dyn FnMut(&str)) {
                (0..self.0).for_each(|_| piece("aé"));
            }
        }
        assert_eq!(outline(&[("text", &Pieces(3))]), outline(&[("text", &"aéaéaé")]));
        assert_eq!(beginning(&Pieces(2)), "aéaé");
        assert_eq!(beginning(&Pieces(TEXT_LIMIT)).len(), TEXT_LIMIT);
        assert_eq!(beginning(&"é".repeat(TEXT_LIMIT)).len(), TEXT_LIMIT);
    }

    #[test]
    fn the_first_differing_line() {
        let check = |left: &str, right: &str, expected: (usize, [&str; 2])| {
            assert_eq!(first_difference(left, right), expected);
        };
        check("a\nb\nc", "a\nB\nC", (1, ["b", "B"]));
        check("a\n", "a", (1, ["", ""]));
        check("a\nb", "a", (1, ["b", ""]));
        check("", "x", (0, ["", "x"]));
        assert_eq!(show(&"é".repeat(SHOWN + 1)), format!("{:?}…", "é".repeat(SHOWN)));
    }
}
