//! Profiles: credentials and places of S3 in `~/.aws/credentials` and `~/.aws/config`, as Amazon's own tools read them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use enmasse_system::files::read_regular;

use crate::Variables;

/// Limit of a file's bytes.
const MAX: u64 = 1 << 20;

/// What counts, and the variables that mean the same.
const NAMES: [(&str, &str); 5] = [
    ("aws_access_key_id", "AWS_ACCESS_KEY_ID"),
    ("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    ("aws_session_token", "AWS_SESSION_TOKEN"),
    ("region", "AWS_REGION"),
    ("endpoint_url", "AWS_ENDPOINT_URL"),
];

/// The values of a profile.
#[derive(Default)]
pub(super) struct Profile(BTreeMap<&'static str, String>);

impl Profile {
    /// The profile that `AWS_PROFILE` names, or `default`. That one need not be there.
    pub fn find(variables: &Variables) -> Result<Self, String> {
        let file = |variable: &str, usual: &str| match variables.get(variable) {
            Some(path) => Some(PathBuf::from(path)),
            None => variables.get("HOME").map(|home| PathBuf::from(home).join(".aws").join(usual)),
        };
        let name = variables.get("AWS_PROFILE").unwrap_or("default");
        let mut found = BTreeMap::new();
        let mut is_there = false;
        let files = [
            (file("AWS_CONFIG_FILE", "config"), format!("profile {name}")),
            (file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name.to_owned()),
        ];
        for (path, section) in files {
            let text = path.and_then(|path| read_regular(&path, MAX).ok()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            is_there |= take(&text, &section, &mut found) | (name == "default" && take(&text, name, &mut found));
        }
        match is_there || variables.get("AWS_PROFILE").is_none() {
            true => Ok(Profile(found)),
            false => {
                Err(format!("AWS_PROFILE={name}: there is no such profile in ~/.aws/credentials and ~/.aws/config"))
            }
        }
    }

    /// Its values as variables.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

/// Takes the values of a section. False if there is none of this name.
fn take(text: &str, section: &str, found: &mut BTreeMap<&'static str, String>) -> bool {
    let (mut inside, mut is_there) = (false, false);
    for line in text.lines() {
        if let Some(name) = line.trim().strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside = name.trim() == section;
            is_there |= inside;
        } else if let Some((name, value)) = line.split_once('=')
            && inside
            // The indented lines belong to a setting of another tool.
            && !line.starts_with([' ', '\t'])
            && let Some((_, variable)) = NAMES.iter().find(|(own, _)| *own == name.trim())
        {
            found.insert(variable, value.trim().to_owned());
        }
    }
    is_there
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".aws");
        std::fs::create_dir(&folder).unwrap();
        let credentials =
            "[default]\naws_access_key_id = A\naws_secret_access_key=B=\n# [x]\n[lab]\naws_access_key_id = L\n";
        let config =
            "[default]\nregion = eu-west-1\ns3 =\n  endpoint_url = no\n[profile lab]\nendpoint_url = http://lab\n";
        std::fs::write(folder.join("credentials"), credentials).unwrap();
        std::fs::write(folder.join("config"), config).unwrap();
        let check = |profile: &str, expected: Result<&str, &str>| {
            let all = [("HOME", home.path().to_str().unwrap()), ("AWS_PROFILE", profile)];
            let variables = Variables::new(all.map(|(name, value)| (name.to_owned(), value.to_owned())));
            let found = Profile::find(&variables).map(|profile| {
                profile.variables().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned));
        };
        check("", Ok("AWS_ACCESS_KEY_ID=A AWS_REGION=eu-west-1 AWS_SECRET_ACCESS_KEY=B="));
        check("lab", Ok("AWS_ACCESS_KEY_ID=L AWS_ENDPOINT_URL=http://lab"));
        let missing = "AWS_PROFILE=x: there is no such profile in ~/.aws/credentials and ~/.aws/config";
        check("x", Err(missing));
    }
}
