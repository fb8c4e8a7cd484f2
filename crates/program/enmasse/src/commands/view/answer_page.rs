//! The page of an image that was sent: what the model says of it, and the training images that are near it.

use enmasse_charts::data_address;
use enmasse_wording::counted;
use maud::{Markup, html};

use super::answers::{Neighbors, Sent};
use super::board::Part;
use super::model::Answer;
use super::nearest::Nearest;
use super::page::{Frame, RELOAD, address};
use super::run::Seen;
use crate::report::percent;

/// Where an image is sent.
pub fn form(place: usize) -> Markup {
    html! {
        h2 { "Try an image" }
        form.drop method="post" enctype="multipart/form-data" action={ (address(place)) "/image" } {
            label for="image" { "Drop an image on this page, or choose one:" }
            input #image type="file" name="image" accept="image/*" required;
            " " button type="submit" { "Predict" }
        }
    }
}

/// What the model says of an image.
pub fn answer(run: &Seen, sent: &Sent) -> String {
    let Answer { prediction, heatmap, explained } = sent.answer.as_ref();
    let own = own_address(sent);
    let is_final = sent.is_final();
    let content = html! {
        div.images {
            figure {
                img src=(data_address(image_kind(&sent.image), &sent.image)) alt="the image";
                figcaption { "the image" }
            }
            @if let Some(heatmap) = heatmap {
                figure {
                    img src=(data_address("image/png", heatmap)) alt={ "where " (explained) " comes from" };
                    figcaption { "where " b { (explained) } " comes from" }
                }
            }
        }
        @if !prediction.labels.is_empty() { p { "Labels: " b { (prediction.labels.join(", ")) } } }
        @if !prediction.top.is_empty() {
            div.wide {
                table {
                    thead { tr { th scope="col" { "class" } th scope="col" { "probability" } } }
                    tbody { @for guess in &prediction.top { tr { td { (guess.class) } td { (percent(guess.probability)) } } } }
                }
            }
        }
        @if !prediction.values.is_empty() {
            dl { @for value in &prediction.values { dt { (value.name) } dd { (value.value) } } }
        }
        h2 { "Nearest training images" }
        div #live data-events=[(!is_final).then(|| format!("{own}/events"))] { (neighbors(sent)) }
    };
    // The address of a sent form has no page.
    let reload = (!is_final).then(|| format!("{RELOAD};url={own}"));
    page(sent.place, run, &content, reload)
}

/// Why there is no answer.
pub fn no_answer(place: usize, run: &Seen, line: &str) -> String {
    page(place, run, &html! { p.problem role="alert" { (line) } }, None)
}

fn page(place: usize, run: &Seen, content: &Markup, reload: Option<String>) -> String {
    let content = html! {
        h1 { "An image, by " a href=(address(place)) { (run.name) } }
        (content)
        (form(place))
    };
    Frame { title: &format!("enmasse: an image by {}", run.name), reload, is_first: false }.around(&content)
}

/// The training images near an image, as far as they are known: the part of the page that changes.
pub fn neighbors(sent: &Sent) -> Markup {
    let own = own_address(sent);
    html! {
        @match &sent.neighbors {
            Neighbors::Waiting => p { "The training images are looked at next." }
            Neighbors::Reading(done, all) => {
                p { "The training images are looked at for the first time: " (done) " of " (all) "." }
                progress aria-label="training images" max=(all) value=(done) {}
            }
            Neighbors::Missing(line) => p.problem data-final="" { "They cannot be shown: " (line) }
            Neighbors::Found(found) => {
                p.minor data-final="" { (among(found)) }
                div.near {
                    @for (place, near) in found.images.iter().enumerate() {
                        figure {
                            @match near.thumbnail {
                                Some(_) => { img src={ (own) "/" (place) } alt=(near.name); }
                                None => { p.minor { "cannot be read any more" } }
                            }
                            figcaption {
                                b { (near.truth) } ", " (format!("{:.3}", near.cosine)) br;
                                span.minor { (near.name) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What was compared.
fn among(found: &Nearest) -> String {
    let Nearest { among, of, .. } = found;
    let compared = match among == of {
        true => format!("all {}", counted(*of, "training image")),
        false => format!("{among} of {}, evenly over them", counted(*of, "training image")),
    };
    format!(
        "By the cosine of what the last layer reads of each, which is 1 for the same image. Compared with {compared}."
    )
}

fn own_address(sent: &Sent) -> String {
    format!("{}/image/{}", address(sent.place), sent.number)
}

/// By the first bytes. A browser looks at them too.
fn image_kind(bytes: &[u8]) -> &'static str {
    match bytes {
        [0xff, 0xd8, ..] => "image/jpeg",
        [b'G', b'I', b'F', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', ..] => "image/webp",
        [b'B', b'M', ..] => "image/bmp",
        _ => "image/png",
    }
}
