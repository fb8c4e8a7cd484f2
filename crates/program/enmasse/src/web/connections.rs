//! Connections: so many at once, each with limits on the heads of requests and on the time that a client takes.

use std::io::{self, ErrorKind};
use std::net::TcpListener as StdListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Larger heads are refused.
const MAX_HEAD: usize = 16 << 10;

/// More headers are refused.
const MAX_HEADERS: usize = 64;

/// A head comes within this time. A connection without requests is closed after it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// A client that takes nothing for this long is left, in milliseconds.
const WRITE_TIMEOUT: u32 = 20_000;

/// After an error the next connection is taken once one has ended, or after this time.
const RETRY: Duration = Duration::from_millis(100);

/// One of the connections that may be open. A handler finds it among the extensions of a request; what outlives the connection holds it.
pub type Slot = Arc<OwnedSemaphorePermit>;

/// Serves `router` to at most `most` connections at a time until `end`, and then until those that are open have their answers. One too many
/// gets `busy`, a whole answer.
pub async fn serve(
    listener: StdListener,
    router: Router,
    (most, busy): (usize, &[u8]),
    end: impl Future<Output = ()>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let slots = Arc::new(Semaphore::new(most));
    let graceful = GracefulShutdown::new();
    let ended = Arc::new(Notify::new());
    let mut http = Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let mut end = pin!(end);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut end => break,
        };
        let stream = match accepted {
            Ok((stream, _)) if prepare(&stream).is_ok() => stream,
            Err(error) if error.kind() != ErrorKind::ConnectionAborted => {
                // Usually too many open files, which connections that end give back, here or elsewhere in the process.
                let _ = timeout(RETRY, ended.notified()).await;
                continue;
            }
            _ => continue,
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            // Fits the buffers of a new connection, so it does not wait.
            let _ = stream.try_write(busy);
            continue;
        };
        let service = TowerToHyperService::new(router.clone().layer(Extension(Slot::new(slot))));
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        let ended = ended.clone();
        tokio::spawn(async move {
            // An error means that the client has gone, or that it was refused.
            let _ = connection.await;
            ended.notify_one();
        });
    }
    drop(listener);
    graceful.shutdown().await;
    Ok(())
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    Ok(set_tcp_user_timeout(stream, WRITE_TIMEOUT)?)
}

/// The answer to a connection that is one too many.
pub fn busy(kind: &str, text: &str) -> Vec<u8> {
    let length = text.len();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
    .into_bytes()
}
