//! The doctor's findings as one value: printed as a page for people, or as a JSON object for scripts.

use std::fmt;

use serde_json::{Map, Value, json};

use enmasse_wording::{counted, one_line};

/// Lines of the page are wrapped before this column.
const WIDTH: usize = 110;

/// The status of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// As it should be.
    Ok,
    /// It works, but is worth knowing.
    Note,
    /// It prevents something from working.
    Problem,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Note => "note",
            Status::Problem => "problem",
        }
    }
}

/// The result of one examination.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The status.
    pub status: Status,
    /// The name of the examined item.
    pub name: String,
    /// The result, in one line.
    pub text: String,
    /// What to do, if anything.
    pub remedy: Option<String>,
    /// The figures of the text, for scripts.
    pub facts: Map<String, Value>,
}

impl Finding {
    /// A finding without objection.
    pub fn ok(name: impl Into<String>, text: impl fmt::Display) -> Self {
        Finding {
            status: Status::Ok,
            name: name.into(),
            text: one_line(&text.to_string()),
            remedy: None,
            facts: Map::new(),
        }
    }

    /// A finding that is worth knowing, and what to do about it.
    pub fn note(name: impl Into<String>, text: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Finding { status: Status::Note, ..Self::ok(name, text) }.with_remedy(remedy)
    }

    /// A finding that prevents something from working, and what to do about it.
    pub fn problem(name: impl Into<String>, text: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Finding { status: Status::Problem, ..Self::ok(name, text) }.with_remedy(remedy)
    }

    /// Adds a figure for scripts.
    pub fn fact(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }

    fn with_remedy(self, remedy: impl fmt::Display) -> Self {
        let remedy = one_line(&remedy.to_string());
        Finding { remedy: Some(remedy).filter(|text| !text.is_empty()), ..self }
    }

    fn to_json(&self) -> Value {
        let mut object = json!({ "name": self.name, "status": self.status.name(), "text": self.text });
        if let Some(remedy) = &self.remedy {
            object["remedy"] = remedy.as_str().into();
        }
        if !self.facts.is_empty() {
            object["facts"] = self.facts.clone().into();
        }
        object
    }
}

/// Findings about one part of the machine or of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// The name of the part.
    pub title: &'static str,
    /// The findings, in reading order.
    pub findings: Vec<Finding>,
}

/// All findings.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Program, machine and time.
    pub(crate) heading: String,
    /// The parts, the most informative first.
    pub(crate) sections: Vec<Section>,
}

impl Report {
    /// Whether anything prevents something from working.
    pub fn has_problems(&self) -> bool {
        self.count(Status::Problem) > 0
    }

    fn count(&self, status: Status) -> usize {
        self.findings().filter(|finding| finding.status == status).count()
    }

    fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.sections.iter().flat_map(|section| &section.findings)
    }

    /// Removes every occurrence of `secrets`, however they got in: a report is meant to be published.
    pub(crate) fn redact(&mut self, secrets: &[String]) {
        let clean = |text: &mut String| {
            for secret in secrets.iter().filter(|secret| text.contains(secret.as_str())).collect::<Vec<_>>() {
                *text = text.replace(secret.as_str(), "[secret]");
            }
        };
        clean(&mut self.heading);
        for finding in self.sections.iter_mut().flat_map(|section| &mut section.findings) {
            clean(&mut finding.text);
            finding.remedy.iter_mut().for_each(clean);
            finding.facts.values_mut().for_each(|value| redact_value(value, &clean));
        }
    }

    /// The JSON object, in one line when printed.
    pub fn to_json(&self) -> Value {
        let sections: Vec<Value> = self
            .sections
            .iter()
            .map(|section| {
                let findings: Vec<Value> = section.findings.iter().map(Finding::to_json).collect();
                json!({ "section": section.title, "findings": findings })
            })
            .collect();
        json!({
            "heading": self.heading,
            "problems": self.count(Status::Problem),
            "notes": self.count(Status::Note),
            "sections": sections,
        })
    }
}

fn redact_value(value: &mut Value, clean: &impl Fn(&mut String)) {
    match value {
        Value::String(text) => clean(text),
        Value::Array(values) => values.iter_mut().for_each(|value| redact_value(value, clean)),
        Value::Object(values) => values.values_mut().for_each(|value| redact_value(value, clean)),
        _ => {}
    }
}

/// The page.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.heading)?;
        let longest = self.findings().map(|finding| finding.name.chars().count()).max().unwrap_or(0);
        for section in self.sections.iter().filter(|section| !section.findings.is_empty()) {
            writeln!(f, "\n{}", section.title)?;
            for Finding { status, name, text, remedy, .. } in &section.findings {
                let start = format!("  {:<8} {name:<longest$}  ", status.name());
                let indent = " ".repeat(start.chars().count());
                write_wrapped(f, &start, &indent, text)?;
                if let Some(remedy) = remedy {
                    write_wrapped(f, &format!("{indent}-> "), &format!("{indent}   "), remedy)?;
                }
            }
        }
        let (problems, notes) = (self.count(Status::Problem), self.count(Status::Note));
        match problems {
            0 => write!(f, "\nno problems, {}", counted(notes, "note")),
            _ => write!(f, "\n{}, {}", counted(problems, "problem"), counted(notes, "note")),
        }
    }
}

/// Wraps a text at blanks before [`WIDTH`]; a longer word stands alone.
fn write_wrapped(f: &mut fmt::Formatter<'_>, start: &str, indent: &str, text: &str) -> fmt::Result {
    let mut line = start.to_owned();
    let mut is_empty = true;
    for word in text.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(f, "{}", line.trim_end())?;
            line = indent.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    writeln!(f, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let long = "word ".repeat(20);
        Report {
            heading: "enmasse 1".to_owned(),
            sections: vec![
                Section { title: "empty", findings: Vec::new() },
                Section {
                    title: "cores",
                    findings: vec![
                        Finding::ok("number", "2").fact("cores", 2),
                        Finding::note("quota", "one and a half\n\x1b[2J", "use fewer threads"),
                        Finding::problem("disk space", long.trim(), "free some"),
                    ],
                },
            ],
        }
    }

    #[test]
    fn the_page() {
        let report = report();
        assert!(report.has_problems());
        let expected = "\
enmasse 1

cores
  ok       number      2
  note     quota       one and a half [2J
                       -> use fewer threads
  problem  disk space  word word word word word word word word word word word word word word word word word
                       word word word
                       -> free some

1 problem, 1 note";
        assert_eq!(report.to_string(), expected);
        assert!(report.to_string().lines().all(|line| line.len() <= WIDTH));
        let none = Report { heading: "h".to_owned(), sections: Vec::new() };
        assert_eq!((none.to_string().as_str(), none.has_problems()), ("h\n\nno problems, 0 notes", false));
    }

    #[test]
    fn the_object() {
        let object = report().to_json();
        assert_eq!((&object["problems"], &object["notes"]), (&1.into(), &1.into()));
        assert_eq!(object["sections"][1]["section"], "cores");
        let findings = &object["sections"][1]["findings"];
        assert_eq!(findings[0].to_string(), r#"{"name":"number","status":"ok","text":"2","facts":{"cores":2}}"#);
        assert_eq!(findings[1]["remedy"], "use fewer threads");
        assert!(!object.to_string().contains('\n'));
    }

    #[test]
    fn secrets_are_removed_everywhere() {
        let secret = "hunter2hunter2".to_owned();
        let mut report = report();
        report.heading.push_str(&secret);
        let facts = json!({ "lines": [format!("a {secret}"), { "deep": secret }] });
        let finding = Finding::note("a", format!("{secret} {secret}"), &secret).fact("f", facts);
        report.sections[1].findings.push(finding);
        report.redact(std::slice::from_ref(&secret));
        assert!(!report.to_string().contains(&secret) && !report.to_json().to_string().contains(&secret));
        assert!(report.to_string().contains("[secret] [secret]"));
    }
}
