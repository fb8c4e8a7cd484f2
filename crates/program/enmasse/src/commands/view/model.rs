//! Predictions for images that are sent to a page: one model at a time, in a thread of its own, opened when it is first asked.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use enmasse::TrainedModel;
use enmasse_train::Prediction;
use enmasse_wording::one_line;

use crate::failure::{Failure, failed};
use crate::web::lower_priority;

/// A client waits this long for the images before its own, and for its own.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a model says of an image.
pub struct Answer {
    pub prediction: Prediction,
    /// Where the first class comes from, as PNG; none of a model or a task that has no heatmaps.
    pub heatmap: Option<Vec<u8>>,
    /// That class.
    pub explained: String,
}

struct Question {
    run: PathBuf,
    image: Vec<u8>,
    answer: SyncSender<Result<Answer, String>>,
}

/// The thread that holds the model.
pub struct Models(Mutex<Sender<Question>>);

impl Models {
    pub fn start() -> Result<Self, Failure> {
        let (sender, questions) = channel();
        let started = std::thread::Builder::new().name("model".to_owned()).spawn(move || serve(&questions));
        started.map_err(|error| failed!("cannot start a thread: {error}"))?;
        Ok(Models(Mutex::new(sender)))
    }

    /// What the best weights of a run say of an image, or a line that says why they do not.
    pub fn ask(&self, run: PathBuf, image: Vec<u8>) -> Result<Answer, String> {
        let (answer, answers) = sync_channel(1);
        let sent = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(Question { run, image, answer });
        let answered = sent.ok().and_then(|()| answers.recv_timeout(TIMEOUT).ok());
        answered.unwrap_or_else(|| Err("the model did not answer in time".to_owned()))
    }
}

fn serve(questions: &Receiver<Question>) {
    lower_priority();
    let mut open: Option<(PathBuf, TrainedModel)> = None;
    while let Ok(Question { run, image, answer }) = questions.recv() {
        let answered = answer_from(&mut open, run, &image).map_err(|error| one_line(&error));
        // The client may have gone.
        let _ = answer.try_send(answered);
    }
}

fn answer_from(open: &mut Option<(PathBuf, TrainedModel)>, run: PathBuf, image: &[u8]) -> Result<Answer, String> {
    if open.as_ref().is_none_or(|(own, _)| *own != run) {
        // The memory of the one before comes back first.
        *open = None;
        let model = TrainedModel::open(&run).map_err(|error| error.to_string())?;
        *open = Some((run, model));
    }
    let Some((_, model)) = open else { return Err("the model is not open".to_owned()) };
    let prediction = model.predict(image).map_err(|error| error.to_string())?;
    let first = prediction.top.first();
    let explained = first.map(|first| first.class.clone()).unwrap_or_default();
    // Not every model has something to explain by.
    let heatmap = first.and_then(|first| model.explain(image, Some(first.index)).ok()?.png().ok());
    Ok(Answer { prediction, heatmap, explained })
}
