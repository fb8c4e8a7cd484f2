//! Labels from the names of files: `{class}.{number}.jpg` finds `cat` in `cat.0.jpg`.

use enmasse_data::DataError;

/// A pattern that matches whole names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelPattern {
    pieces: Vec<Piece>,
    /// Whether it is for paths instead of the names of files.
    is_path: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// These characters.
    Text(String),
    /// `*`: any characters but `/`, perhaps none.
    Any,
    /// `{number}`: one or more digits, as many as possible.
    Number,
    /// `{class}`: one or more characters but `/`, as few as possible.
    Class,
}

impl LabelPattern {
    pub fn parse(text: &str) -> Result<Self, DataError> {
        let wrong = |problem: &str| {
            let usage = "use {class} once, {number} for digits, and * for anything else, as in {class}.{number}.jpg";
            Err(DataError::Setting(format!("the label pattern {text:?} {problem}; {usage}")))
        };
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, length) = if rest.starts_with("{class}") {
                (Piece::Class, "{class}".len())
            } else if rest.starts_with("{number}") {
                (Piece::Number, "{number}".len())
            } else if rest.starts_with('*') {
                (Piece::Any, 1)
            } else {
                let end = rest.find(['*', '{', '}']).unwrap_or(rest.len());
                if end == 0 {
                    return wrong("has a brace of another kind");
                }
                (Piece::Text(rest[..end].to_owned()), end)
            };
            // Two stars in a row match what one does, and take longer.
            if piece != Piece::Any || pieces.last() != Some(&Piece::Any) {
                pieces.push(piece);
            }
            rest = &rest[length..];
        }
        match pieces.iter().filter(|piece| **piece == Piece::Class).count() {
            1 => Ok(LabelPattern { pieces, is_path: text.contains('/') }),
            0 => wrong("has no {class}"),
            _ => wrong("has {class} more than once"),
        }
    }

    /// The class in a path that is relative to the data's folder; `None` if it does not match.
    pub fn class<'a>(&self, path: &'a str) -> Option<&'a str> {
        let text = if self.is_path { path } else { path.rsplit('/').next().unwrap_or(path) };
        // Where a piece may begin, as sets of positions from the last piece to the first: no pattern takes long.
        let mut fits = vec![vec![false; text.len() + 1]; self.pieces.len() + 1];
        fits[self.pieces.len()][text.len()] = true;
        for (number, piece) in self.pieces.iter().enumerate().rev() {
            for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
                fits[number][at] = piece.ends(text, at).any(|end| fits[number + 1][end]);
            }
        }
        let mut at = fits[0][0].then_some(0)?;
        for (number, piece) in self.pieces.iter().enumerate() {
            let end = piece.ends(text, at).find(|&end| fits[number + 1][end])?;
            if *piece == Piece::Class {
                return Some(&text[at..end]);
            }
            at = end;
        }
        None
    }
}

impl Piece {
    /// The positions where a match that begins at `at` can end, the preferred one first.
    fn ends<'a>(&'a self, text: &'a str, at: usize) -> impl Iterator<Item = usize> + 'a {
        let rest = &text[at..];
        let (least, most) = match self {
            Piece::Text(own) if rest.starts_with(own.as_str()) => (own.len(), own.len()),
            Piece::Text(_) => (1, 0),
            Piece::Any => (0, rest.find('/').unwrap_or(rest.len())),
            Piece::Number => (1, rest.bytes().take_while(u8::is_ascii_digit).count()),
            Piece::Class => (1, rest.find('/').unwrap_or(rest.len())),
        };
        let steps = 0..(most + 1).saturating_sub(least);
        let end = move |step| if *self == Piece::Number { at + most - step } else { at + least + step };
        steps.map(end).filter(|&end| text.is_char_boundary(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_in_names() {
        let check = |pattern: &str, path: &str, expected: Option<&str>| {
            assert_eq!(LabelPattern::parse(pattern).unwrap().class(path), expected, "{pattern} {path}");
        };
        check("{class}.{number}.jpg", "train/cat.0.jpg", Some("cat"));
        check("{class}.{number}.jpg", "cat.0.png", None);
        check("{class}.{number}.jpg", "cat.x.jpg", None);
        check("{class}.{number}.jpg", "1.jpg", None);
        check("{class}.*", "dog.12499.jpg", Some("dog"));
        check("{class}_{number}.*", "great_pyrenees_12.jpg", Some("great_pyrenees"));
        check("{class}_*", "great_pyrenees_12.jpg", Some("great"));
        check("*_{class}.jpg", "a_b_c.jpg", Some("b_c"));
        check("{number}*{class}.jpg", "12-fleur-de-lys.jpg", Some("-fleur-de-lys"));
        check("{number}-{class}.jpg", "12-fleur-de-lys.jpg", Some("fleur-de-lys"));
        check("img-{class}-**", "img-é-", Some("é"));
        check("{class}", "a/b/é", Some("é"));
        check("{class}*", "", None);
        // With a slash, the whole path counts, and no piece crosses one.
        check("{class}/*/*", "cat/images/0.jpg", Some("cat"));
        check("{class}/*", "cat/images/0.jpg", None);
        // A matcher that goes back and forth would take for ever.
        check(&("*a".repeat(30) + "{class}b"), &"a".repeat(200), None);
    }

    #[test]
    fn wrong_patterns() {
        let check = |pattern: &str, problem: &str| {
            let error = LabelPattern::parse(pattern).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("the label pattern {pattern:?} {problem}; use {{class}} once")),
                "{error}"
            );
        };
        check("", "has no {class}");
        check("*.jpg", "has no {class}");
        check("{class}_{class}", "has {class} more than once");
        check("{label}.jpg", "has a brace of another kind");
        check("{class", "has a brace of another kind");
        check("class}", "has a brace of another kind");
    }
}
