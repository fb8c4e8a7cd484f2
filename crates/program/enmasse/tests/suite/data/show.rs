//! `enmasse data show`: the sheet has the images of validation and training.

use std::fs;
use std::path::Path;

use super::textured;
use crate::common::{enmasse, files, images, refused};

/// Width of a PNG, and its RGB pixels.
fn read(path: &Path) -> (usize, Vec<u8>) {
    let mut reader = png::Decoder::new(std::io::BufReader::new(fs::File::open(path).unwrap())).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!(info.color_type, png::ColorType::Rgb);
    (info.width as usize, pixels)
}

/// The rows of an enlarged image on a sheet.
fn cut(sheet: &(usize, Vec<u8>), left: usize, top: usize, edge: usize) -> Vec<Vec<[u8; 3]>> {
    let row = |row: usize| {
        let start = ((top + row) * sheet.0 + left) * 3;
        sheet.1[start..start + edge * 3].as_chunks().0.to_vec()
    };
    (0..edge).map(row).collect()
}

#[test]
fn flags_of_augmentation_are_those_of_training() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for class in ["green", "red"] {
        (0..5)
            .for_each(|number| textured(&data.join(format!("{class}/{number}.png")), number + class.len() as u64 * 9));
    }
    let show = |name: &str, others: &[&str]| {
        let path = |end: &str| folder.path().join(format!("{name}.{end}"));
        let data = data.display().to_string();
        let sheet = path("png");
        let classes = path("svg");
        let sheet_text = sheet.display().to_string();
        let classes_text = classes.display().to_string();
        let fixed = [
            "data",
            "show",
            &data,
            "--sheet",
            &sheet_text,
            "--classes",
            &classes_text,
            "--size",
            "16",
            "--samples",
            "3",
        ];
        let ended = enmasse(&[&fixed, others].concat()).well();
        let chart = fs::read_to_string(classes).unwrap();
        assert!(chart.contains(">green<") && chart.contains(">4 + 1<"), "{chart}");
        (ended, read(&sheet))
    };
    // It was taken, and no copy was made.
    refused(&enmasse(&["data", "show", "--stage", "/tmp"]), 2, &["unexpected argument '--stage'"]);
    // Nothing is drawn but the mirror: two versions of each sample, at six times their size.
    let (ended, sheet) = show("mirror", &["--augment", "none", "--flip", "1", "--versions", "2"]);
    assert!(
        ended
            .stdout
            .starts_with("augmentation: resize_center_crop size=16 resize=18; random_horizontal_flip probability=1\n")
    );
    assert!(ended.stdout.contains("mirror.png: 3 samples, each in 2 versions\n"), "{ended:?}");
    assert_eq!((sheet.0, sheet.1.len()), (16 + 3 * 96 + 2 * 4 + 16, 320 * 3 * (16 + 3 * (96 + 16)) + 8 * 3 * 352));
    for sample in 0..3 {
        let top = 16 + sample * (96 + 16);
        let [original, first, second] = [0, 1, 2].map(|place| cut(&sheet, 16 + place * 100, top, 96));
        let mirrored: Vec<Vec<[u8; 3]>> = original.iter().map(|row| row.iter().rev().copied().collect()).collect();
        assert!(first == mirrored && second == mirrored && first != original, "sample {sample}");
    }

    // The first two samples of an epoch exchange a part.
    let plain = ["--augment", "none", "--flip", "0", "--versions", "1", "--epoch", "3"];
    let (ended, sheet) = show("mixed", &[&plain, &["--cutmix", "1"][..]].concat());
    assert!(ended.stdout.contains("; mixed mixup_alpha=0 cutmix_alpha=1\n"), "{ended:?}");
    let [[one, one_mixed], [other, other_mixed]] =
        [0, 1].map(|sample| [0, 1].map(|place| cut(&sheet, 16 + place * 100, 16 + sample * 112, 96).concat()));
    assert!(one != one_mixed && other != other_mixed);
    for place in 0..one.len() {
        let found = [one_mixed[place], other_mixed[place]];
        assert!(found == [one[place], other[place]] || found == [other[place], one[place]], "{place}");
    }

    // The versions of an epoch are those of the epoch before, moved up by one.
    let objects = |name: &str, others: &[&str]| {
        let (ended, sheet) = show(name, &[&["--json", "--versions", "2"], others].concat());
        (ended.json().remove(0), sheet)
    };
    let (one, sheet) = objects("one", &[]);
    assert_eq!(
        (&one["event"], &one["versions"], one["samples"].as_array().map(Vec::len)),
        (&"show".into(), &2.into(), Some(3))
    );
    assert_eq!(objects("again", &[]).1, sheet);
    assert_ne!(objects("other", &["--seed", "1"]).1, sheet);
    // Of repeated samples each is shown once.
    let (repeated, _) = objects("repeated", &["--repeat-augment", "2", "--balance", "classes"]);
    let shown: std::collections::HashSet<String> =
        (0..3).map(|place| repeated["samples"][place]["name"].to_string()).collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    let (next, later) = objects("next", &["--epoch", "2"]);
    let sample = |object: &serde_json::Value, place: usize| object["samples"][place]["index"].clone();
    let pairs = (0..3).flat_map(|one| (0..3).map(move |other| (one, other)));
    for (before, after) in pairs.filter(|&(before, after)| sample(&one, before) == sample(&next, after)) {
        let top = |place: usize| 16 + place * 112;
        assert!(cut(&sheet, 216, top(before), 96) == cut(&later, 116, top(after), 96));
    }
}

/// It ended at the first one, which training, evaluation and `data stats` skip.
#[test]
fn an_image_that_cannot_be_read_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let sheet = folder.path().join("sheet.png").display().to_string();
    let charts = folder.path().join("classes.svg").display().to_string();
    let root = data.display().to_string();
    let show = || enmasse(&["data", "show", &root, "--sheet", &sheet, "--classes", &charts, "--size", "8", "--json"]);
    let all = show().well().json()[0]["samples"].as_array().unwrap().len();
    let first = show().json()[0]["samples"][0]["name"].as_str().unwrap().to_owned();
    fs::write(&first, "text").unwrap();
    let ended = show().well();
    let warning = format!("warning: skipped an image that cannot be read: {first}: ");
    assert!(ended.stderr.starts_with(&warning) && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    assert_eq!(ended.json()[0]["samples"].as_array().unwrap().len(), all - 1);
    files(&data).iter().for_each(|path| fs::write(path, "text").unwrap());
    assert_eq!(show().code, Some(1));
}
