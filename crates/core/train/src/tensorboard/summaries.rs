//! Summaries besides scalars: images, histograms, and the settings of a run for TensorBoard's table of hyperparameters.
//!
//! Sources: TensorFlow's `core/framework/summary.proto` and `histogram.proto`, TensorBoard's `plugins/hparams/plugin_data.proto`, and
//! protobuf's `struct.proto`.

use super::{bytes_field, event, varint_field};
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
    summary_event(wall_time, step, tag, field, &value)
}

/// The settings that a run keeps, as the start of a session of hyperparameters.
pub fn settings_event(wall_time: f64, step: u64, settings: &RunConfig) -> Vec<u8> {
    let mut start = Vec::new();
    for setting in SETTINGS.iter().filter(|setting| matches!(setting.scope, Scope::Run | Scope::Fixed)) {
        let Some(text) = settings.get(setting.name) else { continue };
        let mut entry = Vec::new();
        bytes_field(&mut entry, 1, setting.name.as_bytes());
        bytes_field(&mut entry, 2, &value(&text));
        bytes_field(&mut start, 1, &entry);
    }
    double_field(&mut start, 5, wall_time);
    session_event(wall_time, step, SESSION_START, 3, &start)
}

/// The end of the session, as a success.
pub fn end_event(wall_time: f64, step: u64) -> Vec<u8> {
    let mut end = Vec::new();
    varint_field(&mut end, 1, SUCCESS);
    double_field(&mut end, 2, wall_time);
    session_event(wall_time, step, SESSION_END, 4, &end)
}

/// A setting as protobuf's `Value`: a truth, a number or a text.
fn value(text: &str) -> Vec<u8> {
    let mut value = Vec::new();
    match (text.parse::<bool>(), text.parse::<f64>()) {
        (Ok(truth), _) => varint_field(&mut value, 4, truth.into()),
        (_, Ok(number)) if number.is_finite() => double_field(&mut value, 2, number),
        _ => bytes_field(&mut value, 3, text.as_bytes()),
    }
    value
}

/// Content of the plugin `hparams`, in this field of its data.
fn session_event(wall_time: f64, step: u64, tag: &str, field: u8, session: &[u8]) -> Vec<u8> {
    let (mut data, mut plugin, mut metadata) = (Vec::new(), Vec::new(), Vec::new());
    bytes_field(&mut data, field, session);
    bytes_field(&mut plugin, 1, b"hparams");
    bytes_field(&mut plugin, 2, &data);
    bytes_field(&mut metadata, 1, &plugin);
    summary_event(wall_time, step, tag, 9, &metadata)
}

fn image(png: &[u8]) -> Vec<u8> {
    // Width and height are in the header of every PNG, at fixed places.
    let side = |at: usize| png.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes);
    let mut image = Vec::new();
    varint_field(&mut image, 1, side(20).into());
    varint_field(&mut image, 2, side(16).into());
    // RGB.
    varint_field(&mut image, 3, 3);
    bytes_field(&mut image, 4, png);
    image
}

fn of_histogram(histogram: &Histogram) -> Vec<u8> {
    let mut message = Vec::new();
    let count = histogram.counts.iter().sum::<u64>() as f64;
    for (field, value) in (1..).zip([histogram.min, histogram.max, count, histogram.sum, histogram.sum_squares]) {
        double_field(&mut message, field, value);
    }
    let packed = |values: &mut dyn Iterator<Item = f64>| values.flat_map(f64::to_le_bytes).collect::<Vec<u8>>();
    bytes_field(&mut message, 6, &packed(&mut histogram.limits()));
    bytes_field(&mut message, 7, &packed(&mut histogram.counts.iter().map(|&count| count as f64)));
    message
}

/// An event of one value, which is this field of its summary.
fn summary_event(wall_time: f64, step: u64, tag: &str, field: u8, value: &[u8]) -> Vec<u8> {
    let (mut entry, mut summary) = (Vec::new(), Vec::new());
    bytes_field(&mut entry, 1, tag.as_bytes());
    bytes_field(&mut entry, field, value);
    bytes_field(&mut summary, 1, &entry);
    let mut event = event(wall_time, step);
    bytes_field(&mut event, 5, &summary);
    event
}

fn double_field(message: &mut Vec<u8>, field: u8, value: f64) {
    message.push(field << 3 | 1);
    message.extend(value.to_le_bytes());
}
