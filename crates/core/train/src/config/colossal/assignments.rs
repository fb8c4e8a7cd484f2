//! A Python file of plain assignments, read as data: nothing in it runs.
//!
//! Its lines are `NAME = value`. A value is a number, a text, True, False, None, a list, a tuple, a dictionary, `dict(name=value)`, a name
//! that was assigned before, or a constant of a class, such as `AMP_TYPE.TORCH`. Imports of ColossalAI's names may stand above.

use std::str::Chars;

/// How deep values may lie in each other.
const MAX_DEPTH: usize = 16;

/// A value of an assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number as it is written, without underscores.
    Number(String),
    /// A text.
    Text(String),
    /// True or False.
    Truth(bool),
    /// None.
    None,
    /// A list or a tuple.
    List(Vec<Value>),
    /// Names with values, in order.
    Dict(Vec<(String, Value)>),
    /// A constant of a class: `AMP_TYPE.TORCH`.
    Constant(String),
}

/// The assignments of a text, in order; the last one of a name counts. The error names the line.
pub fn assignments(text: &str) -> Result<Vec<(String, Value)>, String> {
    let mut reader = Reader { rest: text.chars(), line: 1, known: Vec::new() };
    loop {
        reader.skip(true);
        let line = reader.line;
        if reader.peek().is_none() {
            return Ok(reader.known);
        }
        reader.statement().map_err(|reason| format!("line {line}: {reason}"))?;
    }
}

struct Reader<'a> {
    rest: Chars<'a>,
    line: usize,
    /// What has been assigned.
    known: Vec<(String, Value)>,
}

/// What is said of everything else.
const PLAIN: &str =
    "only plain assignments are read, such as NAME = 1 or NAME = dict(lr=0.1); nothing in the file runs";

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn next_if(&mut self, wanted: char) -> bool {
        self.peek() == Some(wanted) && self.next().is_some()
    }

    /// Passes blanks and comments, and ends of lines if `lines`.
    fn skip(&mut self, lines: bool) {
        loop {
            match self.peek() {
                Some('#') => {
                    while self.peek().is_some_and(|next| next != '\n') {
                        self.next();
                    }
                }
                Some('\n') if !lines => return,
                Some(blank) if blank.is_whitespace() => {
                    self.next();
                }
                _ => return,
            }
        }
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(next) = self.peek().filter(|next| next.is_alphanumeric() || *next == '_' || *next == '.') {
            word.push(next);
            self.next();
        }
        word
    }

    fn statement(&mut self) -> Result<(), String> {
        let name = self.word();
        self.skip(false);
        if name == "from" || name == "import" {
            return self.import();
        }
        if name.is_empty() || name.contains('.') || name.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(PLAIN.to_owned());
        }
        if !self.next_if('=') || self.peek() == Some('=') {
            return Err(PLAIN.to_owned());
        }
        self.skip(false);
        let value = self.value(0)?;
        self.end()?;
        self.known.retain(|(known, _)| *known != name);
        self.known.push((name, value));
        Ok(())
    }

    /// An import of ColossalAI's names has no effect: its constants are known by their names.
    fn import(&mut self) -> Result<(), String> {
        let module = self.word();
        if module.split('.').next() != Some("colossalai") {
            return Err(format!("only names of colossalai may be imported, not those of {module:?}; {PLAIN}"));
        }
        while self.peek().is_some_and(|next| next != '\n' && next != ';') {
            self.next();
        }
        self.end()
    }

    fn end(&mut self) -> Result<(), String> {
        self.skip(false);
        match self.peek() {
            None | Some('\n') => Ok(()),
            Some(_) => Err(PLAIN.to_owned()),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err(format!("values lie more than {MAX_DEPTH} deep in each other"));
        }
        match self.peek() {
            Some('[') => self.list(']', depth),
            Some('(') => self.list(')', depth),
            Some('{') => self.braces(depth),
            Some('\'' | '"') => self.text().map(Value::Text),
            Some(sign @ ('-' | '+')) => {
                self.next();
                let Value::Number(number) = self.value(depth + 1)? else { return Err(PLAIN.to_owned()) };
                Ok(Value::Number(if sign == '-' { format!("-{number}") } else { number }))
            }
            Some(_) => self.named(depth),
            None => Err(PLAIN.to_owned()),
        }
    }

    /// A number, a word, or `dict(...)`.
    fn named(&mut self, depth: usize) -> Result<Value, String> {
        let mut word = self.word();
        if word.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
            // The sign of an exponent.
            if let (true, Some(sign @ ('-' | '+'))) = (word.ends_with(['e', 'E']), self.peek()) {
                self.next();
                word = format!("{word}{sign}{}", self.word());
            }
            let number = word.replace('_', "");
            return match number.parse::<f64>() {
                Ok(parsed) if parsed.is_finite() => Ok(Value::Number(number)),
                _ => Err(format!("{word} is no number")),
            };
        }
        self.skip(false);
        match word.as_str() {
            "" => Err(PLAIN.to_owned()),
            "True" => Ok(Value::Truth(true)),
            "False" => Ok(Value::Truth(false)),
            "None" => Ok(Value::None),
            "dict" if self.next_if('(') => self.entries(depth),
            _ if word.contains('.') && self.peek() != Some('(') => Ok(Value::Constant(word)),
            _ => match self.known.iter().find(|(known, _)| *known == word) {
                Some((_, value)) => Ok(value.clone()),
                None => Err(format!("{word} is not assigned before; {PLAIN}")),
            },
        }
    }

    /// Whether another item follows; passes the comma before it, or what closes the list.
    fn follows(&mut self, is_first: bool, close: char) -> Result<bool, String> {
        self.skip(true);
        if !is_first && !self.next_if(',') {
            return if self.next_if(close) { Ok(false) } else { Err(PLAIN.to_owned()) };
        }
        self.skip(true);
        Ok(!self.next_if(close))
    }

    fn list(&mut self, close: char, depth: usize) -> Result<Value, String> {
        self.next();
        let mut items = Vec::new();
        while self.follows(items.is_empty(), close)? {
            items.push(self.value(depth + 1)?);
        }
        Ok(Value::List(items))
    }

    fn entries(&mut self, depth: usize) -> Result<Value, String> {
        let mut entries = Vec::new();
        while self.follows(entries.is_empty(), ')')? {
            let name = self.word();
            self.skip(true);
            if name.is_empty() || !self.next_if('=') {
                return Err(PLAIN.to_owned());
            }
            self.skip(true);
            entries.push((name, self.value(depth + 1)?));
        }
        Ok(Value::Dict(entries))
    }

    fn braces(&mut self, depth: usize) -> Result<Value, String> {
        self.next();
        let mut entries = Vec::new();
        while self.follows(entries.is_empty(), '}')? {
            let Value::Text(name) = self.value(depth + 1)? else { return Err(PLAIN.to_owned()) };
            self.skip(true);
            if !self.next_if(':') {
                return Err(PLAIN.to_owned());
            }
            self.skip(true);
            entries.push((name, self.value(depth + 1)?));
        }
        Ok(Value::Dict(entries))
    }

    fn text(&mut self) -> Result<String, String> {
        let quote = self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return Err("a text does not end on its line".to_owned()),
                next if next == quote => return Ok(text),
                Some('\\') => match self.next() {
                    Some(escaped @ ('\\' | '\'' | '"')) => text.push(escaped),
                    _ => return Err("of escapes only \\\\, \\' and \\\" are read".to_owned()),
                },
                Some(next) => text.push(next),
            }
        }
    }
}
