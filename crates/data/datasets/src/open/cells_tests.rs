//! What cells of each form mean, and those that mean nothing.

use super::*;

const MULTI_LABEL: Option<TaskKind> = Some(TaskKind::MultiLabel);
const REGRESSION: Option<TaskKind> = Some(TaskKind::Regression);
const CLASSIFICATION: Option<TaskKind> = Some(TaskKind::Classification);

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// What the cells of columns mean, as text: `a,b: 0+1 1`.
fn meaning(columns: &[&str], form: Form, texts: &[String], task: Option<TaskKind>) -> Result<String, Fault> {
    let columns = owned(columns);
    let meaning = Cells { columns: &columns, form, texts, items: None }.meaning(task)?;
    let own = |cell: usize| match &meaning {
        Meaning::Classes { labels, .. } => labels[cell].to_string(),
        Meaning::Labels { labels, .. } => labels[cell].iter().map(u32::to_string).collect::<Vec<_>>().join("+"),
        Meaning::Numbers { numbers, .. } => format!("{:?}", numbers[cell]),
    };
    let cells: Vec<String> = (0..texts.len()).map(own).collect();
    Ok(format!("{}: {}", meaning.names().join(","), cells.join(" ")))
}

#[test]
fn texts_are_classes_labels_or_numbers() {
    let check = |column: &str, texts: &[&str], task: Option<TaskKind>, expected: Result<&str, (usize, &str)>| {
        let found = meaning(&[column], Form::Text, &owned(texts), task);
        let expected = expected.map(str::to_owned).map_err(|(place, problem)| (place, problem.to_owned()));
        assert_eq!(found, expected, "{column} {texts:?} {task:?}");
    };
    // Classes, which any character may be in.
    check("label", &["b", "a", "c, d"], None, Ok("a,b,c, d: 1 0 2"));
    check("label", &["10", "9"], None, Ok("9,10: 1 0"));
    check("labels", &["10", "9"], None, Ok("9,10: 1 0"));
    check("label", &["0.5", "1"], CLASSIFICATION, Ok("0.5,1: 0 1"));
    check("labels", &["a|b", "a"], CLASSIFICATION, Ok("a,a|b: 1 0"));
    check("tags", &["a b", "a"], CLASSIFICATION, Ok("a,a b: 1 0"));
    check("label", &["a", ""], None, Err((1, "it has no label")));
    // Labels: the first separator that occurs counts, and an empty cell has none.
    check("labels", &["b|a, c", "b | b"], None, Ok("a, c,b: 0+1 1"));
    check("Labels", &["b;a", "", "c"], None, Ok("a,b,c: 0+1  2"));
    check("tags", &["2,10", "10,"], None, Ok("2,10: 0+1 1"));
    check("label", &["b|a", "b"], MULTI_LABEL, Ok("a,b: 0+1 1"));
    check("label", &["clear primary", "clear"], MULTI_LABEL, Ok("clear,primary: 0+1 0"));
    check("label", &["open sky,sea", "sea"], MULTI_LABEL, Ok("open sky,sea: 0+1 1"));
    check("label", &["a", "b"], MULTI_LABEL, Ok("a,b: 0 1"));
    check("label", &["", ""], MULTI_LABEL, Err((0, "there is no label in the column label")));
    let blanks = "its column tags may have classes or labels separated by blanks; say it by `task = classification` or \
                  `task = multi-label`";
    check("tags", &["a b", "a"], None, Err((0, blanks)));
    // Numbers: fractions under a name of labels, or anything that was asked for.
    check("label", &["0.5", "-1", "1e3"], None, Ok("label: [0.5] [-1.0] [1000.0]"));
    check("age", &["3", "4"], REGRESSION, Ok("age: [3.0] [4.0]"));
    let either =
        "its column label may have classes or numbers; say it by `task = classification` or `task = regression`";
    check("label", &["1.0", "2.0"], None, Err((0, either)));
    check("age", &["3", "4"], None, Err((0, &either.replace("label", "age"))));
    check("label", &["0.5", "nan"], None, Err((1, "its number is nan, which no f32 has")));
    check("label", &["0.5", "1e39"], None, Err((1, "its number is 1e39, which no f32 has")));
    check("label", &["0.5", ""], None, Err((1, "it has no number")));
    check("label", &["0.5", "x"], REGRESSION, Err((1, "it has \"x\" instead of a number")));
    let mixed = "its label is 0.5, a number, and others are classes; `task = regression` takes numbers as targets, and \
                 `task = classification` as names";
    check("label", &["a", "0.5"], None, Err((1, mixed)));
}

#[test]
fn lists_are_labels_or_numbers() {
    let check = |lists: &[&[&str]], task: Option<TaskKind>, expected: Result<&str, (usize, &str)>| {
        let texts: Vec<String> = lists.iter().map(|items| joined(items.iter().copied())).collect();
        let found = meaning(&["a"], Form::Lists, &texts, task);
        let expected = expected.map(str::to_owned).map_err(|(place, problem)| (place, problem.to_owned()));
        assert_eq!(found, expected, "{lists:?} {task:?}");
    };
    check(&[&["b", "a, c"], &[], &["b"]], None, Ok("a, c,b: 0+1  1"));
    check(&[&["3", "20"], &["20"]], MULTI_LABEL, Ok("3,20: 0+1 1"));
    check(&[&["3", "2.5"], &["1", "0"]], REGRESSION, Ok("a[0],a[1]: [3.0, 2.5] [1.0, 0.0]"));
    check(&[&["3"], &["1", "0"]], REGRESSION, Err((1, "it has 2 numbers, and others have 1")));
    check(
        &[&["a"], &["a", "b"]],
        CLASSIFICATION,
        Err((1, "it has a list of labels, not one class; `task = multi-label` takes all of them")),
    );
    let either = "its column a may have labels or numbers; say it by `task = multi-label` or `task = regression`";
    check(&[&["1"], &["0.5"]], None, Err((1, either)));
}

#[test]
fn columns_are_classes_labels_or_numbers() {
    let check = |rows: &[&[&str]], task: Option<TaskKind>, expected: Result<&str, (usize, &str)>| {
        let texts: Vec<String> = rows.iter().map(|values| joined_values(values)).collect();
        let found = meaning(&["b", "a"], Form::Columns, &texts, task);
        let expected = expected.map(str::to_owned).map_err(|(place, problem)| (place, problem.to_owned()));
        assert_eq!(found, expected, "{rows:?} {task:?}");
    };
    let one_hot: &[&[&str]] = &[&["0", "1"], &["1.0", "false"]];
    check(one_hot, None, Ok("b,a: 1 0"));
    check(one_hot, CLASSIFICATION, Ok("b,a: 1 0"));
    check(one_hot, MULTI_LABEL, Ok("b,a: 1 0"));
    check(one_hot, REGRESSION, Ok("b,a: [0.0, 1.0] [1.0, 0.0]"));
    let several: &[&[&str]] = &[&["0", "1"], &["True", "1"], &["0", "0"]];
    check(several, None, Ok("b,a: 1 0+1 "));
    let many = "it has a 1 in 2 of its columns for classes, not in one; `task = multi-label` takes all of them";
    check(several, CLASSIFICATION, Err((1, many)));
    let numbers: &[&[&str]] = &[&["0", "1"], &["2.5", "1"]];
    check(numbers, None, Ok("b,a: [0.0, 1.0] [2.5, 1.0]"));
    check(numbers, MULTI_LABEL, Err((1, "it has \"2.5\" in a column for one label, which takes 0 or 1")));
}

/// So many outputs would make every batch enormous.
#[test]
fn labels_are_limited() {
    let texts: Vec<String> = (0..=MOST).map(|label| label.to_string()).collect();
    let error = meaning(&["label"], Form::Text, &texts, MULTI_LABEL);
    assert_eq!(error, Err((0, "there are 65537 labels, and 65536 at most are predicted".to_owned())));
    assert!(meaning(&["label"], Form::Text, &texts[1..], MULTI_LABEL).is_ok());
}
