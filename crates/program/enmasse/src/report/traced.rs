//! What a run says of its timeline: where it is, and how much of the sums of gradients was hidden under computation.

use enmasse_train::Traced;

/// The lines about a timeline. Only the rank that wrote the file names it.
pub fn lines(traced: &Traced) -> Vec<String> {
    let Traced { path, first_step, steps, sums, .. } = traced;
    if *steps == 0 {
        return vec!["trace: none, since the run ended within its first ten steps".to_owned()];
    }
    let last = first_step + steps - 1;
    let file = path.as_ref().map(|path| {
        let path = path.display();
        format!("trace: steps {first_step} to {last} are in {path}; open it in ui.perfetto.dev or chrome://tracing")
    });
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let hidden = sums.and_then(|sums| {
        let share = percent(sums.share()?);
        Some(match sums.share_of_hideable() {
            Some(best) => {
                format!("sums of gradients: {share} of their time hidden, {} of what could be", percent(best))
            }
            None => format!("sums of gradients: {share} of their time hidden, and none could be"),
        })
    });
    file.into_iter().chain(hidden).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use enmasse_train::Overlap;

    use super::*;

    #[test]
    fn a_file_and_a_figure() {
        let check = |path: Option<&str>, steps: u64, sums: Option<[f64; 3]>, expected: &[&str]| {
            let sums = sums.map(|[seconds, hidden, hideable]| Overlap { seconds, hidden, hideable });
            let path = path.map(Into::into);
            assert_eq!(lines(&Traced { path, first_step: 11, steps, accuracy: Duration::ZERO, sums }), expected);
        };
        let file = "trace: steps 11 to 15 are in run/logs/trace.json; open it in ui.perfetto.dev or chrome://tracing";
        check(Some("run/logs/trace.json"), 5, None, &[file]);
        let figure = "sums of gradients: 61 % of their time hidden, 92 % of what could be";
        check(Some("run/logs/trace.json"), 5, Some([1.0, 0.61, 0.663]), &[file, figure]);
        check(None, 5, Some([1.0, 0.61, 0.663]), &[figure]);
        let nothing = "sums of gradients: 0 % of their time hidden, and none could be";
        check(None, 5, Some([2.0, 0.0, 0.0]), &[nothing]);
        check(None, 5, Some([0.0; 3]), &[]);
        check(None, 0, None, &["trace: none, since the run ended within its first ten steps"]);
    }
}
