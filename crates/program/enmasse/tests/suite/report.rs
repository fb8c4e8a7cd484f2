//! Reports of runs: what is in them, in which forms, and that names in them are text.

use std::fs;
use std::path::Path;

use crate::common::{enmasse, finish, images, program, refused};

/// A class whose name is a script, a row of a Markdown table, and a formula.
const HOSTILE: &str = "=<script>alert(1)<|script>";

/// Trains on a folder with a hostile class name, and returns the paths of the run and the data.
pub fn trained(folder: &Path, name: &str) -> (String, String) {
    let data = folder.join("data");
    if !data.exists() {
        fs::create_dir(folder.join("made")).unwrap();
        let made = images(&folder.join("made"), 10);
        fs::rename(made.join("dark"), made.join(HOSTILE)).unwrap();
        fs::rename(made, &data).unwrap();
    }
    let data = data.display().to_string();
    let run = folder.join(name).display().to_string();
    let model = ["--model", "mlp", "--size", "12", "--epochs", "2", "--batch", "4", "--devices", "cpu:1"];
    enmasse(&[&["train", &data, "--out", &run], &model[..]].concat()).well();
    (run, data)
}

#[test]
fn a_report_holds_everything_and_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (run, data) = trained(folder.path(), "one");
    let (other, _) = trained(folder.path(), "other");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let [html, csv, markdown] = ["r.html", "r.csv", "r.md"].map(file);
    let forms = ["--html", &html, "--csv", &csv, "--markdown", &markdown, "--devices", "cpu:1"];
    enmasse(&[&["report", &run, &other], &forms[..]].concat()).well();
    let read = |path: &str| fs::read_to_string(path).unwrap();

    let page = read(&html);
    assert!(!page.contains("<script"), "{page}");
    assert!(page.contains("<td>=&lt;script&gt;alert(1)&lt;|script&gt;</td>"), "{page}");
    for part in ["<svg", "data:image/svg+xml;base64,", "data:image/png;base64,", ">macro average<", "SyncBN", "1.00 ×"]
    {
        assert!(page.contains(part), "no {part} in {page}");
    }
    // Nothing is fetched: the only addresses are the name of SVG's language, and content.
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    assert!(
        !["http:", "https:", "//", "@import", "url("].iter().any(|part| has_outside_data(&outside, part)),
        "{page}"
    );

    let table = read(&csv);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!((lines.len(), lines[0].split(',').count()), (3, lines[1].split(',').count()), "{table}");
    assert!(lines[1].starts_with("one,mlp,val_accuracy "), "{table}");
    let text = read(&markdown);
    assert!(text.contains("| =\\<script\\>alert\\(1\\)\\<\\|script\\> | 2 |"), "{text}");

    // Every setting has its origin.
    for row in ["<td>epochs</td><td>2</td><td>command line</td>", "<td>size</td><td>12</td><td>command line</td>"] {
        assert!(page.contains(row), "no {row} in {page}");
    }
    assert!(text.contains("| epochs | 2 | command line |"), "{text}");

    // Without the data the rest is there.
    fs::rename(&data, file("gone")).unwrap();
    let told = enmasse(&["report", &run, "--html", &html, "--devices", "cpu:1"]).well();
    assert!(told.stderr.contains("warning: ") && told.stderr.contains("not evaluated"), "{}", told.stderr);
    let page = read(&html);
    assert!(page.contains("not evaluated") && page.contains("<svg") && !page.contains("macro average"), "{page}");
}

/// Whether a part occurs outside of addresses that hold their content.
fn has_outside_data(page: &str, part: &str) -> bool {
    page.split("data:").enumerate().any(|(number, piece)| {
        let own = if number == 0 { piece } else { piece.split_once('"').map_or("", |(_, rest)| rest) };
        own.contains(part)
    })
}

/// A resumed run keeps the origins of its first start; one that kept none is reported too.
#[test]
fn settings_keep_their_origins() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let data = images(folder.path(), 10).display().to_string();
    let [run, settings, markdown] = ["run", "settings.toml", "r.md"].map(file);
    fs::write(&settings, "batch = 4\nmomentum = 0.8\n").unwrap();
    let model = ["--model", "mlp", "--size", "12", "--epochs", "1", "--devices", "cpu:2", "--config", &settings];
    finish(program().args(["train", &data, "--out", &run]).args(model).env("ENMASSE_LR", "0.05")).well();
    enmasse(&["train", "--resume", &run, "--epochs", "2", "--momentum", "0.7"]).well();
    let report = || {
        enmasse(&["report", &run, "--markdown", &markdown, "--devices", "cpu:1"]).well();
        fs::read_to_string(&markdown).unwrap()
    };
    let has = |text: &str, rows: &[&str]| rows.iter().for_each(|row| assert!(text.contains(row), "no {row} in {text}"));
    let from = format!("| batch | 4 | {} |", settings.replace('_', "\\_"));
    let rows = ["| lr | 0.05 | environment |", "| momentum | 0.7 | command line |", "| epochs | 2 | command line |"];
    has(&report(), &[&[&from[..], "| size | 12 | command line |"], &rows[..]].concat());

    // As a run that did not keep them.
    fs::remove_file(Path::new(&run).join("origins.json")).unwrap();
    has(&report(), &["| lr | 0.05 | not kept |"]);
    enmasse(&["train", "--resume", &run, "--epochs", "3"]).well();
    let text = report();
    has(&text, &["| epochs | 3 | command line |"]);
    assert!(text.contains("| lr | 0.05 | saved run "), "{text}");
}

#[test]
fn reports_that_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    let html = folder.path().join("r.html").display().to_string();
    refused(&enmasse(&["report", &path]), 2, &["--html FILE, --csv FILE or --markdown FILE"]);
    refused(&enmasse(&["report", &path, "--html", &html]), 1, &["is not a run folder"]);
    refused(&enmasse(&["report", &path, &path, "--html", &html, "--data", "x"]), 2, &["--data"]);
    assert!(!Path::new(&html).exists());
}
