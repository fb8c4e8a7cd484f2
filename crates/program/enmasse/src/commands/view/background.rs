//! What takes longer than a person waits: one job after another, in a thread that computes where nobody else does.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

use enmasse::devices::AUTO;
use enmasse_train::{LayeredConfig, RunConfig, RunPaths};
use enmasse_wording::one_line;

use crate::command_line::settings::kind;
use crate::commands::report::open_run::OpenRun;
use crate::failure::{Failure, failed};
use crate::web::lower_priority;

type Job = Box<dyn FnOnce() + Send>;

/// The thread.
pub struct Background(Mutex<Sender<Job>>);

impl Background {
    pub fn start() -> Result<Self, Failure> {
        let (sender, jobs) = channel::<Job>();
        let work = move || {
            lower_priority();
            jobs.iter().for_each(|job| job());
        };
        let started = std::thread::Builder::new().name("background".to_owned()).spawn(work);
        started.map_err(|error| failed!("cannot start a thread: {error}"))?;
        Ok(Background(Mutex::new(sender)))
    }

    /// Does a job after those before it.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        // The thread lives as long as the sender.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(Box::new(job));
    }
}

/// The best weights of a run, on the kind of device that it used, and its data.
pub fn open(run: &Path) -> Result<OpenRun, Failure> {
    let saved = RunPaths::new(run).saved_config().map_err(Failure::error)?.unwrap_or_default();
    let saved = RunConfig::from_toml(&saved).map_err(Failure::error)?;
    let mut layers = LayeredConfig::new();
    // Without it one is found as for other commands that compute on one.
    let kind = kind(&saved.program);
    if kind != AUTO {
        layers.argument("devices", &format!("{kind}:1"))?;
    }
    OpenRun::open(run, layers, false)
}

/// Why something is missing, as a line of a page.
pub fn line(failure: &Failure) -> String {
    one_line(failure.message())
}
