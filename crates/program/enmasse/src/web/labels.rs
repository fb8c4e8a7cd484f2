//! Labels of metrics in Prometheus' text format.

/// The value of a label, as it stands between quotes.
pub fn label_value(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_holds_any_name() {
        assert_eq!(label_value("a\"b\\c\nd{}"), "a\\\"b\\\\c\\nd{}");
    }
}
