//! Objects on HTTP servers.

use std::ops::Range;

use crate::fault::Fault;
use crate::http::{Redirects, range};
use ureq::http::header::{CONTENT_RANGE, ETAG, IF_MATCH, LAST_MODIFIED, RANGE};
use ureq::http::{HeaderMap, HeaderName, Request};

use crate::source::{Part, Source, Version, checked};
use crate::transport::Transport;

/// A file on a server that gives parts of it.
#[derive(Debug)]
pub(crate) struct HttpObject {
    transport: Transport,
    url: String,
    server: String,
}

impl HttpObject {
    pub fn new(transport: Transport, url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let server = format!("{scheme}://{}", rest.split('/').next().unwrap_or_default());
        HttpObject { transport, url: url.to_owned(), server }
    }
}

impl Source for HttpObject {
    fn server(&self) -> &str {
        &self.server
    }

    fn advice(&self) -> &str {
        "check the address, the server and the network"
    }

    fn read(&self, wanted: Range<u64>, version: Option<&Version>) -> Result<Part, Fault> {
        let mut request = Request::get(&self.url).header(RANGE, format!("bytes={}-{}", wanted.start, wanted.end - 1));
        // A weak tag equals none.
        if let Some(version) = version.filter(|version| version.tag.starts_with('"')) {
            request = request.header(IF_MATCH, &version.tag);
        }
        let request = request.body(()).map_err(|error| Fault::Lasting(error.to_string()))?;
        let (parts, bytes) = self.transport.send(request, Redirects::Follow)?.into_parts();
        let length = match range(&parts.headers) {
            Some((begin, Some(length))) if begin == wanted.start => length,
            _ => {
                let other = text(&parts.headers, CONTENT_RANGE).unwrap_or_default();
                return Err(Fault::Lasting(format!("it sends another part than bytes {wanted:?}: {other:?}")));
            }
        };
        let tag = text(&parts.headers, ETAG).or_else(|| text(&parts.headers, LAST_MODIFIED));
        let tag = tag.ok_or_else(|| {
            Fault::Lasting(
                "it gives no ETag and no Last-Modified, so nobody could tell whether the file has changed; download it"
                    .to_owned(),
            )
        })?;
        checked(Part { bytes, version: Version { length, tag } }, &wanted, version)
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}
