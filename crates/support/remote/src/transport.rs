//! One request and its whole answer, within limits of time and size.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use ureq::AsSendBody;
use ureq::http::header::RANGE;
use ureq::http::{HeaderMap, Request, Response, StatusCode};

use crate::fault::Fault;
use crate::http::{Client, Redirects, authorities};

use crate::{RemoteError, RemoteOptions};

/// How long a server may take to accept a connection, to answer, or to send a little more.
const SILENCE: Duration = Duration::from_secs(30);

/// How long an answer may take as a whole: a part of 8 MiB at 70 KB/s.
const ANSWER: Duration = Duration::from_secs(120);

/// Limit of an answer's bytes: more than any part, or page of a list.
const MAX: u64 = 32 << 20;

/// Sends requests. Clones share connections.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    client: Client,
    answer: Duration,
}

impl Transport {
    /// Trusts the authorities in the file that `AWS_CA_BUNDLE` names, as S3's own tools do, or Mozilla's.
    pub fn new(options: &RemoteOptions) -> Result<Self, RemoteError> {
        let trusted = options.variables.get("AWS_CA_BUNDLE").map(|path| {
            authorities(Path::new(path))
                .map_err(|problem| RemoteError::Setting(format!("AWS_CA_BUNDLE={path}: {problem}")))
        });
        let silence = SILENCE.min(options.timeout);
        Ok(Transport { client: Client::new(silence, trusted.transpose()?), answer: ANSWER.min(options.timeout) })
    }

    /// The same for answers that take no longer than this.
    pub fn within(&self, answer: Duration) -> Self {
        Transport { answer: self.answer.min(answer), ..self.clone() }
    }

    /// A successful answer with its whole body. Any other status is a fault, and so is the whole where a part is requested.
    pub fn send(&self, request: Request<impl AsSendBody>, redirects: Redirects) -> Result<Response<Vec<u8>>, Fault> {
        let is_part = request.headers().contains_key(RANGE);
        let (parts, body) = self.client.send(request, redirects, Some(self.answer))?.into_parts();
        if is_part && parts.status == StatusCode::OK {
            // Before any of it is read: it may be large.
            return Err(whole_files());
        }
        let mut bytes = Vec::new();
        let read = body.into_reader().take(MAX + 1).read_to_end(&mut bytes).map_err(|error| self.client.fault(&error));
        if !parts.status.is_success() {
            // What could be read of the body may say more than the status.
            return Err(refusal(parts.status, &parts.headers, &bytes));
        }
        read?;
        match bytes.len() as u64 > MAX {
            true => Err(Fault::Lasting(format!("it sends more than {MAX} bytes"))),
            false => Ok(Response::from_parts(parts, bytes)),
        }
    }
}

/// The fault of a server that ignores ranges.
fn whole_files() -> Fault {
    let problem =
        "it sends the whole file, not the part that is asked for; download the file, or use a server that knows ranges";
    Fault::Lasting(problem.to_owned())
}

/// What a status other than success means, with the name that S3 gives to it in the body.
fn refusal(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Fault {
    let code = code(body);
    let answers = match &code {
        Some(code) => format!("it answers {status}, {code}"),
        None => format!("it answers {status}"),
    };
    if let Some(region) = headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok())
        && status.is_redirection()
    {
        return Fault::Lasting(format!("the bucket is in another region: set AWS_REGION={region}"));
    }
    let lasting = |advice: &str| Fault::Lasting(format!("{answers}: {advice}"));
    match (status, code.as_deref()) {
        (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS, _) => Fault::Passing(answers),
        (status, _) if status.is_server_error() => Fault::Passing(answers),
        (StatusCode::NOT_FOUND, Some("NoSuchBucket")) => {
            lasting("there is no such bucket; check its name and AWS_ENDPOINT_URL")
        }
        (StatusCode::NOT_FOUND, _) => lasting("there is no such object; check its name"),
        (StatusCode::PRECONDITION_FAILED, _) => crate::source::changed(),
        (StatusCode::RANGE_NOT_SATISFIABLE, _) => lasting("it is empty, or shorter than before"),
        (_, Some("RequestTimeTooSkewed")) => lasting("set this machine's clock"),
        (_, Some("ExpiredToken")) => lasting("the credentials have expired; get new ones"),
        (StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED, Some(_)) => lasting(
            "the credentials are wrong, or may not read this; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE",
        ),
        (StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED, None) => {
            lasting("this file may not be read without a login")
        }
        _ => Fault::Lasting(answers),
    }
}

/// The text of `<Code>` in S3's description of an error. It is made of letters.
fn code(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body.get(..body.len().min(4096))?);
    let (code, _) = text.split_once("<Code>")?.1.split_once("</Code>")?;
    (code.len() <= 64 && code.bytes().all(|letter| letter.is_ascii_alphanumeric())).then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals() {
        let check = |status: u16, body: &str, expected: Fault| {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(refusal(status, &HeaderMap::new(), body.as_bytes()), expected, "{status} {body}");
        };
        let passing = |words: &str| Fault::Passing(words.to_owned());
        let lasting = |words: &str| Fault::Lasting(words.to_owned());
        check(503, "<Error><Code>SlowDown</Code></Error>", passing("it answers 503 Service Unavailable, SlowDown"));
        check(429, "", passing("it answers 429 Too Many Requests"));
        check(404, "", lasting("it answers 404 Not Found: there is no such object; check its name"));
        check(400, "<Code>a b</Code>", lasting("it answers 400 Bad Request"));
        check(412, "", crate::source::changed());
    }
}
