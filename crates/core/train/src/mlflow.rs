//! MLflow's file store (`mlruns`): a run as folders of small files, which MLflow's client and its page read. Source: the layout of
//! `mlflow.store.tracking.file_store`.
//!
//! | path below the store | content |
//! |---|---|
//! | `0/meta.yaml` | the experiment "Default", unless it is there |
//! | `0/ID/meta.yaml` | name, times and status of the run |
//! | `0/ID/params/NAME` | a setting |
//! | `0/ID/tags/NAME` | the run's name and folder |
//! | `0/ID/metrics/NAME` | a line for each value: milliseconds since 1970, the value, the epoch or step |

use std::fs::{OpenOptions, create_dir_all, read_dir};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use enmasse_system::files::{FileError, read_text, write_whole};
use serde_json::json;

use crate::{CallbackResult, LogPoint, Logger, RunConfig, RunError, RunPaths, SETTINGS, Started, TrainError};

/// The experiment that MLflow has without one of a name.
const EXPERIMENT: &str = "0";
/// The folder of values of single steps, among those of epochs.
const STEPS: &str = "step";
/// Longer parameters are refused by MLflow's servers.
const MAX_PARAMETER: usize = 6000;

/// The codes of a run's status in its `meta.yaml`.
#[derive(Clone, Copy)]
enum Status {
    Running = 1,
    Finished = 3,
    Failed = 4,
    /// Stopped from outside.
    Killed = 5,
}

/// A run in a file store.
pub struct MlFlow {
    /// `store/0/ID`.
    folder: PathBuf,
    id: String,
    name: String,
    began: u128,
    /// The run's own folder.
    run: PathBuf,
    /// The epoch, and the step after the last one, from which on values come again.
    first: [u64; 2],
}

impl MlFlow {
    /// The run with these paths in a store, which begins with an epoch and after a step. A resumed run goes on in the same place: its
    /// folder keeps the identity.
    pub fn open(store: &Path, paths: &RunPaths, epoch: u64, steps: u64) -> Result<Self, RunError> {
        let run = paths.root().canonicalize().map_err(FileError::of("open", paths.root()))?;
        let name = run.file_name().map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned());
        let kept = paths.mlflow_id();
        let known = if kept.exists() { Some(read_text(&kept).map_err(FileError::of("read", &kept))?) } else { None };
        let is_id = |id: &str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let known = known.map(|text| text.trim().to_owned()).filter(|id| is_id(id));
        let began = now();
        let id = match known {
            Some(id) => id,
            None => {
                let seed = format!("{} {began} {}", run.display(), std::process::id());
                let id = blake3::hash(seed.as_bytes()).to_hex()[..32].to_owned();
                write(&kept, &format!("{id}\n"))?;
                id
            }
        };
        let folder = store.join(EXPERIMENT).join(&id);
        Ok(MlFlow { folder, id, name, began, run, first: [epoch, steps] })
    }

    fn start(&self, settings: &RunConfig) -> Result<(), RunError> {
        for part in ["metrics", "params", "tags", "artifacts"] {
            let path = self.folder.join(part);
            create_dir_all(&path).map_err(FileError::of("create", &path))?;
        }
        let experiment = self.folder.with_file_name("meta.yaml");
        if !experiment.exists() {
            let artifacts = address(experiment.parent().unwrap_or(&experiment))?;
            let fields = [
                ("artifact_location", json!(artifacts)),
                ("creation_time", json!(self.began as u64)),
                ("experiment_id", json!(EXPERIMENT)),
                ("last_update_time", json!(self.began as u64)),
                ("lifecycle_stage", json!("active")),
                ("name", json!("Default")),
            ];
            write(&experiment, &yaml(&fields))?;
        }
        for setting in SETTINGS {
            let Some(value) = settings.get(setting.name).filter(|value| value.len() <= MAX_PARAMETER) else { continue };
            write(&self.folder.join("params").join(setting.name), &value)?;
        }
        for (tag, value) in [("mlflow.runName", self.name.clone()), ("enmasse.run", self.run.display().to_string())] {
            write(&self.folder.join("tags").join(tag), &value)?;
        }
        let [epoch, steps] = self.first;
        drop_from(&self.folder.join("metrics"), epoch)?;
        drop_from(&self.folder.join("metrics").join(STEPS), steps + 1)?;
        self.describe(Status::Running)
    }

    /// Writes what the run is, and how it stands.
    fn describe(&self, status: Status) -> Result<(), RunError> {
        let end = match status {
            Status::Running => json!(null),
            Status::Finished | Status::Failed | Status::Killed => json!(now() as u64),
        };
        let user = std::env::var("USER").unwrap_or_default();
        let fields = [
            ("artifact_uri", json!(address(&self.folder.join("artifacts"))?)),
            ("end_time", end),
            ("entry_point_name", json!("")),
            ("experiment_id", json!(EXPERIMENT)),
            ("lifecycle_stage", json!("active")),
            ("run_id", json!(self.id)),
            ("run_name", json!(self.name)),
            ("run_uuid", json!(self.id)),
            ("source_name", json!("")),
            ("source_type", json!(4)),
            ("source_version", json!("")),
            ("start_time", json!(self.began as u64)),
            ("status", json!(status as u8)),
            ("tags", json!([])),
            ("user_id", json!(user)),
        ];
        write(&self.folder.join("meta.yaml"), &yaml(&fields))
    }

    fn append(&self, at: LogPoint, scalars: &[(&str, f64)]) -> Result<(), RunError> {
        let metrics = self.folder.join("metrics");
        let (folder, step) = match at {
            LogPoint::Epoch(epoch) => (metrics, epoch),
            LogPoint::Step(step) => (metrics.join(STEPS), step),
        };
        create_dir_all(&folder).map_err(FileError::of("create", &folder))?;
        for (name, value) in scalars {
            let path = folder.join(name);
            let opened = OpenOptions::new().append(true).create(true).open(&path);
            // As Python writes and reads them: nan, inf, -inf.
            let line = format!("{} {} {step}\n", now(), value.to_string().replace("NaN", "nan"));
            opened.and_then(|mut file| file.write_all(line.as_bytes())).map_err(FileError::of("write", &path))?;
        }
        Ok(())
    }
}

impl Logger for MlFlow {
    fn start(&mut self, _: &Started, settings: &RunConfig) -> CallbackResult {
        Ok(MlFlow::start(self, settings).map_err(TrainError::from)?)
    }

    fn scalars(&mut self, at: LogPoint, scalars: &[(&str, f64)]) -> CallbackResult {
        Ok(self.append(at, scalars).map_err(TrainError::from)?)
    }

    fn finish(&mut self, error: Option<&TrainError>) -> CallbackResult {
        let status = match error {
            None => Status::Finished,
            Some(TrainError::Stopped { .. } | TrainError::Interrupted) => Status::Killed,
            Some(_) => Status::Failed,
        };
        Ok(self.describe(status).map_err(TrainError::from)?)
    }
}

/// Drops the lines of a step and of later ones from the files of a folder.
fn drop_from(folder: &Path, first: u64) -> Result<(), RunError> {
    let Ok(entries) = read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry.map_err(FileError::of("read", folder))?.path();
        if !path.is_file() {
            continue;
        }
        let text = read_text(&path).map_err(FileError::of("read", &path))?;
        let step = |line: &&str| line.rsplit(' ').next().and_then(|step| step.parse::<u64>().ok());
        let kept: String = text
            .lines()
            .filter(|line| step(line).is_some_and(|step| step < first))
            .map(|line| format!("{line}\n"))
            .collect();
        if kept != text {
            write(&path, &kept)?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), RunError> {
    Ok(write_whole(path, |file| file.write_all(text.as_bytes()))?)
}

/// Lines of YAML: JSON's values are YAML too.
fn yaml(fields: &[(&str, serde_json::Value)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}

/// The address of a folder that exists, with what an address cannot hold in percent codes.
fn address(folder: &Path) -> Result<String, RunError> {
    let path = folder.canonicalize().map_err(FileError::of("open", folder))?;
    let mut address = "file://".to_owned();
    for byte in path.display().to_string().bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => address.push(byte.into()),
            _ => address.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(address)
}

/// Milliseconds since 1970.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<String> {
        let text = read_text(path).unwrap_or_default();
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    #[test]
    fn a_resumed_run_replaces_what_comes_again() {
        let place = tempfile::tempdir().unwrap();
        let (store, run) = (place.path().join("ml runs"), place.path().join("run ä"));
        std::fs::create_dir_all(&run).unwrap();
        let paths = RunPaths::new(&run);
        let begin = |epoch: u64, steps: u64| {
            let board = MlFlow::open(&store, &paths, epoch, steps).unwrap();
            MlFlow::start(&board, &RunConfig::default()).unwrap();
            board
        };
        let board = begin(0, 0);
        for epoch in 0..3 {
            board.append(LogPoint::Epoch(epoch), &[("val_loss", 0.5 / (epoch + 1) as f64), ("x", f64::NAN)]).unwrap();
            board.append(LogPoint::Step(10 * epoch + 1), &[("loss", 2.0)]).unwrap();
        }
        board.describe(Status::Failed).unwrap();
        let folder = board.folder.clone();
        assert_eq!(lines(&folder.join("metrics/val_loss")), ["0.5 0", "0.25 1", "0.16666666666666666 2"]);
        assert_eq!(lines(&folder.join("metrics/x"))[0], "nan 0");

        let again = begin(1, 1);
        assert_eq!(again.folder, folder);
        again.append(LogPoint::Epoch(1), &[("val_loss", 0.125)]).unwrap();
        assert_eq!(lines(&folder.join("metrics/val_loss")), ["0.5 0", "0.125 1"]);
        assert_eq!(lines(&folder.join("metrics/step/loss")), ["2 1"]);
        again.describe(Status::Finished).unwrap();
        let meta = read_text(&folder.join("meta.yaml")).unwrap();
        assert!(meta.contains("status: 3\n") && meta.contains("run_name: \"run ä\"\n"), "{meta}");
        assert!(meta.contains("/ml%20runs/0/") && !meta.contains("end_time: null"), "{meta}");
        assert_eq!(read_text(&folder.join("params/epochs")).unwrap(), RunConfig::default().get("epochs").unwrap());
        assert!(store.join("0/meta.yaml").exists());
    }
}
