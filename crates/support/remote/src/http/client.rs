//! A client whose every wait ends.

use std::net::IpAddr;
use std::time::Duration;

use ureq::config::RedirectAuthHeaders;
use ureq::http::{Request, Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, AsSendBody, Body};

use crate::fault::Fault;
use crate::http::fault;
use crate::http::trust::Authorities;

/// What becomes of an answer that names another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// The other address is asked, up to ten times. One without TLS is a fault where the first one has it.
    Follow,
    /// It is an answer like any other: the request is signed for its own address.
    Return,
}

/// A client. Clones share connections, which stay open for further requests.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    timeout: Duration,
}

impl Client {
    /// A client that waits no longer than `timeout` for each of these: a name, a connection, an answer, a piece of a body. It
    /// trusts the given authorities, or Mozilla's, which are part of the program. Proxies are those of the usual variables
    /// (`https_proxy`, `no_proxy`), except to this machine itself.
    pub fn new(timeout: Duration, trusted: Option<Authorities>) -> Self {
        let limit = Some(timeout);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("enmasse/", env!("CARGO_PKG_VERSION")))
            // The length and the bytes of the file itself.
            .accept_encoding("identity")
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_resolve(limit)
            .timeout_connect(limit)
            .timeout_send_request(limit)
            .timeout_recv_response(limit)
            .timeout_per_read(limit)
            .timeout_per_write(limit)
            .tls_config(TlsConfig::builder().root_certs(trusted.map_or(RootCerts::WebPki, |own| own.0)).build());
        Client { agent: config.build().into(), timeout }
    }

    /// The longest wait.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a request, and returns the head of the answer, whatever its status. The body is to be read within `whole` since
    /// now, if that is given.
    pub fn send(
        &self,
        request: Request<impl AsSendBody>,
        redirects: Redirects,
        whole: Option<Duration>,
    ) -> Result<Response<Body>, Fault> {
        let uri = request.uri();
        let secure = uri.scheme_str() == Some("https");
        let local = is_local(uri);
        let config = self.agent.configure_request(request).https_only(secure).timeout_global(whole);
        let config = if local { config.proxy(None) } else { config };
        let request = match redirects {
            Redirects::Follow => config.build(),
            Redirects::Return => config.max_redirects(0).max_redirects_will_error(false).build(),
        };
        self.agent.run(request).map_err(|error| fault::of(error, whole.unwrap_or(self.timeout).min(self.timeout)))
    }

    /// The fault behind an error of a body's reader.
    pub fn fault(&self, error: &std::io::Error) -> Fault {
        fault::of_body(error, self.timeout)
    }
}

/// Whether an address leads to this machine itself.
fn is_local(address: &Uri) -> bool {
    let host = address.host().unwrap_or_default();
    let numbers = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || numbers.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine() {
        let check = |url: &str, expected: bool| assert_eq!(is_local(&url.parse().unwrap()), expected, "{url}");
        check("http://127.0.0.1:8000/a", true);
        check("http://[::1]/a", true);
        check("http://localhost:8000", true);
        check("https://localhost.example/a", false);
        check("https://www.cs.toronto.edu/~kriz/", false);
        check("nonsense", false);
    }
}
