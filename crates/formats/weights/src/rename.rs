//! Other beginnings for the names of a file: those that a user gives, and the prefix under which a file has the whole
//! model, as Lightning's `model.` and DDP's `module.`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use crate::ModelTensors;

/// Another beginning of names, written `OLD=NEW`; either side may be empty, but not both.
///
/// ```
/// use enmasse_weights::Rename;
/// let rename: Rename = "backbone.=".parse()?;
/// assert_eq!(rename.to_string(), "backbone.=");
/// assert!("backbone".parse::<Rename>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    old: String,
    new: String,
}

impl FromStr for Rename {
    type Err = String;

    /// The error is the end of a sentence about the text.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((old, new)) if text != "=" && !new.contains('=') => {
                Ok(Rename { old: old.to_owned(), new: new.to_owned() })
            }
            _ => Err("must be OLD=NEW, such as backbone.= (NEW may be empty)".to_owned()),
        }
    }
}

impl fmt::Display for Rename {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{}={}", self.old, self.new)
    }
}

/// A rename, and the number of names that it changed. Displays as a line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// What was replaced by what.
    pub rename: Rename,
    /// In how many names.
    pub names: usize,
}

impl fmt::Display for Renamed {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Renamed { rename: Rename { old, new }, names } = self;
        let names = format_args!("{names} {}", if *names == 1 { "name" } else { "names" });
        match (old.as_str(), new.as_str()) {
            (old, "") => write!(out, "prefix {old} removed from {names}"),
            ("", new) => write!(out, "prefix {new} added to {names}"),
            (old, new) => write!(out, "prefix {old} replaced by {new} in {names}"),
        }
    }
}

/// Gives each name the beginning that the first fitting rename says. The error is a rename that fits no name.
pub(crate) fn rename(names: &mut [String], renames: &[Rename]) -> Result<Vec<Renamed>, Rename> {
    let mut renamed: Vec<Renamed> = renames.iter().map(|rename| Renamed { rename: rename.clone(), names: 0 }).collect();
    for name in names {
        let fits = renamed.iter_mut().find(|renamed| name.starts_with(&renamed.rename.old));
        if let Some(Renamed { rename: Rename { old, new }, names }) = fits {
            name.replace_range(..old.len(), new);
            *names += 1;
        }
    }
    match renamed.iter().find(|renamed| renamed.names == 0) {
        Some(idle) => Err(idle.rename.clone()),
        None => Ok(renamed),
    }
}

/// Removes the prefix under which the file has the model, unless a name fits as it is. The prefix must begin every name
/// of the file, or the names of all of the model's tensors outside its classifier: a part of another model may have a
/// few names in common with this one. The error is several such prefixes.
pub(crate) fn remove_common(names: &mut [String], model: &ModelTensors) -> Result<Option<Renamed>, Vec<String>> {
    let own: HashSet<&str> = model.tensors.iter().map(|(name, _)| name.as_str()).collect();
    if names.iter().any(|name| own.contains(name.as_str())) {
        return Ok(None);
    }
    let backbone = own.iter().filter(|name| !model.is_classifier(name)).count();
    // For each prefix the number of the model's tensors under it, and of those outside the classifier.
    let mut found: HashMap<&str, (usize, usize)> = HashMap::new();
    for name in names.iter() {
        for (dot, _) in name.match_indices('.') {
            let (prefix, rest) = name.split_at(dot + 1);
            if own.contains(rest) {
                let (all, outside) = found.entry(prefix).or_default();
                *all += 1;
                *outside += usize::from(!model.is_classifier(rest));
            }
        }
    }
    let begins_all = |prefix: &str| names.iter().all(|name| name.starts_with(prefix));
    found.retain(|prefix, (_, outside)| *outside == backbone || begins_all(prefix));
    let Some(most) = found.values().map(|(all, _)| *all).max() else { return Ok(None) };
    let mut best: Vec<String> =
        found.into_iter().filter(|(_, (all, _))| *all == most).map(|(prefix, _)| prefix.to_owned()).collect();
    best.sort_unstable();
    match best.as_slice() {
        [prefix] => {
            let removal = Rename { old: prefix.clone(), new: String::new() };
            Ok(rename(names, &[removal]).ok().and_then(|mut renamed| renamed.pop()))
        }
        _ => Err(best),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn renames_are_two_prefixes() {
        let check = |text: &str, expected: Result<(&str, &str), &str>| {
            let found = text.parse::<Rename>();
            let found = found.as_ref().map(|rename| (rename.old.as_str(), rename.new.as_str()));
            assert_eq!(found.map_err(|reason| reason.as_str()), expected, "{text}");
        };
        check("backbone.=", Ok(("backbone.", "")));
        check("=model.", Ok(("", "model.")));
        check("head.=fc.", Ok(("head.", "fc.")));
        for text in ["", "=", "backbone.", "a=b=c"] {
            check(text, Err("must be OLD=NEW, such as backbone.= (NEW may be empty)"));
        }
    }

    #[test]
    fn the_first_fitting_rename_counts() {
        let check = |renames: &[&str], names: &[&str], expected: Result<(&[&str], &[&str]), &str>| {
            let renames: Vec<Rename> = renames.iter().map(|text| text.parse().unwrap()).collect();
            let mut found = owned(names);
            let renamed = rename(&mut found, &renames).map_err(|idle| idle.to_string());
            let said: Result<Vec<String>, _> = renamed.map(|all| all.iter().map(Renamed::to_string).collect());
            let expected = expected.map(|(names, said)| (owned(names), owned(said))).map_err(str::to_owned);
            assert_eq!(said.map(|said| (found, said)), expected, "{names:?}");
        };
        check(&[], &["a.b"], Ok((&["a.b"], &[])));
        check(&["a.="], &["a.b", "a.c", "d"], Ok((&["b", "c", "d"], &["prefix a. removed from 2 names"])));
        check(&["=a."], &["b"], Ok((&["a.b"], &["prefix a. added to 1 name"])));
        let both = ["prefix x. removed from 1 name", "prefix head. replaced by fc. in 1 name"];
        check(&["x.=", "head.=fc."], &["x.head.w", "head.w"], Ok((&["head.w", "fc.w"], &both)));
        check(&["a.=", "z.="], &["a.b"], Err("z.="));
        // A prefix is text, so that it can end within a part of a name.
        check(&["con=c"], &["conv.w"], Ok((&["cv.w"], &["prefix con replaced by c in 1 name"])));
    }

    #[test]
    fn the_prefix_of_the_whole_model() {
        let model = ModelTensors {
            name: "net".to_owned(),
            tensors: ["conv1.w", "layer1.conv1.w", "bn.w", "fc.w"].map(|name| (name.to_owned(), vec![1])).to_vec(),
            classifier: "fc".to_owned(),
            any_classes: false,
            positions: None,
        };
        let check = |names: &[&str], expected: Result<&[&str], &[&str]>| {
            let mut found = owned(names);
            let said = remove_common(&mut found, &model);
            match expected {
                Ok(expected) => {
                    assert_eq!(found, expected);
                    assert_eq!(said.unwrap().is_some(), names != expected);
                }
                Err(expected) => {
                    assert_eq!(said.unwrap_err(), expected, "{names:?}");
                }
            }
        };
        let under = |prefix: &str| ["conv1.w", "layer1.conv1.w", "bn.w", "fc.w"].map(|name| format!("{prefix}{name}"));
        let plain = under("");
        for prefix in ["model.", "net.", "module.", "_orig_mod.", "module._orig_mod.", "self.encoder.model."] {
            let names = under(prefix);
            let [a, b, c, d] = &names;
            let [e, f, g, h] = &plain;
            check(&[a, b, c, d], Ok(&[e, f, g, h]));
            // Beside a loss with weights; and without the classifier.
            check(&["loss.w", a, b, c, d], Ok(&["loss.w", e, f, g, h]));
            check(&[c, b, a], Ok(&[g, f, e]));
            check(&[a, b, c, "head.w"], Ok(&[e, f, g, "head.w"]));
        }
        check(&["conv1.w", "model.bn.w"], Ok(&["conv1.w", "model.bn.w"]));
        // Every name begins with it.
        check(&["model.conv1.w", "model.other.w"], Ok(&["conv1.w", "other.w"]));
        // A few names that this model happens to have.
        check(&["stage.0.conv1.w", "stage.1.conv1.w", "head.w"], Ok(&["stage.0.conv1.w", "stage.1.conv1.w", "head.w"]));
        check(&["other.w"], Ok(&["other.w"]));
        let (a, b) = (under("encoder_k."), under("encoder_q."));
        let names: Vec<&str> = a.iter().chain(&b).map(String::as_str).collect();
        check(&names, Err(&["encoder_k.", "encoder_q."]));
    }
}
