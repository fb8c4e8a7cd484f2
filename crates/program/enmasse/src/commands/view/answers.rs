//! Images that were sent lately, with what is said of them, by numbers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use maud::Markup;

use super::answer_page;
use super::background::Background;
use super::board::{Board, Part};
use super::model::Answer;
use super::nearest::{Nearest, TrainingImages};

/// Images that are kept.
const MAX_KEPT: usize = 8;

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

/// An image that was sent.
#[derive(Clone)]
pub struct Sent {
    pub number: u64,
    /// The place of the run.
    pub place: usize,
    pub image: Arc<[u8]>,
    pub answer: Arc<Answer>,
    pub neighbors: Neighbors,
}

impl Part for Sent {
    fn markup(&self) -> Markup {
        answer_page::neighbors(self)
    }

    fn is_final(&self) -> bool {
        matches!(self.neighbors, Neighbors::Found(_) | Neighbors::Missing(_))
    }
}

/// The images.
pub struct Answers {
    pub board: Arc<Board<Sent>>,
    next: AtomicU64,
    training: Arc<TrainingImages>,
}

impl Answers {
    pub fn new() -> Self {
        Answers { board: Board::new(MAX_KEPT), next: AtomicU64::new(0), training: Arc::default() }
    }

    /// Keeps an image and the answer of the run at `place`, and has its neighbours looked for.
    pub fn keep(&self, place: usize, run: PathBuf, image: &[u8], answer: Answer, background: &Background) -> Sent {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let image = image.into();
        let answer = Arc::new(answer);
        let sent = Sent { number, place, image, answer, neighbors: Neighbors::Waiting };
        self.board.put(number, sent.clone());
        let (board, training) = (self.board.clone(), self.training.clone());
        background.run(move || {
            // Nobody can see what is not kept.
            let Some(Sent { image, .. }) = board.get(number) else { return };
            let set = |neighbors| board.change(number, |sent| sent.neighbors = neighbors);
            let found = training.nearest(&run, &image, &mut |known, all| set(Neighbors::Reading(known, all)));
            set(found.map_or_else(Neighbors::Missing, |found| Neighbors::Found(Arc::new(found))));
        });
        sent
    }
}
