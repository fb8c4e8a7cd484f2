//! Pages on loopback, for those who know the token.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request as HttpRequest, State};
use axum::http::{Method, StatusCode};
use axum::response::Response as HttpResponse;
use axum::{Extension, Router};
use tokio::runtime::Builder;
use tokio::sync::oneshot::{Sender, channel};
use tokio::task::spawn_blocking;

use super::access::Access;
use super::connections::{Slot, busy, serve};
use super::response::TEXT;
use super::{Refusal, Request, Response, drain, read_body, refusal};
use crate::failure::{Failure, failed};

/// The first port that is tried where none is asked for, and the number of those after it.
const PORT: u16 = 6006;
const PORTS: u16 = 20;

/// Connections at once. A browser opens six.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// Larger bodies are refused.
const MAX_BODY: usize = 32 << 20;

/// A body comes within this time.
const READ: Duration = Duration::from_secs(30);

/// Threads that answer get the processor where nobody else wants it.
const NICE: i32 = 10;

/// What is served.
pub trait Site: Send + Sync + 'static {
    /// The answer to a request that showed the token.
    fn answer(&self, request: &Request) -> Response;
}

/// A server on loopback. Dropped, it takes no more requests.
pub struct Server {
    link: String,
    _held: Sender<()>,
}

impl Server {
    /// Listens on a port: 0 takes any that is free, `None` the first free one from 6006 on.
    pub fn start(port: Option<u16>, site: Arc<dyn Site>) -> Result<Self, Failure> {
        let listener = listen(port)?;
        let start = || -> io::Result<Server> {
            let access = Arc::new(Access::new(listener.local_addr()?.port())?);
            let link = access.link();
            let router = Router::new().fallback(answer).with_state(Pages { access, site });
            // Each connection has at most one thread that computes or waits for news.
            let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(MAX_CONNECTIONS).build()?;
            let (held, ended) = channel();
            let run = move || {
                lower_priority();
                let busy = busy(TEXT, "too many connections: close some pages\n");
                let serve = serve(listener, router, (MAX_CONNECTIONS, &busy), pending());
                runtime.block_on(async {
                    tokio::select! {
                        _ = serve => {}
                        _ = ended => {}
                    }
                });
                // Streams end later.
                runtime.shutdown_background();
            };
            std::thread::Builder::new().name("web".to_owned()).spawn(run)?;
            Ok(Server { link, _held: held })
        };
        start().map_err(|error| failed!("cannot serve pages: {error}"))
    }

    /// The address to open, with the token.
    pub fn link(&self) -> &str {
        &self.link
    }
}

fn listen(port: Option<u16>) -> Result<TcpListener, Failure> {
    let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    match port {
        Some(port) => bind(port).map_err(|error| {
            failed!("cannot listen on port {port}: {error}: choose another port, or 0 for any that is free")
        }),
        None => (PORT..PORT + PORTS)
            .find_map(|port| bind(port).ok())
            .map_or_else(|| bind(0), Ok)
            .map_err(|error| failed!("cannot listen on this machine: {error}")),
    }
}

/// Of the calling thread, and of those that it starts.
pub fn lower_priority() {
    // Without the right to it everything works as well.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// What answers requests.
#[derive(Clone)]
struct Pages {
    access: Arc<Access>,
    site: Arc<dyn Site>,
}

async fn answer(State(pages): State<Pages>, Extension(slot): Extension<Slot>, request: HttpRequest) -> HttpResponse {
    let response = match admit(request, &pages.access).await {
        Err((status, line)) => Response::refused(status, &line),
        Ok(request) => {
            let Pages { access, site } = pages;
            let answered = spawn_blocking(move || site.answer(&request).with_cookie(access.cookie(&request)));
            let panicked = || Response::refused(StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be made");
            answered.await.unwrap_or_else(|_| panicked())
        }
    };
    response.into_http(slot)
}

/// A request that may be answered, with its body. Nothing of the body is read before.
async fn admit(request: HttpRequest, access: &Access) -> Result<Request, Refusal> {
    let (head, body) = request.into_parts();
    let checked = || {
        let request = Request::new(head).ok_or_else(|| refusal(StatusCode::BAD_REQUEST, "the request is malformed"))?;
        access.check(&request).map_err(|line| refusal(StatusCode::FORBIDDEN, line))?;
        match request.method {
            Method::GET | Method::HEAD | Method::POST => Ok(request),
            _ => Err(refusal(StatusCode::METHOD_NOT_ALLOWED, "pages are read, and images are sent to them")),
        }
    };
    match checked() {
        Ok(mut request) => {
            request.body = read_body(body, MAX_BODY, READ).await?;
            Ok(request)
        }
        Err(refusal) => {
            drain(body);
            Err(refusal)
        }
    }
}
