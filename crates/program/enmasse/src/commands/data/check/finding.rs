//! A finding: one line that says how often something occurs and names the first cases; JSON that names all.

use std::fmt;

use enmasse_wording::{counted, grouped, one_line};
use serde_json::{Value, json};

/// Cases that a line names, at most.
const NAMED: usize = 3;

/// Something that occurs in a data set.
pub struct Finding {
    /// Its word in JSON.
    kind: &'static str,
    /// What there is, with the number.
    what: String,
    pub count: usize,
    items: Vec<Item>,
}

/// A case of a finding.
pub struct Item {
    text: String,
    json: Value,
}

impl Finding {
    /// A finding with all its cases.
    pub fn new(kind: &'static str, what: String, items: Vec<Item>) -> Self {
        Finding { kind, what, count: items.len(), items }
    }

    /// A finding of which each case is a `unit`, with what is said of one, and of several.
    pub fn counted(kind: &'static str, unit: &str, [one, several]: [&str; 2], items: Vec<Item>) -> Self {
        let said = if items.len() == 1 { one } else { several };
        Self::new(kind, format!("{} {said}", counted(items.len(), unit)), items)
    }

    /// A finding that names its cases itself, if any.
    pub fn told(kind: &'static str, what: String, count: usize) -> Self {
        Finding { kind, what, count, items: Vec::new() }
    }

    pub fn to_json(&self) -> Value {
        let items: Vec<&Value> = self.items.iter().map(|item| &item.json).collect();
        json!({ "kind": self.kind, "what": self.what, "count": self.count, "items": items })
    }
}

/// `2 images cannot be read: red/7.jpg (the file is empty), red/8.jpg (truncated)`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.what))?;
        for (number, item) in self.items.iter().take(NAMED).enumerate() {
            let separator = if number == 0 { ": " } else { ", " };
            write!(f, "{separator}{}", one_line(&item.text))?;
        }
        match self.items.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {} more", grouped(more as u64)),
        }
    }
}

impl Item {
    /// A file, and what is the matter with it.
    pub fn of_file(file: String, matter: String) -> Self {
        Item { text: format!("{file} ({matter})"), json: json!({ "file": file, "matter": matter }) }
    }

    /// A file alone.
    pub fn file(file: String) -> Self {
        Item { json: json!({ "file": file }), text: file }
    }

    /// A class, and a part of the data set.
    pub fn of_class(class: &str, part: &str) -> Self {
        Item { text: format!("{class} ({part})"), json: json!({ "class": class, "part": part }) }
    }

    /// The same image in several classes: its files, each with the class.
    pub fn of_classes(files: &[(String, String)]) -> Self {
        let text: Vec<String> = files.iter().map(|(file, class)| format!("{file} ({class})")).collect();
        let files: Vec<Value> = files.iter().map(|(file, class)| json!({ "file": file, "class": class })).collect();
        Item { text: text.join(" = "), json: json!({ "files": files }) }
    }

    /// Files that are the same image, or look alike.
    pub fn of_files(files: Vec<String>) -> Self {
        Item { text: files.join(" = "), json: json!({ "files": files }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cases_are_named() {
        let check = |count: usize, expected: &str| {
            let items = (0..count).map(|number| Item::of_file(format!("{number}.jpg"), "cut".to_owned())).collect();
            let finding = Finding::new("unreadable", format!("{count} unreadable"), items);
            assert_eq!(finding.to_string(), expected);
            assert_eq!(finding.to_json()["items"].as_array().map(Vec::len), Some(count));
        };
        check(0, "0 unreadable");
        check(1, "1 unreadable: 0.jpg (cut)");
        check(3, "3 unreadable: 0.jpg (cut), 1.jpg (cut), 2.jpg (cut)");
        check(1003, "1003 unreadable: 0.jpg (cut), 1.jpg (cut), 2.jpg (cut) and 1,000 more");
        let same = Item::of_files(vec!["a\n.jpg".to_owned(), "b.jpg".to_owned()]);
        assert_eq!(Finding::new("repeated", "1 image".to_owned(), vec![same]).to_string(), "1 image: a .jpg = b.jpg");
    }
}
