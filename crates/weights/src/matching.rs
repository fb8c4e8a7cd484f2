//! Finds the tensors of a file that fit a model, by name and by shape. An equal number of elements in another shape is
//! not a match: the elements would be in the wrong order.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

use crate::WeightsFile;

/// Limit of names on one line of a report; the others are counted.
const SHOWN: usize = 8;

/// A tensor that is in both, with different shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its name.
    pub name: String,
    /// Its shape in the file.
    pub in_file: Vec<usize>,
    /// Its shape in the model.
    pub in_model: Vec<usize>,
}

/// The tensors of a file that fit a model. Displays as a few short lines: loaded, skipped, missing and unexpected
/// tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matching {
    /// The file.
    pub path: PathBuf,
    /// The number of tensors in the model.
    pub total: usize,
    /// Pairs of tensors by their indices in the model and in the file.
    pub loaded: Vec<(usize, usize)>,
    /// In both, in different shapes.
    pub skipped: Vec<Skipped>,
    /// In the model, not in the file.
    pub missing: Vec<String>,
    /// In the file, not in the model.
    pub unexpected: Vec<String>,
}

/// Matches the tensors of a model, by names and PyTorch's shapes, with those of a file.
pub fn match_tensors(model: &[(String, Vec<usize>)], file: &WeightsFile) -> Matching {
    let mut in_file: HashMap<&str, usize> =
        file.tensors.iter().enumerate().map(|(index, tensor)| (tensor.name.as_str(), index)).collect();
    let (path, total) = (file.path.clone(), model.len());
    let (loaded, skipped, missing, unexpected) = Default::default();
    let mut matching = Matching { path, total, loaded, skipped, missing, unexpected };
    for (index, (name, shape)) in model.iter().enumerate() {
        match in_file.remove(name.as_str()) {
            Some(given) if file.tensors[given].shape == *shape => matching.loaded.push((index, given)),
            Some(given) => {
                let (in_file, in_model) = (file.tensors[given].shape.clone(), shape.clone());
                matching.skipped.push(Skipped { name: name.clone(), in_file, in_model });
            }
            None => matching.missing.push(name.clone()),
        }
    }
    let names = file.tensors.iter().map(|tensor| &tensor.name);
    matching.unexpected = names.filter(|name| in_file.contains_key(name.as_str())).cloned().collect();
    matching
}

impl fmt::Display for Matching {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "loaded {} of {} tensors from {}", self.loaded.len(), self.total, self.path.display())?;
        for Skipped { name, in_file, in_model } in self.skipped.iter().take(SHOWN) {
            write!(out, "\nskipped {name}: {in_file:?} in the file, {in_model:?} in the model")?;
        }
        if self.skipped.len() > SHOWN {
            write!(out, "\nskipped {} more", self.skipped.len() - SHOWN)?;
        }
        for (what, names) in [("missing in the file", &self.missing), ("unexpected in the file", &self.unexpected)] {
            if !names.is_empty() {
                let shown = names[..names.len().min(SHOWN)].join(", ");
                write!(out, "\n{what}: {shown}")?;
                if names.len() > SHOWN {
                    write!(out, " and {} more", names.len() - SHOWN)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, NamedTensor};

    fn check(model: &[(&str, &[usize])], file: &[(&str, &[usize])], loaded: &[(usize, usize)], expected: &str) {
        let model: Vec<_> = model.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect();
        let tensor = |(name, shape): &(&str, &[usize])| NamedTensor {
            name: (*name).to_owned(),
            shape: shape.to_vec(),
            values: vec![0.0; shape.iter().product()],
        };
        let tensors = file.iter().map(tensor).collect();
        let matching = match_tensors(&model, &WeightsFile { path: "F".into(), format: Format::Zip, tensors });
        assert_eq!((matching.loaded.as_slice(), matching.to_string().as_str()), (loaded, expected));
    }

    #[test]
    fn by_name_and_shape() {
        let conv: (&str, &[usize]) = ("conv.weight", &[4, 3]);
        check(&[conv], &[conv], &[(0, 0)], "loaded 1 of 1 tensors from F");
        check(&[conv, ("b", &[1])], &[("b", &[1]), conv], &[(0, 1), (1, 0)], "loaded 2 of 2 tensors from F");
        // An equal number of elements in another shape: the trap of comparing counts.
        let transposed = "loaded 0 of 1 tensors from F\nskipped conv.weight: [3, 4] in the file, [4, 3] in the model";
        check(&[conv], &[("conv.weight", &[3, 4])], &[], transposed);
        let others = "loaded 1 of 2 tensors from F\nmissing in the file: fc.bias\nunexpected in the file: head.bias";
        check(&[conv, ("fc.bias", &[5])], &[conv, ("head.bias", &[5])], &[(0, 0)], others);
    }

    #[test]
    fn long_reports_stay_short() {
        let names: Vec<String> = (0..20).map(|index| format!("n{index}")).collect();
        let model: Vec<(&str, &[usize])> = names.iter().map(|name| (name.as_str(), &[1usize][..])).collect();
        let all = "n0, n1, n2, n3, n4, n5, n6, n7 and 12 more";
        check(
            &model,
            &[("x", &[])],
            &[],
            &format!("loaded 0 of 20 tensors from F\nmissing in the file: {all}\nunexpected in the file: x"),
        );
        let file: Vec<(&str, &[usize])> = names.iter().map(|name| (name.as_str(), &[2usize][..])).collect();
        let skipped: String =
            names[..8].iter().map(|name| format!("\nskipped {name}: [2] in the file, [1] in the model")).collect();
        check(&model, &file, &[], &format!("loaded 0 of 20 tensors from F{skipped}\nskipped 12 more"));
    }
}
