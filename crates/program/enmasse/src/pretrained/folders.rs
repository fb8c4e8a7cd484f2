//! Where weights are kept: in the folders that Python's libraries use, so that both find them.

use std::path::{Path, PathBuf};

use enmasse_system::files::{cache_folder, read_text};

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A folder below the user's cache, which a variable may name.
fn cache(name: &str, below: &str) -> Option<PathBuf> {
    let cache = || match variable("XDG_CACHE_HOME") {
        Some(cache) => Some(PathBuf::from(cache)),
        None => std::env::home_dir().map(|home| home.join(".cache")),
    };
    variable(name).map(PathBuf::from).or_else(|| cache().map(|cache| cache.join(below)))
}

fn hub_home() -> Option<PathBuf> {
    cache("HF_HOME", "huggingface")
}

/// The cache of the Hugging Face hub: `$HF_HUB_CACHE`, `$HF_HOME/hub`, `~/.cache/huggingface/hub`.
pub fn hub() -> Option<PathBuf> {
    variable("HF_HUB_CACHE").map(PathBuf::from).or_else(|| hub_home().map(|home| home.join("hub")))
}

/// What the hub is shown: `$HF_TOKEN`, or what Python's `hf auth login` has kept.
pub fn hub_token() -> Option<String> {
    let kept = || {
        let path =
            variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| hub_home().map(|home| home.join("token")))?;
        read_text(&path).ok()
    };
    let token = variable("HF_TOKEN").or_else(kept)?.trim().to_owned();
    Some(token).filter(|token| !token.is_empty())
}

/// The address of the hub.
pub fn hub_endpoint() -> String {
    let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
    endpoint.trim_end_matches('/').to_owned()
}

/// Whether `$HF_HUB_OFFLINE` forbids to ask the hub.
pub fn is_offline() -> bool {
    let value = variable("HF_HUB_OFFLINE").unwrap_or_default().to_ascii_uppercase();
    ["1", "TRUE", "YES", "ON"].contains(&value.as_str())
}

/// torch.hub's: `$TORCH_HOME/hub/checkpoints`, `~/.cache/torch/hub/checkpoints`.
pub fn torch() -> Option<PathBuf> {
    cache("TORCH_HOME", "torch").map(|home| home.join("hub/checkpoints"))
}

/// Where the file of an address lies whose name has no digest: below the host and the path, so that no two files have one place.
/// `None` for a path that leads elsewhere.
pub fn of_address(url: &str) -> Option<PathBuf> {
    let (_, place) = url.split_once("://")?;
    let path = place.split(['?', '#']).next()?;
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let whole = cache_folder()?.join("weights").join(path);
    (path.contains('/') && path.split('/').all(is_plain)).then_some(whole)
}

/// A file beside another one, hidden, for what is not whole.
pub fn beside(target: &Path, suffix: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_leaves_the_cache() {
        let check = |url: &str, expected: Option<&str>| {
            let found = of_address(url).map(|path| path.strip_prefix(cache_folder().unwrap()).unwrap().to_owned());
            assert_eq!(found, expected.map(PathBuf::from), "{url}");
        };
        check("https://a.org/b/c.pth", Some("weights/a.org/b/c.pth"));
        check("http://127.0.0.1:80/c.pth?download=true", Some("weights/127.0.0.1:80/c.pth"));
        check("https://a.org/../c.pth", None);
        check("https://a.org//c.pth", None);
        check("https://a.org/", None);
        check("https://a.org", None);
        check("c.pth", None);
    }
}
