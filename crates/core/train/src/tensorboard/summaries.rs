//! Summaries besides scalars: images, histograms, and the settings of a run for TensorBoard's table of hyperparameters.
//!
//! Sources: TensorFlow's `core/framework/summary.proto` and `histogram.proto`, TensorBoard's `plugins/hparams/plugin_data.proto`, and
//! protobuf's `struct.proto`.

use enmasse_protobuf::Message;

use super::event;
use crate::{Histogram, Media, RunConfig, SETTINGS, Scope};

/// The tags by which TensorBoard finds the settings and the end of a run.
const SESSION_START: &str = "_hparams_/session_start_info";
const SESSION_END: &str = "_hparams_/session_end_info";

/// `STATUS_SUCCESS` of `plugins/hparams/api.proto`.
const SUCCESS: u64 = 1;

/// An event of one summary.
pub fn media_event(wall_time: f64, step: u64, tag: &str, media: &Media) -> Vec<u8> {
    let (field, value) = match media {
        Media::Png(png) => (4, image(png)),
        Media::Histogram(histogram) => (5, of_histogram(histogram)),
    };
    summary_event(wall_time, step, tag, field, value)
}

/// The settings that a run keeps, as the start of a session of hyperparameters.
pub fn settings_event(wall_time: f64, step: u64, settings: &RunConfig) -> Vec<u8> {
    let kept = SETTINGS.iter().filter(|setting| matches!(setting.scope, Scope::Run | Scope::Fixed));
    let entries = kept.filter_map(|setting| {
        let value = value(&settings.get(setting.name)?);
        Some(Message::new().bytes(1, setting.name).message(2, value))
    });
    let start = entries.fold(Message::new(), |start, entry| start.message(1, entry)).double(5, wall_time);
    session_event(wall_time, step, SESSION_START, 3, start)
}

/// The end of the session, as a success.
pub fn end_event(wall_time: f64, step: u64) -> Vec<u8> {
    session_event(wall_time, step, SESSION_END, 4, Message::new().varint(1, SUCCESS).double(2, wall_time))
}

/// A setting as protobuf's `Value`: a truth, a number or a text.
fn value(text: &str) -> Message<'static> {
    match (text.parse::<bool>(), text.parse::<f64>()) {
        (Ok(truth), _) => Message::new().varint(4, truth.into()),
        (_, Ok(number)) if number.is_finite() => Message::new().double(2, number),
        _ => Message::new().bytes(3, text),
    }
}

/// Content of the plugin `hparams`, in this field of its data.
fn session_event(wall_time: f64, step: u64, tag: &str, field: u32, session: Message) -> Vec<u8> {
    let data = Message::new().message(field, session).to_vec();
    let plugin = Message::new().bytes(1, "hparams").bytes(2, data);
    summary_event(wall_time, step, tag, 9, Message::new().message(1, plugin))
}

fn image(png: &[u8]) -> Message<'_> {
    // Width and height are in the header of every PNG, at fixed places.
    let side = |at: usize| png.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes);
    // The colours are RGB.
    Message::new().varint(1, side(20).into()).varint(2, side(16).into()).varint(3, 3).long_bytes(4, png)
}

fn of_histogram(histogram: &Histogram) -> Message<'static> {
    let count = histogram.counts.iter().sum::<u64>() as f64;
    let values = [histogram.min, histogram.max, count, histogram.sum, histogram.sum_squares];
    let message = (1..).zip(values).fold(Message::new(), |message, (field, value)| message.double(field, value));
    let packed = |values: &mut dyn Iterator<Item = f64>| values.flat_map(f64::to_le_bytes).collect::<Vec<u8>>();
    let counts = packed(&mut histogram.counts.iter().map(|&count| count as f64));
    message.bytes(6, packed(&mut histogram.limits())).bytes(7, counts)
}

/// An event of one value, which is this field of its summary.
fn summary_event(wall_time: f64, step: u64, tag: &str, field: u32, value: Message) -> Vec<u8> {
    let summary = Message::new().message(1, Message::new().bytes(1, tag).message(field, value));
    event(wall_time, step).message(5, summary).to_vec()
}
