//! Finds the tensors of a file that fit a model, by name and by shape. An equal number of elements in another shape is
//! not a match: the elements would be in the wrong order. Only the classifier may be for other classes.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::rename::{remove_common, rename};
use crate::tools::Tool;
use crate::{Interpolated, ModelTensors, NamedTensor, Rename, Renamed, WeightsFile};

/// Limit of names on one line of a report; the others are counted.
const SHOWN: usize = 8;
/// Limit of names in an error.
const SHOWN_IN_ERROR: usize = 3;

/// A classifier for other classes than the model's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherClasses {
    /// The layer.
    pub layer: String,
    /// Number of classes in the file.
    pub in_file: usize,
    /// Number of classes of the model.
    pub in_model: usize,
}

/// The tensors that a model takes from a file. Displays as a few short lines: how many were loaded, other names, the
/// classifier that begins anew, and the tensors that are missing or not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matching {
    /// The file.
    pub path: PathBuf,
    /// The model's name.
    pub model: String,
    /// The number of tensors in the model.
    pub total: usize,
    /// The number of tensors that were loaded.
    pub loaded: usize,
    /// The key of the averages in the file, if the tensors are these.
    pub averages: Option<&'static str>,
    /// The prefixes that were replaced, in order.
    pub renamed: Vec<Renamed>,
    /// Whose names were replaced by whose, and in how many tensors, if the file has another tool's names.
    pub translated: Option<(&'static str, usize)>,
    /// The number of classes in the file, if it has the classifier.
    pub classes: Option<usize>,
    /// The classifier that was not loaded, because it is for other classes.
    pub other_classes: Option<OtherClasses>,
    /// The position embedding, if it is for images of another size in the file.
    pub interpolated: Option<Interpolated>,
    /// In the model, not in the file.
    pub missing: Vec<String>,
    /// In the file, not in the model.
    pub unused: Vec<String>,
    /// Whether something is missing outside the classifier.
    lacks_backbone: bool,
    /// Whose names the file has, if they are not the model's.
    tool: Option<&'static str>,
}

/// Reasons why a file does not fit a model.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatchError {
    /// No name has the prefix that a rename replaces.
    #[error("`prefix = {rename}`: no name in {} begins so; the first are {names}", path.display())]
    IdleRename {
        /// The rename.
        rename: Rename,
        /// The file.
        path: PathBuf,
        /// Its first names.
        names: String,
    },
    /// Two tensors have the same name once prefixes are replaced.
    #[error("{}: two tensors are named {name} once `prefix` is applied", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The whole model is there more than once.
    #[error(
        "{} holds the model {model} more than once, after {}; choose one, such as `prefix = {}=`",
        path.display(), prefixes.join(" and "), prefixes.first().map_or("", String::as_str)
    )]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// The model's name.
        model: String,
        /// The prefixes.
        prefixes: Vec<String>,
    },
    /// The tensors are those of another model.
    #[error(
        "{} does not fit the model {model}: {problem}; {}", path.display(),
        tool.map_or("is it of another model?".to_owned(), |names| format!("these are {names}"))
    )]
    Misfit {
        /// The file.
        path: PathBuf,
        /// The model's name.
        model: String,
        /// The first difference.
        problem: String,
        /// Whose names the file has, if they are not the model's.
        tool: Option<&'static str>,
    },
}

/// Takes the tensors of a model from a file, under the model's names. First the user's `renames` are applied. Then names
/// of other tools become the model's, and a prefix under which the file has the whole model is removed.
///
/// A model may lack tensors in the file, and tensors of modules that it does not have are left over; both are reported.
/// The classifier may have another number of classes, and a position embedding is interpolated.
///
/// # Errors
/// Another tensor has a wrong shape, or there are further tensors within the model's own modules: both are signs of
/// another model. Or a rename replaces nothing or gives a name twice, or the file has the whole model more than once.
pub fn match_tensors(
    model: &ModelTensors,
    file: WeightsFile,
    renames: &[Rename],
) -> Result<(Matching, Vec<NamedTensor>), MatchError> {
    let WeightsFile { path, wrapper, averages, mut tensors, .. } = file;
    let mut names: Vec<String> = tensors.iter().map(|tensor| format!("{wrapper}{}", tensor.name)).collect();
    let first = names[..names.len().min(SHOWN_IN_ERROR)].join(", ");
    let mut renamed = rename(&mut names, renames).map_err(|rename| MatchError::IdleRename {
        rename,
        path: path.clone(),
        names: first,
    })?;
    let found = Tool::of(&names, model);
    let tool = found.as_ref().map(|(tool, _)| tool.names);
    let translated = found.and_then(|(tool, prefix)| tool.translate(&prefix, &mut names, &mut tensors, model));
    let ambiguous = |prefixes| MatchError::Ambiguous { path: path.clone(), model: model.name.clone(), prefixes };
    renamed.extend(remove_common(&mut names, model).map_err(ambiguous)?);

    let misfit =
        |problem: String| Err(MatchError::Misfit { path: path.clone(), model: model.name.clone(), problem, tool });
    let mut in_file = HashMap::with_capacity(tensors.len());
    for (mut tensor, name) in tensors.into_iter().zip(&names) {
        tensor.name.clone_from(name);
        if in_file.insert(name.as_str(), tensor).is_some() {
            return Err(MatchError::Twice { path, name: name.clone() });
        }
    }
    let of_classifier = model.tensors.iter().filter(|(name, _)| model.is_classifier(name));
    let classes = of_classifier.clone().find_map(|(name, _)| in_file.get(name.as_str())?.shape.first().copied());
    let in_model = of_classifier.clone().find_map(|(_, shape)| shape.first().copied());
    let other_classes = classes.zip(in_model).filter(|(in_file, in_model)| in_file != in_model && !model.any_classes);
    let mut loaded = Vec::new();
    let mut missing = Vec::new();
    let mut interpolated = None;
    let mut is_any_there = false;
    for (name, shape) in &model.tensors {
        let Some(mut tensor) = in_file.remove(name.as_str()) else {
            missing.push(name.clone());
            continue;
        };
        is_any_there = true;
        let mut expected = shape.clone();
        let is_classifier = model.is_classifier(name);
        if let (true, Some(classes), Some(rows)) = (is_classifier, classes, expected.first_mut()) {
            *rows = classes;
        }
        let positions =
            model.positions.as_ref().filter(|positions| positions.name == *name && tensor.shape != expected);
        if let Some((found, values)) = positions.and_then(|p| p.interpolate(&tensor.shape, &tensor.values)) {
            tensor.shape[1] = expected[1];
            tensor.values = values;
            interpolated = Some(found);
        }
        if tensor.shape != expected {
            return misfit(format!("{name} is {:?} in the file and {shape:?} in the model", tensor.shape));
        }
        if !is_classifier || other_classes.is_none() {
            loaded.push(tensor);
        }
    }
    if !is_any_there {
        let own = model.tensors.first().map_or("none", |(name, _)| name);
        let theirs = names.first().map_or("none", String::as_str);
        return misfit(format!("they share no names; the first there is {theirs}, the first here is {own}"));
    }
    let modules: HashSet<&str> = model.tensors.iter().filter_map(|(name, _)| name.split('.').next()).collect();
    let unused: Vec<String> = names.iter().filter(|name| in_file.contains_key(name.as_str())).cloned().collect();
    let is_stranger = |name: &&String| {
        name.split('.').next().is_some_and(|module| modules.contains(module)) && !model.is_classifier(name)
    };
    if let Some(stranger) = unused.iter().find(is_stranger) {
        return misfit(format!("the model has no tensor {stranger}"));
    }
    let other_classes =
        other_classes.map(|(in_file, in_model)| OtherClasses { layer: model.classifier.clone(), in_file, in_model });
    let lacks_backbone = missing.iter().any(|name| !model.is_classifier(name));
    let (total, model) = (model.tensors.len(), model.name.clone());
    let matching = Matching {
        path,
        model,
        total,
        loaded: loaded.len(),
        averages,
        renamed,
        translated,
        classes,
        other_classes,
        interpolated,
        missing,
        unused,
        lacks_backbone,
        tool,
    };
    Ok((matching, loaded))
}

impl Matching {
    /// Checks that no tensor is missing: a model without it cannot be used as it is. Only the whole classifier may be:
    /// without it a model has features.
    ///
    /// # Errors
    /// [`MatchError::Misfit`] names the tensors that are missing.
    pub fn require_backbone(&self) -> Result<(), MatchError> {
        if self.missing.is_empty() || (self.classes.is_none() && !self.lacks_backbone) {
            return Ok(());
        }
        let path = self.path.clone();
        let model = self.model.clone();
        let tool = self.tool;
        Err(MatchError::Misfit {
            path,
            model,
            problem: listed("missing in the file", &self.missing, SHOWN_IN_ERROR),
            tool,
        })
    }
}

/// `WHAT: a, b and 3 more`.
fn listed(what: &str, names: &[String], shown: usize) -> String {
    let more = names.len().saturating_sub(shown);
    let line = format!("{what}: {}", names[..names.len() - more].join(", "));
    if more > 0 { format!("{line} and {more} more") } else { line }
}

impl fmt::Display for Matching {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "loaded {} of {} tensors from {}", self.loaded, self.total, self.path.display())?;
        if let Some(key) = self.averages {
            write!(out, "\n{key} taken: averages come before other weights, as in timm")?;
        }
        for renamed in &self.renamed {
            write!(out, "\n{renamed}")?;
        }
        if let Some((replaced, count)) = self.translated {
            write!(out, "\n{replaced} in {count} tensors")?;
        }
        if let Some(OtherClasses { layer, in_file, in_model }) = &self.other_classes {
            write!(out, "\n{layer} begins anew: {in_file} classes in the file, {in_model} here")?;
        }
        if let Some(Interpolated { name, in_file, in_model: [height, width] }) = &self.interpolated {
            write!(out, "\n{name} interpolated: {in_file}x{in_file} patches in the file, {height}x{width} here")?;
        }
        for (what, names) in [("missing in the file", &self.missing), ("not used", &self.unused)] {
            if !names.is_empty() {
                write!(out, "\n{}", listed(what, names, SHOWN))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;

    type Shapes<'a> = &'a [(&'a str, &'a [usize])];

    fn matched(
        model: Shapes,
        file: Shapes,
        renames: &[&str],
        any_classes: bool,
    ) -> Result<(Matching, Vec<NamedTensor>), String> {
        let tensors: Vec<_> = model.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect();
        let classifier = model.last().unwrap().0.rsplit_once('.').unwrap().0.to_owned();
        let model = ModelTensors { name: "net".to_owned(), tensors, classifier, any_classes, positions: None };
        let tensor = |(number, (name, shape)): (usize, &(&str, &[usize]))| NamedTensor {
            name: (*name).to_owned(),
            shape: shape.to_vec(),
            values: vec![number as f32; shape.iter().product()],
        };
        let tensors = file.iter().enumerate().map(tensor).collect();
        let path = "F".into();
        let format = Format::Zip;
        let wrapper = String::new();
        let file = WeightsFile { path, format, wrapper, averages: None, tensors };
        let renames: Vec<Rename> = renames.iter().map(|text| text.parse().unwrap()).collect();
        match_tensors(&model, file, &renames).map_err(|error| error.to_string())
    }

    fn check(model: Shapes, file: Shapes, expected: Result<&str, &str>) {
        let found = matched(model, file, &[], false).map(|(matching, _)| matching.to_string());
        assert_eq!(found.as_ref().map(String::as_str).map_err(String::as_str), expected);
    }

    const CONV: (&str, &[usize]) = ("conv.weight", &[4, 3]);
    const WEIGHT: (&str, &[usize]) = ("fc.weight", &[5, 4]);
    const BIAS: (&str, &[usize]) = ("fc.bias", &[5]);
    const NET: Shapes = &[CONV, WEIGHT, BIAS];

    #[test]
    fn by_name_and_shape() {
        check(NET, NET, Ok("loaded 3 of 3 tensors from F"));
        check(NET, &[BIAS, CONV, WEIGHT], Ok("loaded 3 of 3 tensors from F"));
        let others = "loaded 2 of 3 tensors from F\nmissing in the file: fc.bias\nnot used: criterion.weight";
        check(NET, &[CONV, WEIGHT, ("criterion.weight", &[5])], Ok(others));
        // An equal number of elements in another shape: the trap of comparing counts.
        let of_another = "is it of another model?";
        let transposed = "conv.weight is [3, 4] in the file and [4, 3] in the model";
        check(
            NET,
            &[("conv.weight", &[3, 4]), WEIGHT, BIAS],
            Err(&format!("F does not fit the model net: {transposed}; {of_another}")),
        );
        let shared = "they share no names; the first there is head.weight, the first here is conv.weight";
        check(NET, &[("head.weight", &[5])], Err(&format!("F does not fit the model net: {shared}; {of_another}")));
        // A deeper model has all of this one's tensors.
        check(
            NET,
            &[CONV, ("conv.2.weight", &[4]), WEIGHT, BIAS],
            Err(&format!("F does not fit the model net: the model has no tensor conv.2.weight; {of_another}")),
        );
    }

    #[test]
    fn a_classifier_for_other_classes_begins_anew() {
        let thousand: Shapes = &[CONV, ("fc.weight", &[1000, 4]), ("fc.bias", &[1000])];
        let anew = "loaded 1 of 3 tensors from F\nfc begins anew: 1000 classes in the file, 5 here";
        check(NET, thousand, Ok(anew));
        let (matching, tensors) = matched(NET, thousand, &[], true).unwrap();
        assert_eq!((matching.loaded, matching.classes, tensors.len()), (3, Some(1000), 3));
        // Its inputs are not classes, and both of its tensors are for the same ones.
        let problem = |what: &str| format!("F does not fit the model net: {what}; is it of another model?");
        let inputs = problem("fc.weight is [1000, 8] in the file and [5, 4] in the model");
        check(NET, &[CONV, ("fc.weight", &[1000, 8]), ("fc.bias", &[1000])], Err(&inputs));
        let bias = problem("fc.bias is [10] in the file and [5] in the model");
        check(NET, &[CONV, ("fc.weight", &[1000, 4]), ("fc.bias", &[10])], Err(&bias));
        // A classifier of another form is replaced too.
        let replaced = "loaded 1 of 3 tensors from F\nmissing in the file: fc.weight, fc.bias\nnot used: fc.0.weight";
        check(NET, &[CONV, ("fc.0.weight", &[9, 4])], Ok(replaced));
    }

    #[test]
    fn prefixes() {
        let lightning: Shapes = &[
            ("model.conv.weight", &[4, 3]),
            ("model.fc.weight", &[5, 4]),
            ("model.fc.bias", &[5]),
            ("criterion.weight", &[5]),
        ];
        let report = "loaded 3 of 3 tensors from F\nprefix model. removed from 3 names\nnot used: criterion.weight";
        check(NET, lightning, Ok(report));
        let check = |file: Shapes, renames: &[&str], expected: Result<&str, &str>| {
            let found = matched(NET, file, renames, false).map(|(matching, _)| matching.to_string());
            assert_eq!(found.as_ref().map(String::as_str).map_err(String::as_str), expected, "{renames:?}");
        };
        let other: Shapes = &[("encoder.conv.weight", &[4, 3]), ("head.weight", &[5, 4]), ("head.bias", &[5])];
        let report = "loaded 3 of 3 tensors from F\nprefix encoder. removed from 1 name\nprefix head. replaced by fc. in 2 names";
        check(other, &["encoder.=", "head.=fc."], Ok(report));
        let names = "the first are encoder.conv.weight, head.weight, head.bias";
        check(other, &["backbone.="], Err(&format!("`prefix = backbone.=`: no name in F begins so; {names}")));
        let twice = "F: two tensors are named conv.weight once `prefix` is applied";
        check(&[CONV, ("a.conv.weight", &[4, 3])], &["a.="], Err(twice));
        // A layer that is given a name without meaning begins anew.
        let set_aside = "loaded 2 of 3 tensors from F\nprefix conv. replaced by old.conv. in 1 name\n\
                         missing in the file: conv.weight\nnot used: old.conv.weight";
        check(&[("conv.weight", &[9, 9]), WEIGHT, BIAS], &["conv.=old.conv."], Ok(set_aside));
        let teacher: Shapes = &[("teacher.conv.weight", &[4, 3]), ("student.conv.weight", &[4, 3])];
        let choose = "F holds the model net more than once, after student. and teacher.; choose one, such as `prefix = student.=`";
        check(teacher, &[], Err(choose));
        let chosen = "loaded 1 of 3 tensors from F\nprefix teacher. removed from 1 name\n\
                      missing in the file: fc.weight, fc.bias\nnot used: student.conv.weight";
        check(teacher, &["teacher.="], Ok(chosen));
    }

    #[test]
    fn tensors_of_timm() {
        const VGG: Shapes = &[
            ("features.0.weight", &[4, 3, 3, 3]),
            ("classifier.0.weight", &[8, 4 * 7 * 7]),
            ("classifier.3.weight", &[8, 8]),
            ("classifier.6.weight", &[5, 8]),
            ("classifier.6.bias", &[5]),
        ];
        let timm = |classes: usize| {
            [
                ("features.0.weight", vec![4, 3, 3, 3]),
                ("pre_logits.fc1.weight", vec![8, 4, 7, 7]),
                ("pre_logits.fc2.weight", vec![8, 8, 1, 1]),
                ("head.fc.weight", vec![classes, 8]),
                ("head.fc.bias", vec![classes]),
            ]
        };
        let check = |model: Shapes, prefix: &str, classes: usize, expected: Result<&str, &str>| {
            let file = timm(classes).map(|(name, shape)| (format!("{prefix}{name}"), shape));
            let file: Vec<(&str, &[usize])> = file.iter().map(|(name, shape)| (name.as_str(), &shape[..])).collect();
            let found = matched(model, &file, &[], false).map(|(matching, _)| matching.to_string());
            assert_eq!(found.as_ref().map(String::as_str).map_err(String::as_str), expected);
        };
        let replaced = "timm's names replaced by torchvision's in 4 tensors";
        check(VGG, "", 5, Ok(&format!("loaded 5 of 5 tensors from F\n{replaced}")));
        let removed = "prefix model. removed from 5 names";
        let anew = "classifier.6 begins anew: 1000 classes in the file, 5 here";
        check(VGG, "model.", 1000, Ok(&format!("loaded 3 of 5 tensors from F\n{removed}\n{replaced}\n{anew}")));
        let names = "they share no names; the first there is features.0.weight, the first here is conv.weight";
        check(NET, "", 5, Err(&format!("F does not fit the model net: {names}; these are timm's names of a VGG")));

        // Layers over channels as convolutions, and factors of another shape.
        let convnext: Shapes = &[
            ("features.1.0.layer_scale", &[4, 1, 1]),
            ("features.1.0.block.3.weight", &[16, 4]),
            ("classifier.2.weight", &[5, 4]),
        ];
        let theirs: Shapes = &[
            ("stages.0.blocks.0.gamma", &[4]),
            ("stages.0.blocks.0.mlp.fc1.weight", &[16, 4, 1, 1]),
            ("head.fc.weight", &[5, 4]),
        ];
        let (matching, tensors) = matched(convnext, theirs, &[], false).unwrap();
        assert_eq!(
            matching.to_string(),
            "loaded 3 of 3 tensors from F\ntimm's names replaced by torchvision's in 3 tensors"
        );
        assert!(
            tensors.iter().zip(convnext).all(|(tensor, (name, shape))| tensor.name == *name && tensor.shape == *shape)
        );

        let stem: Shapes = &[("conv_stem.weight", &[40, 3, 3, 3]), ("blocks.0.0.se.conv_reduce.weight", &[8])];
        let mobilenet: Shapes = &[("features.0.0.weight", &[32, 3, 3, 3]), ("classifier.1.bias", &[5])];
        let wider = matched(mobilenet, stem, &[], false).unwrap_err();
        let expected = "F does not fit the model net: features.0.0.weight is [40, 3, 3, 3] in the file and \
                        [32, 3, 3, 3] in the model; these are timm's names of a MobileNet or EfficientNet, of which models \
                        here are mobilenetv2_100 (mobilenet_v2) and tf_efficientnet_lite0 to 4 (efficientnet_lite0 to 4)";
        assert_eq!(wider, expected);
    }

    #[test]
    fn long_reports_stay_short() {
        let names: Vec<String> = (0..20).map(|index| format!("n{index}.w")).collect();
        let model: Vec<(&str, &[usize])> = names.iter().map(|name| (name.as_str(), &[1usize][..])).collect();
        let all = "n1.w, n2.w, n3.w, n4.w, n5.w, n6.w, n7.w, n8.w and 11 more";
        let report = format!("loaded 1 of 20 tensors from F\nmissing in the file: {all}");
        check(&model, &[("n0.w", &[1])], Ok(&report));
        let (matching, _) = matched(&model, &[("n0.w", &[1])], &[], false).unwrap();
        let missing = "missing in the file: n1.w, n2.w, n3.w and 16 more";
        let expected = format!("F does not fit the model net: {missing}; is it of another model?");
        assert_eq!(matching.require_backbone().unwrap_err().to_string(), expected);
    }

    #[test]
    fn only_the_whole_classifier_may_be_missing() {
        let check = |file: Shapes, expected: Result<(), &str>| {
            let found = matched(NET, file, &[], true).unwrap().0.require_backbone().map_err(|error| error.to_string());
            let problem = |missing| {
                format!("F does not fit the model net: missing in the file: {missing}; is it of another model?")
            };
            assert_eq!(found, expected.map_err(problem), "{file:?}");
        };
        check(NET, Ok(()));
        check(&[CONV], Ok(()));
        check(&[CONV, WEIGHT], Err("fc.bias"));
        check(&[WEIGHT, BIAS], Err("conv.weight"));
    }
}
