//! Images that were sent lately, with what is said of them, by numbers.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::background::Background;
use super::model::Answer;
use super::nearest::{Nearest, TrainingImages};

/// Images that are kept.
const KEPT: usize = 8;

/// The training images near one that was sent.
#[derive(Clone)]
pub enum Neighbors {
    /// Others come first.
    Waiting,
    /// So many of so many training images are known.
    Reading(usize, usize),
    Found(Arc<Nearest>),
    /// Why there are none.
    Missing(String),
}

impl Neighbors {
    /// Whether it stays as it is.
    pub fn is_final(&self) -> bool {
        matches!(self, Neighbors::Found(_) | Neighbors::Missing(_))
    }
}

/// An image that was sent.
#[derive(Clone)]
pub struct Sent {
    pub number: u64,
    /// The place of the run.
    pub place: usize,
    pub image: Arc<[u8]>,
    pub answer: Arc<Answer>,
    pub neighbors: Neighbors,
    /// Counts the changes.
    pub version: u64,
}

/// The images.
pub struct Answers {
    kept: Arc<Kept>,
    training: Arc<TrainingImages>,
}

#[derive(Default)]
struct Kept {
    sent: Mutex<VecDeque<Sent>>,
    changed: Condvar,
}

impl Answers {
    pub fn new() -> Self {
        Answers { kept: Arc::default(), training: Arc::default() }
    }

    /// Keeps an image and the answer of the run at `place`, and has its neighbours looked for.
    pub fn keep(&self, place: usize, run: PathBuf, image: &[u8], answer: Answer, background: &Background) -> Sent {
        let mut sent = self.kept.sent();
        let number = sent.back().map_or(0, |last| last.number + 1);
        let (image, answer) = (image.into(), Arc::new(answer));
        let own = Sent { number, place, image, answer, neighbors: Neighbors::Waiting, version: 1 };
        sent.push_back(own.clone());
        while sent.len() > KEPT {
            sent.pop_front();
        }
        drop(sent);
        let (kept, training) = (self.kept.clone(), self.training.clone());
        background.run(move || {
            // Nobody can see what is not kept.
            let Some(Sent { image, .. }) = kept.get(number) else { return };
            let mut done = |known, all| kept.set(number, Neighbors::Reading(known, all));
            let found = training.nearest(&run, &image, &mut done);
            kept.set(number, found.map_or_else(Neighbors::Missing, |found| Neighbors::Found(Arc::new(found))));
        });
        own
    }

    /// An image that was sent to the run at `place`, if it is still kept.
    pub fn get(&self, place: usize, number: u64) -> Option<Sent> {
        self.kept.get(number).filter(|sent| sent.place == place)
    }

    /// Waits until it has changed after this version.
    pub fn wait(&self, number: u64, after: u64, most: Duration) {
        let is_old = |sent: &mut VecDeque<Sent>| {
            sent.iter().any(|own| own.number == number && own.version <= after && !own.neighbors.is_final())
        };
        let waited = self.kept.changed.wait_timeout_while(self.kept.sent(), most, is_old);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Kept {
    fn sent(&self) -> MutexGuard<'_, VecDeque<Sent>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, number: u64) -> Option<Sent> {
        self.sent().iter().find(|sent| sent.number == number).cloned()
    }

    fn set(&self, number: u64, neighbors: Neighbors) {
        let mut sent = self.sent();
        if let Some(own) = sent.iter_mut().find(|sent| sent.number == number) {
            (own.neighbors, own.version) = (neighbors, own.version + 1);
        }
        self.changed.notify_all();
    }
}
