//! Our transport as that of `object_store`.

use std::time::Duration;

use crate::fault::Fault;
use crate::http::Redirects;
use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use ureq::http::{Method, Request};

use crate::transport::Transport;

/// Where a machine in a cloud asks for credentials, if nothing else says where they are.
const METADATA: &str = "169.254.169.254";

/// How long it may take to answer: where there is none, nobody refuses either.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// Gives the transport to a bucket.
#[derive(Debug)]
pub(super) struct Connector(pub Transport);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(self.0.clone())))
    }
}

#[derive(Debug)]
struct Service(Transport);

#[async_trait]
impl HttpService for Service {
    /// Blocks the thread for as long as the transport takes. The thread that polls this waits for nothing else.
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Of the kind that is not tried again: attempts are for `retry` to make.
        self.answer(request).map_err(|fault| HttpError::new(HttpErrorKind::Unknown, fault))
    }
}

impl Service {
    fn answer(&self, request: HttpRequest) -> Result<HttpResponse, Fault> {
        let (parts, body) = request.into_parts();
        let is_metadata = parts.uri.host() == Some(METADATA);
        let transport = if is_metadata { &self.0.within(METADATA_TIMEOUT) } else { &self.0 };
        let answer = match parts.method {
            Method::GET | Method::HEAD => transport.send(Request::from_parts(parts, ()), Redirects::Return),
            _ => {
                let body = body.as_bytes().map_or_else(Vec::new, |bytes| bytes.to_vec());
                transport.send(Request::from_parts(parts, body), Redirects::Return)
            }
        };
        match answer {
            Err(_) if is_metadata => Err(Fault::Lasting(
                "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or \
                 AWS_SKIP_SIGNATURE=true for a bucket that anyone may read"
                    .to_owned(),
            )),
            answer => Ok(answer?.map(HttpResponseBody::from)),
        }
    }
}
