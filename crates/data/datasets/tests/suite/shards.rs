//! Images in tar archives: samples, labels, parts, and archives that are damaged.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use enmasse_data::Dataset;
use enmasse_datasets::{DataLayout, OpenData, OpenOptions, open, open_whole};
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};
use tempfile::{TempDir, tempdir};

pub const IMAGE: &[u8] = include_bytes!("../../../image/tests/fixtures/image.420.jpg");

fn header(kind: EntryType, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header.set_mode(0o644);
    header
}

/// A tar archive with these members.
pub fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, bytes) in members {
        builder.append_data(&mut header(EntryType::Regular, bytes.len()), name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Samples `0` to `count`, of classes that take turns.
pub fn numbered(first: usize, count: usize, classes: &[&str]) -> Vec<u8> {
    let names: Vec<[String; 2]> =
        (first..first + count).map(|i| [format!("{i:06}.jpg"), format!("{i:06}.cls")]).collect();
    let members = names.iter().enumerate().flat_map(|(i, [image, label])| {
        [(image.as_str(), IMAGE), (label.as_str(), classes[i % classes.len()].as_bytes())]
    });
    archive(&members.collect::<Vec<_>>())
}

fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let root = tempdir().unwrap();
    for (name, bytes) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    root
}

fn opened(path: impl Into<PathBuf>) -> Result<OpenData, String> {
    open(&path.into(), &OpenOptions::default()).map_err(|error| error.to_string())
}

/// All samples without a split.
fn samples(path: &Path) -> Result<Vec<(String, usize)>, String> {
    let whole = open_whole(path, &OpenOptions::default()).map_err(|error| error.to_string())?;
    let name = |index| whole.dataset.name(index).rsplit_once(".tar/").unwrap().1.to_owned();
    Ok((0..whole.dataset.len()).map(|index| (name(index), whole.dataset.label(index))).collect())
}

#[test]
fn samples_are_members_with_one_key() {
    let long = format!("{}/{}.jpg", "folder/".repeat(20), "n".repeat(120));
    let cls = long.replace(".jpg", ".cls");
    let root = folder(&[(
        "a.tar",
        archive(&[
            ("x/1.cls", b"dog\n"),
            ("x/1.jpg", IMAGE),
            // The label of a .cls counts, of two images the one whose extension comes first in our list.
            ("x/2.json", br#"{"width": 3, "label": "bird"}"#),
            ("x/2.seg.png", b"mask"),
            ("x/2.png", b""),
            ("x/2.cls", b"cat"),
            ("x/2.JPG", IMAGE),
            ("readme", b""),
            ("x/._2.jpg", b"of a Mac"),
            ("x/3.jpg", IMAGE),
            ("x/3.json", br#"{"class": 7}"#),
            (&long, IMAGE),
            (&cls, b"dog"),
        ]),
    )]);
    let found = samples(&root.path().join("a.tar")).unwrap();
    let expected = [("x/1.jpg", 2), ("x/2.JPG", 1), ("x/3.jpg", 0), (long.as_str(), 2)];
    assert_eq!(found, expected.map(|(name, label)| (name.to_owned(), label)));
    let whole = open_whole(&root.path().join("a.tar"), &OpenOptions::default()).unwrap();
    assert_eq!(whole.classes, ["7", "cat", "dog"]);
    let whole = whole.dataset;
    let mut bytes = Vec::new();
    for index in 0..whole.len() {
        assert!(whole.locality().unwrap().read_file(index, &mut bytes).unwrap());
        assert_eq!(bytes, IMAGE);
    }
    assert_eq!(
        whole.read(3).unwrap(),
        enmasse_image::decode::open("../image/tests/fixtures/image.420.jpg", Default::default()).unwrap()
    );
    assert!(whole.locality().unwrap().reading_bytes() > IMAGE.len());
}

/// Regression test: archives for tests beside those for validation were not opened.
#[test]
fn a_test_part_beside_validation_was_ignored() {
    let check = |test: Vec<u8>, expected: Result<(usize, Option<&str>), &str>| {
        let part = || numbered(0, 4, &["a", "b"]);
        let root = folder(&[("train-0.tar", part()), ("val-0.tar", part()), ("test-0.tar", test)]);
        let expected = expected.map(|(samples, warning)| (samples, warning.map(str::to_owned)));
        let found = opened(root.path()).map(|data| {
            assert_eq!((data.train.len(), data.validation.len()), (4, 4));
            (data.test.map_or(0, |test| test.len()), data.warnings.first().map(|warning| warning.problem.clone()))
        });
        let place = root.path().display().to_string();
        let found = found.map(|(samples, warning)| (samples, warning.map(|warning| warning.replace(&place, "D"))));
        assert_eq!(found.map_err(|error| error.replace(&place, "D")), expected.map_err(str::to_owned));
    };
    check(numbered(0, 3, &["b"]), Ok((3, None)));
    // Tests are often published without labels. Where only some are missing, that is a mistake.
    check(
        archive(&[("0.jpg", IMAGE), ("1.jpg", IMAGE)]),
        Ok((0, Some("D: the test part is not used: its samples have no labels"))),
    );
    let some = archive(&[("0.jpg", IMAGE), ("1.jpg", IMAGE), ("1.cls", b"a")]);
    let problem = "D/test-0.tar: its image 0.jpg has no label: a member 0.cls, or 0.json with a field \"label\". An archive of class folders must be extracted";
    check(some, Err(problem));
    let class = "D/test-0.tar/000000.jpg: the class \"c\" is in the test part but not in the training part";
    check(numbered(0, 2, &["c"]), Err(class));
}

#[test]
fn archives_by_patterns_folders_and_parts() {
    let check = |files: &[&str], given: &str, expected: [usize; 3], has_parts: bool| {
        let files: Vec<(&str, Vec<u8>)> = files.iter().map(|name| (*name, numbered(0, 10, &["10", "9"]))).collect();
        let root = folder(&files);
        let data = opened(root.path().join(given)).unwrap();
        let test = data.test.as_ref().map_or(0, |test| test.len());
        assert_eq!([data.train.len(), data.validation.len(), test], expected, "{given}");
        assert_eq!((data.classes.concat().as_str(), data.has_parts), ("910", has_parts));
        assert_eq!(data.layout, DataLayout::Archives);
        let files = |dataset: &dyn Dataset| (0..dataset.len()).map(|index| dataset.name(index)).collect::<Vec<_>>();
        assert!(files(data.train.as_ref()).iter().all(|name| !files(data.validation.as_ref()).contains(name)));
    };
    let four = ["train-000.tar", "train-001.tar", "val-000.tar", "test-000.tar"];
    check(&four, "", [20, 10, 10], true);
    check(&four, "train-{000..001}.tar", [16, 4, 0], false);
    check(&four, "{train,test}-00*.tar", [20, 10, 0], true);
    check(&four, "train-001.tar", [8, 2, 0], false);
    check(&["train/0.tar", "valid/0.tar"], "", [10, 10, 0], true);
    check(&["a.tar", "b.tar"], "", [16, 4, 0], false);
    check(&["a.tar", "b.tar"], "*.tar", [16, 4, 0], false);
}

#[test]
fn problems_are_named() {
    let root = folder(&[("a.tar", numbered(0, 3, &["a", "b"]))]);
    let refused = |name: &str, expected: &str| {
        let error = samples(&root.path().join(name)).unwrap_err();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    };
    refused("b-{0..1}.tar", "b-0.tar: no such file or directory");
    refused("b*.tar", "is called b*.tar");
    refused("b-{0.tar", "it has a { without a }");
    refused("*/b.tar", "a * may be in the names of files, not in those of folders");
    let check = |bytes: Vec<u8>, expected: &str| {
        fs::write(root.path().join("c.tar"), bytes).unwrap();
        refused("c.tar", expected);
    };
    let sample = |label: (&str, &[u8])| archive(&[("1.jpg", IMAGE), (label.0, label.1)]);
    check(archive(&[]), "there are no samples in its archives");
    check(
        b"no tar archive, but long enough for a header".repeat(20),
        "c.tar: it is no tar archive, or a damaged one: ",
    );
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&numbered(0, 3, &["a", "b"])).unwrap();
    check(gzip.finish().unwrap(), "c.tar: it is compressed by gzip: decompress it first (gunzip)");
    check(archive(&[("a/1.jpg", IMAGE)]), "c.tar: its image a/1.jpg has no label: a member a/1.cls, or a/1.json with");
    check(archive(&[("1.cls", b"a"), ("2.jpg", IMAGE)]), "c.tar: its sample 1 has a label and no image (jpg, ");
    check(sample(("1.cls", b" ")), "its image 1.jpg has no label");
    check(sample(("1.cls", b"\xFF")), "its member 1.cls is not valid UTF-8");
    check(sample(("1.json", b"{")), "its member 1.json is not JSON");
    check(sample(("1.json", b"{\"label\": [1]}")), "its member 1.json has a list of labels: archives have one class");
    check(
        sample(("1.cls", b"0.5")),
        "c.tar/1.jpg: its label is 0.5: archives have classes, and tables numbers to predict",
    );
    let mut builder = Builder::new(Vec::new());
    builder.append_link(&mut header(EntryType::Link, 0), "1.jpg", "2.jpg").unwrap();
    check(builder.into_inner().unwrap(), "its member 1.jpg is a link, or otherwise no file of its own");
    // One archive of no part among those that have some.
    fs::remove_file(root.path().join("c.tar")).unwrap();
    for name in ["train-0.tar", "val-0.tar"] {
        fs::write(root.path().join(name), numbered(0, 2, &["a"])).unwrap();
    }
    refused("", "a.tar: its name says no part");
}

/// Names and attributes of a member took as much memory as the archive gave them bytes, of which a sparse file has any number.
#[test]
fn headers_without_end() {
    let root = tempdir().unwrap();
    let path = root.path().join("a.tar");
    let check = |kind: EntryType| {
        let mut header = header(kind, 7 << 30);
        header.set_path("././@LongLink").unwrap();
        header.set_cksum();
        fs::write(&path, header.as_bytes()).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(8 << 30).unwrap();
        let problem = "it is no tar archive, or a damaged one: headers of more than 2097152 bytes";
        assert_eq!(samples(&path), Err(format!("{}: {problem}", path.display())), "{kind:?}");
    };
    check(EntryType::GNULongName);
    check(EntryType::GNULongLink);
    check(EntryType::XHeader);
    // Neither of these is one, and neither is read.
    let large = vec![b' '; 3 << 20];
    let members = [("1.jpg", IMAGE), ("1.cls", b"a"), ("1.txt", &large), ("2.jpg", IMAGE), ("2.cls", b"b")];
    fs::write(&path, archive(&members)).unwrap();
    assert_eq!(samples(&path).map(|samples| samples.len()), Ok(2));
}

/// An archive may end anywhere: an error, or a warning where whole samples are lost.
#[test]
fn archives_that_were_cut_short() {
    let whole = numbered(0, 2, &["a", "b"]);
    let root = tempdir().unwrap();
    let path = root.path().join("a.tar");
    let ends = (0..whole.len()).step_by(97).chain((0..whole.len()).step_by(512));
    let mut warned = 0;
    for end in ends {
        fs::write(&path, &whole[..end]).unwrap();
        match opened(&path) {
            Ok(_) => panic!("two images make no data set of two parts"),
            Err(error) => assert!(!error.contains('\n'), "{error}"),
        }
        if let Ok(found) = samples(&path) {
            assert!(!found.is_empty() && end >= IMAGE.len());
            warned += 1;
        }
    }
    assert!(warned > 0);
    let ten = numbered(0, 10, &["a", "b"]);
    fs::write(&path, &ten[..ten.len() - 1024]).unwrap();
    let data = opened(&path).unwrap();
    let advice = "compare the copy with its source, or get it again";
    let warning =
        format!("{}: it lacks the mark of an archive's end, and may have been cut short; {advice}", path.display());
    assert_eq!(data.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(), [warning]);
    // Cut short after it was opened: an error that names the archive, and is one of a sample.
    fs::write(&path, &ten[..600]).unwrap();
    let data = data.train;
    let error = data.read(data.len() - 1).unwrap_err();
    assert!(error.is_unreadable() && error.to_string().contains("a.tar: it ends before byte"), "{error}");
}
