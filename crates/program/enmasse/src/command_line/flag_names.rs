//! Settings in messages, as the command line spells them.
//!
//! Libraries name a setting as code does, between backticks: `` `lr` ``, or with a value `` `devices = cpu:4` ``. The
//! program prints flags instead: `--lr`, `--devices cpu:4`.

use enmasse_train::{Setting, SettingSource};

/// The text with flags in place of settings between backticks. Other text between backticks stays.
pub fn with_flags(text: &str) -> String {
    let mut said = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('`') {
        let inner = &rest[open + 1..];
        let Some(length) = inner.find('`') else { break };
        said.push_str(&rest[..open]);
        match flag(&inner[..length]) {
            Some(flag) => {
                said.push_str(&flag);
                rest = &inner[length + 1..];
            }
            // The second backtick may be the first of a setting.
            None => {
                said.push('`');
                said.push_str(&inner[..length]);
                rest = &inner[length..];
            }
        }
    }
    said + rest
}

/// The flag of `name` or `name = value`; `None` for anything else.
fn flag(code: &str) -> Option<String> {
    match code.split_once(" = ") {
        Some((name, value)) => Some(SettingSource::CommandLine.describe(Setting::find(name)?, value)),
        None => Some(Setting::find(code)?.flag()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_flags() {
        let check = |text: &str, expected: &str| assert_eq!(with_flags(text), expected);
        check("", "");
        check("a smaller `batch` or `size`", "a smaller --batch or --size");
        check("use `devices = cpu:4`, or leave `sync_bn` out", "use --devices cpu:4, or leave --sync-bn out");
        check("continue with `tune = false`", "continue with --no-tune");
        check("leave out `convert_rgb = true`", "leave out --convert-rgb");
        check("start it by `srun enmasse train`, `lr`", "start it by `srun enmasse train`, --lr");
        check("an odd one ` before `lr` and after `", "an odd one ` before --lr and after `");
        check("`lr", "`lr");
        check("``lr``", "`--lr`");
    }
}
