//! Pages in a browser: narrow and wide, light and dark, without errors and without requests.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{enmasse, finish, write_png};
use crate::report::trained;
use crate::view::Served;

/// What is wrong with pages, by `browser.py`, which says what it takes. `None` where there is no browser.
pub fn problems(wanted: &Value) -> Option<Vec<String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/browser.py");
    let ended = finish(Command::new(test_support::browser()?).arg(script).arg(wanted.to_string())).well();
    Some(serde_json::from_str(&ended.stdout).unwrap())
}

#[test]
fn a_report_is_for_every_screen() {
    let folder = tempfile::tempdir().unwrap();
    let (run, _) = trained(folder.path(), "one");
    let (other, _) = trained(folder.path(), "other");
    let html = folder.path().join("r.html").display().to_string();
    enmasse(&["report", &run, &other, "--html", &html, "--devices", "cpu:1"]).well();
    let address = format!("file://{html}");
    let mut wanted = json!({
        "pages": [address],
        "allowed": [address],
        "widths": [390, 1440],
        // Of each run: curves, confusion and those of scores, the data's charts, images; classes and settings, and the runs themselves.
        "shows": {"svg": 6, "img.chart": 4, "figure img": 2, "table": 5},
        "absent": ["script", "iframe", "link"],
    });
    let Some(found) = problems(&wanted) else { return };
    assert_eq!(found, [""; 0]);

    // A page that is none of this is found out.
    let bad = folder.path().join("bad.html");
    let wide = "<body style='background:#fff'><div style='width:2000px'>x</div><script>undefined_name()</script>\
                <img src='http://127.0.0.1:9/x.png'>";
    std::fs::write(&bad, wide).unwrap();
    let address = format!("file://{}", bad.display());
    wanted["pages"] = json!([address]);
    wanted["allowed"] = json!([address]);
    wanted["widths"] = json!([390]);
    wanted["screenshots"] = json!(folder.path());
    let found = problems(&wanted).unwrap();
    for (scheme, problem) in [
        ("light", "request: http://127.0.0.1:9/x.png"),
        ("light", "error: undefined_name is not defined"),
        ("light", "0 of at least 5 table can be seen"),
        ("light", "there are 1 script"),
        ("light", "pixels wide"),
        ("dark", "has the brightness 1.00"),
    ] {
        assert!(found.iter().any(|found| found.contains(scheme) && found.contains(problem)), "{problem}: {found:?}");
    }
    let screenshots = std::fs::read_dir(folder.path()).unwrap().flatten();
    assert_eq!(
        screenshots.filter(|file| file.path().extension().is_some_and(|extension| extension == "png")).count(),
        2
    );
}

#[test]
fn pages_of_runs_are_for_every_screen() {
    let folder = tempfile::tempdir().unwrap();
    let (run, _) = trained(folder.path(), "one");
    let (other, _) = trained(folder.path(), "other");
    let served = Served::start(&[&run, &other]);
    let own = format!("http://127.0.0.1:{}/", served.port);
    let check = |page: &str, javascript: bool, shows: Value, more: Value| {
        let mut wanted = json!({
            "pages": [format!("{own}{page}?token={}", served.token)],
            "allowed": [own],
            "widths": [390, 1440],
            "shows": shows,
            "absent": ["iframe"],
            "javascript": javascript,
        });
        wanted.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if let Some(found) = problems(&wanted) {
            assert_eq!(found, [""; 0]);
        }
    };
    let file = folder.path().join("sent.png");
    write_png(&file, 40, 30, &[7; 40 * 30 * 3]);
    let file = file.display().to_string();
    let send = "form.drop button";
    for javascript in [true, false] {
        check("", javascript, json!({"table": 1, "img": 1}), json!({}));
        check("run/0", javascript, json!({"dl div": 5, "img": 4, "input": 1, "details": 1}), json!({}));
        check(
            "run/0",
            javascript,
            json!({"table": 1, "figure img": 1, "input": 1}),
            json!({"upload": file, "click": send}),
        );
    }
    // The images appear by themselves, and are there without scripts.
    let near = json!({"table": 1, "figure img": 9, "input": 1});
    check("run/0", true, near.clone(), json!({"upload": file, "click": send, "awaits": ".near img"}));
    served.send("/run/0/image", "image/png", &std::fs::read(&file).unwrap());
    served.events("/run/0/image/12/events").wait("Compared with all ");
    check("run/0/image/12", false, near, json!({}));
    let samples = json!({"figure": 6, ".pair img": 6, "button": 1});
    let more = json!({"click": "form button", "awaits": "[data-final]"});
    check("run/0/predictions", true, samples.clone(), more);
    check("run/0/predictions", false, samples, json!({}));
}
