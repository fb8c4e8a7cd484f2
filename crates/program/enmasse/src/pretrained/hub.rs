//! Repositories of the Hugging Face hub, in the cache folder of its Python library: `models--OWNER--NAME` with `blobs` by their
//! digests, `snapshots` of links to them, and `refs`.
//!
//! What is in the cache is used as it is, and the hub is not asked.

use std::fs::create_dir_all;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use enmasse_remote::fetch::{Event, Fetcher, RemoteFile, git_digest};
use enmasse_system::files::{FileError, read_regular, write_whole};
use serde_json::Value;

use super::folders;
use crate::failure::{Failure, failed, usage};

/// Limit of a `config.json`, and of what the hub says about a repository.
const MAX_TEXT: u64 = 4 << 20;

const CONFIG: &str = "config.json";
/// Its head has the licence.
const README: &str = "README.md";
/// The usual names of weights, the best one first.
const WEIGHTS: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];
const EXTENSIONS: [&str; 5] = ["safetensors", "pth", "pt", "bin", "ckpt"];

/// A repository at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// `OWNER/NAME`.
    name: String,
    /// A branch, a tag or a commit.
    revision: String,
}

/// What a repository has.
pub struct Snapshot {
    /// The file of its weights.
    pub weights: PathBuf,
    /// Its `config.json`; nothing if there is none.
    pub config: Value,
    /// The licence that its `README.md` names.
    pub license: Option<String>,
}

impl Repository {
    /// Reads `OWNER/NAME` or `OWNER/NAME@REVISION`.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let is_plain = |part: &str| {
            let letters = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            letters && !part.is_empty() && !part.starts_with('.') && !part.contains("..")
        };
        if name.split('/').count() == 2 && name.split('/').chain(revision.split('/')).all(is_plain) {
            return Ok(Repository { name: name.to_owned(), revision: revision.to_owned() });
        }
        Err(usage!("hf:{text}: must be hf:OWNER/REPO or hf:OWNER/REPO@REVISION"))
    }

    /// As the user names it.
    pub fn describe(&self) -> String {
        match self.revision.as_str() {
            "main" => format!("hf:{}", self.name),
            revision => format!("hf:{}@{revision}", self.name),
        }
    }

    /// Its snapshot, from the cache or from the hub.
    pub fn snapshot(&self, fetcher: &Fetcher, tell: &mut dyn FnMut(Event)) -> Result<Snapshot, Failure> {
        let home = || failed!("{}: set HF_HOME to a folder for it, since there is no home folder", self.describe());
        let folder = folders::hub().ok_or_else(home)?.join(format!("models--{}", self.name.replace('/', "--")));
        if let Some(cached) = self.cached(&folder) {
            return Ok(cached);
        }
        let name = self.describe();
        if folders::is_offline() {
            let folder = folder.display();
            return Err(failed!(
                "{name}: it is not in {folder}, and HF_HUB_OFFLINE forbids to fetch it; give --weights FILE"
            ));
        }
        let asked = self.ask(fetcher).and_then(|listing| self.fetch(&listing, &folder, fetcher, tell));
        asked.map_err(|problem| failed!("{name}: {problem}"))
    }

    /// The snapshot in a folder of the cache, if its weights are there.
    fn cached(&self, folder: &Path) -> Option<Snapshot> {
        let commit = match is_hexadecimal(&self.revision) && self.revision.len() == 40 {
            true => self.revision.clone(),
            false => {
                let text = read_regular(&folder.join("refs").join(&self.revision), MAX_TEXT).ok()?;
                String::from_utf8(text).ok()?.trim().to_owned()
            }
        };
        let snapshot = folder.join("snapshots").join(&commit);
        let files = snapshot.read_dir().ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let files: Vec<String> = files.filter(|file| snapshot.join(file).is_file()).collect();
        let weights = snapshot.join(weights_of(files.iter().map(String::as_str))?);
        let read = |name: &str| read_regular(&snapshot.join(name), MAX_TEXT).ok();
        let config = read(CONFIG).and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let license = read(README).and_then(|text| license_of(&String::from_utf8_lossy(&text)));
        Some(Snapshot { weights, config, license })
    }

    /// What the hub says about it. The error is the end of a sentence.
    fn ask(&self, fetcher: &Fetcher) -> Result<Value, String> {
        let Repository { name, revision } = self;
        let revision = revision.replace('/', "%2F");
        let url = format!("{}/api/models/{name}/revision/{revision}?blobs=true", folders::hub_endpoint());
        let advice = "without a network, fetch its files elsewhere, and give --weights FILE";
        let answer = fetcher.ask(&url, folders::hub_token().as_deref(), MAX_TEXT);
        let answer = answer.map_err(|error| format!("{error}; {advice}"))?;
        let status = &answer.status;
        match status.get(..3) {
            _ if answer.is_well => {}
            Some("401" | "403") => {
                return Err(format!(
                    "{url}: it answers {status}: there is no such repository, or HF_TOKEN does not open it"
                ));
            }
            Some("404") => return Err(format!("{url}: it answers {status}: there is no such repository or revision")),
            _ => return Err(format!("{url}: it answers {status}")),
        }
        serde_json::from_slice(&answer.body).map_err(|_| format!("{url}: its answer is not JSON, as a hub's is"))
    }

    /// Fetches the weights and what describes them, of a `listing`. The error is the end of a sentence.
    fn fetch(
        &self,
        listing: &Value,
        folder: &Path,
        fetcher: &Fetcher,
        tell: &mut dyn FnMut(Event),
    ) -> Result<Snapshot, String> {
        let commit = listing["sha"].as_str().filter(|commit| commit.len() == 40 && is_hexadecimal(commit));
        let commit = commit.ok_or("the hub's answer names no commit")?;
        let siblings = listing["siblings"].as_array().map(Vec::as_slice).unwrap_or_default();
        let sibling = |name: &str| siblings.iter().find(|file| file["rfilename"] == name);
        let chosen = weights_of(siblings.iter().filter_map(|file| file["rfilename"].as_str()));
        let chosen =
            chosen.ok_or("it has no file model.safetensors or pytorch_model.bin, and not one other file of weights")?;
        let Some(listed) = sibling(chosen) else { return Err("the hub's answer is not a list of files".to_owned()) };
        let sha256 = listed["lfs"]["sha256"].as_str();
        let sha256 = sha256.filter(|digest| digest.len() == 64 && is_hexadecimal(digest));
        let sha256 = sha256.ok_or_else(|| format!("the hub does not tell the SHA-256 of {chosen}"))?.to_owned();
        let blobs = folder.join("blobs");
        let snapshot = folder.join("snapshots").join(commit);
        let place = |file: &str| format!("{}/{}/resolve/{commit}/{file}", folders::hub_endpoint(), self.name);
        let text = |name| sibling(name).map(|listed| Text::fetch(name, listed, &place(name), fetcher)).transpose();
        // Without its readme a repository has no licence.
        let texts = [text(CONFIG)?, text(README).ok().flatten()];
        let target = blobs.join(&sha256);
        let locks = folder.with_file_name(".locks");
        let lock = locks.join(folder.file_name().unwrap_or_default()).join(format!("{sha256}.lock"));
        let part = blobs.join(format!("{sha256}.incomplete"));
        let bytes = listed["size"].as_u64().or(listed["lfs"]["size"].as_u64());
        let file = RemoteFile { url: place(chosen), token: folders::hub_token(), bytes, sha256 };
        fetcher.fetch_file(&file, &target, (&part, &lock), tell).map_err(|error| error.to_string())?;
        let publish = || -> Result<(), FileError> {
            create_dir_all(&snapshot).map_err(FileError::of("create", &snapshot))?;
            for Text { name, digest, bytes } in texts.iter().flatten() {
                write_whole(&blobs.join(digest), |file| file.write_all(bytes))?;
                link(&snapshot.join(name), digest)?;
            }
            link(&snapshot.join(chosen), &file.sha256)?;
            let named = folder.join("refs").join(&self.revision);
            let refs = named.parent().unwrap_or(folder);
            create_dir_all(refs).map_err(FileError::of("create", refs))?;
            write_whole(&named, |file| file.write_all(commit.as_bytes()))
        };
        publish().map_err(|error| error.to_string())?;
        self.cached(folder).ok_or_else(|| format!("{} cannot be read", snapshot.display()))
    }
}

/// A small file of a repository.
struct Text {
    name: &'static str,
    /// What git calls it.
    digest: String,
    bytes: Vec<u8>,
}

impl Text {
    /// Fetches the file that is `listed` so.
    fn fetch(name: &'static str, listed: &Value, url: &str, fetcher: &Fetcher) -> Result<Self, String> {
        let answer = fetcher.ask(url, folders::hub_token().as_deref(), MAX_TEXT).map_err(|error| error.to_string())?;
        if !answer.is_well {
            return Err(format!("{url}: it answers {}", answer.status));
        }
        let digest = git_digest(&answer.body);
        if listed["blobId"].as_str().is_some_and(|listed| listed != digest) {
            return Err(format!("{url}: it has other bytes than those that the hub lists"));
        }
        Ok(Text { name, digest, bytes: answer.body })
    }
}

/// The licence in the head of a readme, which lies between two lines of `---`.
fn license_of(readme: &str) -> Option<String> {
    let mut lines = readme.lines().map(str::trim_end);
    let begins = lines.next() == Some("---");
    let head = lines.take_while(|line| begins && *line != "---");
    let license = head.filter_map(|line| line.strip_prefix("license:")).next()?.trim().trim_matches(['"', '\'']);
    (!license.is_empty() && !license.contains(char::is_control)).then(|| license.to_owned())
}

/// Whether a file has weights, by its name.
pub fn is_weights(file: &str) -> bool {
    let extension = Path::new(file).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

/// The file of weights among those of a repository: one of the usual names, or the only one.
fn weights_of<'a>(files: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let is_plain = |file: &&str| is_weights(file) && !file.contains('/') && !file.starts_with('.');
    let files: Vec<&str> = files.filter(is_plain).collect();
    let usual = WEIGHTS.iter().find_map(|name| files.iter().find(|file| *file == name));
    usual.or_else(|| files.first().filter(|_| files.len() == 1)).copied()
}

fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Makes a file of a snapshot a link to a blob, unless it is there.
fn link(file: &Path, blob: &str) -> Result<(), FileError> {
    match symlink(Path::new("../../blobs").join(blob), file) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(FileError::of("create", file)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_repositories() {
        let check = |text: &str, expected: Option<(&str, &str)>| {
            let found = Repository::parse(text).ok().map(|found| (found.name, found.revision));
            assert_eq!(found, expected.map(|(name, revision)| (name.to_owned(), revision.to_owned())), "{text}");
        };
        check("timm/resnet18.a1_in1k", Some(("timm/resnet18.a1_in1k", "main")));
        check("timm/resnet18@refs/pr/1", Some(("timm/resnet18", "refs/pr/1")));
        check("resnet18", None);
        check("a/b/c", None);
        check("../b", None);
        check("a/..", None);
        check("a/b@", None);
        check("a/b@../c", None);
        check("a/b@c//d", None);
        check("a /b", None);
    }

    #[test]
    fn the_licence_in_a_readme() {
        let check =
            |readme: &str, expected: Option<&str>| assert_eq!(license_of(readme).as_deref(), expected, "{readme}");
        check("---\ntags:\n- timm\nlicense: apache-2.0\nlibrary_name: timm\n---\n# Model\n", Some("apache-2.0"));
        check("---\r\nlicense: 'mit'\r\n---\r\n", Some("mit"));
        check("---\ntags: a\n---\nlicense: mit\n", None);
        check("# Model\nlicense: mit\n", None);
        check("---\nlicense:\n- mit\n---\n", None);
        check("", None);
    }

    #[test]
    fn the_weights_among_files() {
        let check = |files: &[&str], expected: Option<&str>| assert_eq!(weights_of(files.iter().copied()), expected);
        check(&["README.md", "pytorch_model.bin", "model.safetensors"], Some("model.safetensors"));
        check(&["a.pth", "pytorch_model.bin"], Some("pytorch_model.bin"));
        check(&["best.pth", "config.json"], Some("best.pth"));
        check(&["a.pth", "b.pth"], None);
        check(&["../a.pth"], None);
        check(&[], None);
    }
}
