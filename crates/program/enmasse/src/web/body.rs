//! Bodies of requests, read within a size and a time.

use std::error::Error;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

/// Why a request has no answer: the status, and a line.
pub type Refusal = (StatusCode, String);

/// What a refused client may go on sending.
const DRAIN: Duration = Duration::from_secs(2);

pub fn refusal(status: StatusCode, line: impl Into<String>) -> Refusal {
    (status, line.into())
}

/// Reads a body of at most `most` bytes, which comes within `time`.
pub async fn read_body(body: Body, most: usize, time: Duration) -> Result<Bytes, Refusal> {
    let too_large = || {
        let size = if most >= 1 << 20 { format!("{} MiB", most >> 20) } else { format!("{most} bytes") };
        refusal(StatusCode::PAYLOAD_TOO_LARGE, format!("the file is too large: the limit is {size}"))
    };
    if body.size_hint().lower() > most as u64 {
        drain(body);
        return Err(too_large());
    }
    match timeout(time, Limited::new(body, most).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if is_length(error.as_ref()) => Err(too_large()),
        Ok(Err(_)) => Err(refusal(StatusCode::BAD_REQUEST, "the request is malformed")),
        Err(_) => Err(refusal(StatusCode::REQUEST_TIMEOUT, "the request did not come in time")),
    }
}

fn is_length(error: &(dyn Error + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_length)
}

/// Takes for a while what a refused client still sends, so that it reads the answer instead of an error.
pub fn drain(mut body: Body) {
    tokio::spawn(timeout(DRAIN, async move { while let Some(Ok(_)) = body.frame().await {} }));
}
