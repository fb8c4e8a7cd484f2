//! The listener and its connections.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::access::Access;
use super::request::{Refusal, drain};
use super::{Request, Response};
use crate::failure::{Failure, failed};

/// The first port that is tried where none is asked for, and the number of those after it.
const PORT: u16 = 6006;
const PORTS: u16 = 20;

/// Connections at once. A browser opens six.
const MAX_CONNECTIONS: usize = 64;

/// A request comes within this time.
const READ: Duration = Duration::from_secs(30);

/// A client that takes nothing for this long is left.
const WRITE: Duration = Duration::from_secs(20);

/// What a refused client may go on sending.
const DRAIN: Duration = Duration::from_secs(2);

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
    port: u16,
    ends: Arc<AtomicBool>,
}

impl Server {
    /// Listens on a port: 0 takes any that is free, `None` the first free one from 6006 on.
    pub fn start(port: Option<u16>, site: Arc<dyn Site>) -> Result<Self, Failure> {
        let listener = listen(port)?;
        let start = || -> io::Result<Server> {
            let port = listener.local_addr()?.port();
            let access = Arc::new(Access::new(port)?);
            let (link, ends) = (access.link(), Arc::new(AtomicBool::new(false)));
            let own = ends.clone();
            Builder::new().name("web".to_owned()).spawn(move || serve(&listener, &access, &site, &own))?;
            Ok(Server { link, port, ends })
        };
        start().map_err(|error| failed!("cannot serve pages: {error}"))
    }

    /// The address to open, with the token.
    pub fn link(&self) -> &str {
        &self.link
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // Wakes the listener. Where that fails it ends with the process.
        let _ = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, self.port).into(), Duration::from_secs(1));
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

/// Takes connections until the server is dropped.
fn serve(listener: &TcpListener, access: &Arc<Access>, site: &Arc<dyn Site>, ends: &AtomicBool) {
    lower_priority();
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if ends.load(Ordering::SeqCst) {
            return;
        }
        let Ok(mut stream) = stream else {
            // Usually too many open files, which connections that end give back.
            std::thread::park_timeout(Duration::from_millis(100));
            continue;
        };
        if stream.set_write_timeout(Some(WRITE)).is_err() {
            continue;
        }
        let Some(slot) = Slot::take(&open) else {
            // Fits the buffers of a new connection, so it does not wait.
            let _ = Response::refused(503, "too many connections: close some pages").write(&mut stream, true);
            continue;
        };
        let (access, site) = (access.clone(), site.clone());
        let answer = move || {
            let _slot = slot;
            // An error means that the client has gone.
            let _ = answer(&mut stream, &access, site.as_ref());
        };
        // Without a thread the connection closes.
        let _ = Builder::new().name("web".to_owned()).spawn(answer);
    }
}

/// Of the calling thread, and of those that it starts.
pub fn lower_priority() {
    // Without the right to it everything works as well.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// One of the connections that may be open.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(open: &Arc<AtomicUsize>) -> Option<Self> {
        let slot = Slot(open.clone());
        (open.fetch_add(1, Ordering::SeqCst) < MAX_CONNECTIONS).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn answer(stream: &mut TcpStream, access: &Access, site: &dyn Site) -> io::Result<()> {
    let deadline = Instant::now() + READ;
    let mut with_body = true;
    let response = match Request::read(stream, deadline) {
        Err((status, line)) => Response::refused(status, line),
        Ok(mut request) => {
            with_body = request.method != "HEAD";
            match admit(&mut request, stream, access, deadline) {
                Ok(()) => site.answer(&request).with_cookie(access.cookie(&request)),
                Err((status, line)) => Response::refused(status, line),
            }
        }
    };
    let is_refusal = response.is_refusal();
    response.write(stream, with_body)?;
    if is_refusal { drain(stream, Instant::now() + DRAIN) } else { Ok(()) }
}

/// Reads the body of a request that may be answered.
fn admit(request: &mut Request, stream: &mut TcpStream, access: &Access, deadline: Instant) -> Result<(), Refusal> {
    access.check(request).map_err(|line| (403, line))?;
    match request.method.as_str() {
        "GET" | "HEAD" | "POST" => request.read_body(stream, deadline),
        _ => Err((405, "pages are read, and images are sent to them")),
    }
}
