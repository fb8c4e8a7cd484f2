//! Predictions of a run for images of its validation part, which are computed when someone asks for them.

use std::path::PathBuf;
use std::sync::Arc;

use maud::{Markup, html};

use super::background::{Background, line, open};
use super::board::{Board, Part};
use super::page::{Frame, RELOAD, address};
use super::run::Seen;
use crate::commands::report::evaluated::{Evaluated, Galleries, evaluate};
use crate::commands::report::page::{figures_line, images};

/// Images of each kind.
const IMAGES: usize = 24;

/// Runs whose predictions are kept.
const MAX_KEPT: usize = 4;

/// The predictions of the run at a place.
#[derive(Clone)]
pub struct Samples {
    place: usize,
    state: State,
}

#[derive(Clone)]
enum State {
    /// They are being computed, or others come first.
    Awaited,
    Found(Arc<Evaluated>),
    /// Why there are none.
    Missing(String),
}

impl Part for Samples {
    fn markup(&self) -> Markup {
        html! {
            @match &self.state {
                State::Awaited => {
                    p { "The best weights predict the validation part, with low priority." }
                    progress aria-label="the evaluation" {}
                }
                State::Missing(line) => p.problem { "They cannot be shown: " (line) }
                State::Found(evaluated) => (found(evaluated)),
            }
            @if self.is_final() { div data-final="" { (form(self.place, "Evaluate again")) } }
        }
    }

    fn is_final(&self) -> bool {
        !matches!(self.state, State::Awaited)
    }
}

fn form(place: usize, words: &str) -> Markup {
    html! { form.ask method="post" action=(own_address(place)) { button type="submit" { (words) } } }
}

fn own_address(place: usize) -> String {
    format!("{}/predictions", address(place))
}

fn found(evaluated: &Evaluated) -> Markup {
    html! {
        p { "On the " (evaluated.part) ", " (figures_line(evaluated)) }
        @for warning in &evaluated.warnings { p.problem { (warning) } }
        (images("Most certain mistakes", &evaluated.mistakes))
        (images("Least certain images", &evaluated.uncertain))
        (images("Examples, evenly over the part", &evaluated.examples))
    }
}

/// Has the images of the run at `place` predicted, unless they are being predicted already.
pub fn ask(board: &Arc<Board<Samples>>, place: usize, run: PathBuf, background: &Background) {
    let number = place as u64;
    if board.get(number).is_some_and(|samples| !samples.is_final()) {
        return;
    }
    board.put(number, Samples { place, state: State::Awaited });
    let board = board.clone();
    background.run(move || {
        let galleries = Galleries { extremes: IMAGES, examples: IMAGES };
        let found = open(&run).and_then(|run| evaluate(&run, galleries));
        let found = found.map_or_else(|failure| State::Missing(line(&failure)), |found| State::Found(Arc::new(found)));
        board.change(number, |samples| samples.state = found);
    });
}

/// A board for them.
pub fn board() -> Arc<Board<Samples>> {
    Board::new(MAX_KEPT)
}

/// The page. `samples` are none before someone asks.
pub fn page(place: usize, run: &Seen, samples: Option<&Samples>) -> String {
    let own = own_address(place);
    let is_awaited = samples.is_some_and(|samples| !samples.is_final());
    let content = html! {
        h1 { "Predictions of " a href=(address(place)) { (run.name) } }
        @match samples {
            None => {
                p { "The best weights predict the validation part: mistakes, images of which they are least certain, and others." }
                (form(place, "Evaluate"))
            }
            Some(samples) => div #live data-events=[is_awaited.then(|| format!("{own}/events"))] { (samples.markup()) }
        }
    };
    let reload = is_awaited.then(|| format!("{RELOAD};url={own}"));
    Frame { title: &format!("enmasse: predictions of {}", run.name), reload, is_first: false }.around(&content)
}
