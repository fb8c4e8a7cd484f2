//! Whether a data set is usable: recognised, with images in every class, and readable.

use std::path::Path;
use std::time::{Duration, Instant};

use enmasse_data::Dataset;
use enmasse_datasets::{DataWarning, OpenData, OpenOptions, open};

use crate::report::{Finding, Section};
use enmasse_wording::counted;

/// Number of images that are read, evenly distributed over the data set.
const SAMPLES: usize = 256;
/// Time limit for reading them.
const TIME: Duration = Duration::from_secs(10);
/// Number of unreadable images that are named.
const NAMED: usize = 5;

pub fn section(root: &Path) -> Section {
    Section { title: "data", findings: look(root) }
}

fn look(root: &Path) -> Vec<Finding> {
    let data = match open(root, &OpenOptions::default()) {
        Ok(data) => data,
        Err(error) => {
            return vec![Finding::problem(
                "folder",
                error,
                "name data as for `enmasse train`, whose --help lists the forms",
            )];
        }
    };
    let mut findings = vec![what(root, &data)];
    findings.extend(left_out(&data));
    findings.extend(data.warnings.iter().map(warned));
    findings.extend(uneven(&data));
    findings.push(readable(&data));
    findings
}

fn what(root: &Path, data: &OpenData) -> Finding {
    let total: usize = sets(data).iter().map(|set| set.len()).sum();
    let images = counted(total, "image");
    let classes = counted(data.classes.len(), "class");
    let text = format!("{}: {}, {images} in {classes}", root.display(), data.layout.name());
    Finding::ok("folder", text).fact("images", total).fact("classes", data.classes.len())
}

/// All parts.
fn sets(data: &OpenData) -> Vec<&dyn Dataset> {
    [&data.train, &data.validation].into_iter().chain(&data.test).map(AsRef::as_ref).collect()
}

/// What a run would warn of.
fn warned(DataWarning { problem, remedy }: &DataWarning) -> Finding {
    Finding::note("warning", problem, remedy)
}

/// A note if the folders hold what can be no image.
fn left_out(data: &OpenData) -> Option<Finding> {
    let left_out = data.split.as_ref()?.left_out();
    let remedy = "remove these, or give the links their targets back";
    (!left_out.is_empty()).then(|| Finding::note("left out", &left_out, remedy).fact("left_out", left_out.count()))
}

/// A note if a class has far fewer images than another, since the overall accuracy then hides its results.
fn uneven(data: &OpenData) -> Option<Finding> {
    const RATIO: usize = 10;
    let mut counts = vec![0usize; data.classes.len()];
    for set in sets(data) {
        for index in 0..set.len() {
            *counts.get_mut(set.label(index))? += 1;
        }
    }
    let (least, class) = counts.iter().zip(&data.classes).min_by_key(|(count, _)| **count)?;
    let (most, largest) = counts.iter().zip(&data.classes).max_by_key(|(count, _)| **count)?;
    let text = format!("class {class} has {least}, class {largest} {most}");
    let remedy = "look at each class by itself: the overall accuracy hardly shows the small one";
    (least * RATIO < *most).then(|| Finding::note("balance", text, remedy))
}

/// Reads a sample of the images.
fn readable(data: &OpenData) -> Finding {
    let began = Instant::now();
    let sets = sets(data);
    let total: usize = sets.iter().map(|set| set.len()).sum();
    let picked =
        (0..SAMPLES.min(total)).map(|sample| (sample as u128 * total as u128 / SAMPLES.min(total) as u128) as usize);
    let mut read = 0;
    let mut bad = Vec::new();
    for index in picked {
        if began.elapsed() > TIME {
            break;
        }
        let mut place = index;
        let holder = sets.iter().find(|set| {
            let is_here = place < set.len();
            place -= if is_here { 0 } else { set.len() };
            is_here
        });
        read += 1;
        bad.extend(holder.and_then(|set| set.read(place).err()).map(|error| error.to_string()));
    }
    let seconds = began.elapsed().as_secs_f64();
    let finding = match bad.len() {
        0 => Finding::ok("images", format!("{read} of {total} were read in {seconds:.1} s, on one thread")),
        count => {
            let named = bad.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
            let more = if count > NAMED { "; ..." } else { "" };
            let text = format!("{count} of {read} sampled images cannot be used: {named}{more}");
            Finding::problem("images", text, "repair or remove these files")
        }
    };
    finding.fact("read", read).fact("unreadable", bad.len()).fact("seconds", seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;
    use jpeg_encoder::{ColorType, Encoder};

    fn folder(counts: &[(&str, usize)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (class, count) in counts {
            std::fs::create_dir(root.path().join(class)).unwrap();
            for number in 0..*count {
                let file = Encoder::new_file(root.path().join(format!("{class}/{number}.jpg")), 90).unwrap();
                file.encode(&[7; 8 * 8 * 3], 8, 8, ColorType::Rgb).unwrap();
            }
        }
        root
    }

    #[test]
    fn folders() {
        let check = |counts: &[(&str, usize)], broken: Option<&str>, expected: &[Status]| {
            let root = folder(counts);
            broken.into_iter().for_each(|file| std::fs::write(root.path().join(file), "no image").unwrap());
            let found: Vec<Status> = look(root.path()).iter().map(|finding| finding.status).collect();
            assert_eq!(found, expected, "{counts:?} {broken:?}");
        };
        use Status::{Note, Ok, Problem};
        check(&[("a", 6), ("b", 7)], None, &[Ok, Ok]);
        check(&[("a", 6), ("b", 61)], None, &[Ok, Note, Ok]);
        check(&[("a", 6), ("b", 60)], None, &[Ok, Ok]);
        check(&[("a", 6), ("b", 7)], Some("b/2.jpg"), &[Ok, Problem]);
        check(&[], None, &[Problem]);
    }

    #[test]
    fn every_broken_image_is_counted() {
        let root = folder(&[("a", 10), ("b", 10)]);
        (0..8).for_each(|number| std::fs::write(root.path().join(format!("a/{number}.jpg")), "").unwrap());
        let finding = look(root.path()).pop().unwrap();
        assert!(finding.text.starts_with("8 of 20 sampled images cannot be used: "), "{}", finding.text);
        assert!(finding.text.ends_with("; ...") && finding.text.matches(".jpg").count() >= NAMED, "{}", finding.text);
    }
}
