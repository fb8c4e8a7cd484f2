//! Shell words: enough of the shell's quoting to read scripts, and to write any text as one word.

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Literal text, without quotes.
    Text(String),
    /// `$NAME` or `${NAME}` outside single quotes.
    Variable(String),
}

/// An element of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A word, in pieces; empty quotes give an empty word.
    Word(Vec<Piece>),
    /// The end of a command: `;`, `|`, `&`, parentheses, back quotes, and doubled ones.
    Operator,
}

/// Splits a line. Comments are dropped; an unclosed quote ends with the line. Constructs beyond words and quotes
/// (arithmetic, parameter expansions such as `${NAME%%,*}`) stay as text.
pub(crate) fn tokens(line: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut word: Option<Vec<Piece>> = None;
    let mut quote: Option<char> = None;
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            (Some('\''), _) => push(&mut word, c),
            (None, '\\') => rest.next().into_iter().for_each(|next| push(&mut word, next)),
            (Some(_), '\\') => match rest.clone().next() {
                Some(next @ ('"' | '\\' | '$' | '`')) => {
                    rest.next();
                    push(&mut word, next);
                }
                _ => push(&mut word, c),
            },
            (_, '$') => match variable(rest.as_str()) {
                Some((name, left)) => {
                    word.get_or_insert_default().push(Piece::Variable(name.to_owned()));
                    rest = left.chars();
                }
                None => push(&mut word, c),
            },
            (None, '#') if word.is_none() => break,
            (None, ' ' | '\t' | '\r' | '\n') => tokens.extend(word.take().map(Token::Word)),
            (None, ';' | '|' | '&' | '(' | ')' | '`') => {
                tokens.extend(word.take().map(Token::Word));
                tokens.push(Token::Operator);
            }
            _ => push(&mut word, c),
        }
    }
    tokens.extend(word.map(Token::Word));
    tokens
}

fn push(word: &mut Option<Vec<Piece>>, c: char) {
    let pieces = word.get_or_insert_default();
    match pieces.last_mut() {
        Some(Piece::Text(text)) => text.push(c),
        _ => pieces.push(Piece::Text(c.into())),
    }
}

/// The name of the plain variable that begins here, after its `$`, and the rest of the text.
fn variable(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('{').unwrap_or(text);
    let length = inner.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(inner.len());
    let (name, left) = inner.split_at(length);
    let left = if inner.len() < text.len() { left.strip_prefix('}')? } else { left };
    name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic()).then_some((name, left))
}

/// A word as text, with variables replaced by `value`.
pub(crate) fn expand(word: &[Piece], value: impl Fn(&str) -> String) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Variable(name) => value(name),
    };
    word.iter().map(text).collect()
}

/// The text quoted as a single literal word.
pub(crate) fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    match text {
        "" => "''".to_owned(),
        text if text.chars().all(plain) => text.to_owned(),
        text => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Words joined by `|`, operators as `^`.
    fn split(line: &str) -> String {
        let text = |token: Token| match token {
            Token::Word(word) => expand(&word, |name| format!("<{name}>")),
            Token::Operator => "^".to_owned(),
        };
        tokens(line).into_iter().map(text).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn words() {
        let check = |line: &str, expected: &str| assert_eq!(split(line), expected, "{line}");
        check("", "");
        check("  a  b\t c ", "a|b|c");
        check("a # b", "a");
        check("a#b 'c # d' ''", "a#b|c # d|");
        check(r#"a\ b "c \"d\" \x" 'e\'"#, r#"a b|c "d" \x|e\"#);
        check("srun a && b; c | d & (e)", "srun|a|^|^|b|^|c|^|d|^|^|e|^");
        check("x=$HOME/${USER}_ '$A' \"$B\" $1 ${C%%,*} $", "x=<HOME>/<USER>_|$A|<B>|$1|${C%%,*}|$");
        check("a=$(b c)", "a=$|^|b|c|^");
        check("\"open", "open");
    }

    #[test]
    fn quoting() {
        let check = |text: &str, expected: &str| assert_eq!(quote(text), expected);
        check("", "''");
        check("runs/a-1,2=%j", "runs/a-1,2=%j");
        check("a b", "'a b'");
        check("~/it's", r"'~/it'\''s'");
    }

    proptest! {
        #[test]
        fn any_text_survives_quoting(text in "[^\n]*") {
            prop_assert_eq!(tokens(&quote(&text)), [Token::Word(
                if text.is_empty() { vec![] } else { vec![Piece::Text(text)] }
            )]);
        }

        #[test]
        fn any_line_has_tokens(line in "\\PC*") {
            tokens(&line);
        }
    }
}
