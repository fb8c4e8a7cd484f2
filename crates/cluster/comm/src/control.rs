//! Liveness: the control connections, and the place where the first cause is decided.
//!
//! Every rank but 0 keeps one connection to rank 0's [`crate::server::Server`]. A dedicated thread reads it, so that a
//! busy rank is never taken for a dead one. The thread makes no other input or output, so that nothing delays it. End of
//! file without goodbye means death; silence longer than the heartbeat, while this thread itself ran, is reported as
//! silence. Every cause raised on any rank goes to the server. The first becomes the decision, which the server sends to
//! all.

use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::arrivals::{Answers, Arrivals, Question};
use crate::awake::Silence;
use crate::cause::{CAUSE_LIMIT, Cause, CauseKind};
use crate::failure::{Failure, Relay};
use crate::flight::{FlightRecorder, Standing};
use crate::locks::lock;
use crate::net::link::Link;
use crate::net::record::Altered;
use crate::net::{configure, readable};

const HEARTBEAT: u8 = 1;
const RAISE: u8 = 2;
pub(crate) const DECISION: u8 = 3;
const GOODBYE: u8 = 4;
const STALL: u8 = 5;
const QUESTION: u8 = 6;
pub(crate) const ANSWER: u8 = 7;

/// How long a closing side waits for the other to close too.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// Messages of a control connection.
pub(crate) enum Message {
    /// The sender's activity, if it has lasted longer than a heartbeat.
    Standing(Option<Standing>),
    /// A proposal for the cause of the group's failure.
    Raise(Arc<Cause>),
    /// The decision: the cause of the group's failure.
    Decision(Arc<Cause>),
    /// An operation for which the sender has waited long.
    Stall(Arc<Cause>),
    /// Who has joined an operation of another library?
    Question(Question),
    /// The answer to that.
    Answer((Question, Arrivals)),
}

impl Message {
    /// `None` if the frame is malformed.
    pub(crate) fn from_frame(kind: u8, payload: &[u8]) -> Option<Self> {
        let cause = || Cause::from_bytes(payload).map(Arc::new);
        match kind {
            HEARTBEAT if payload.is_empty() => Some(Message::Standing(None)),
            HEARTBEAT => Standing::from_bytes(payload).map(|standing| Message::Standing(Some(standing))),
            RAISE => cause().map(Message::Raise),
            DECISION => cause().map(Message::Decision),
            STALL => cause().map(Message::Stall),
            QUESTION => Question::from_bytes(payload).map(Message::Question),
            ANSWER => Arrivals::from_bytes(payload).map(Message::Answer),
            _ => None,
        }
    }
}

/// How a control connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// With a goodbye.
    Goodbye,
    /// Without a goodbye: the other side is dead.
    Closed(io::Error),
    /// The other side sent nothing for this long.
    Silent(Duration),
    /// The other side sent malformed data.
    Malformed,
    /// Bytes were changed on the way.
    Altered(Cause),
}

impl End {
    /// The failure that this end means if `rank` is at the other end; `None` after a goodbye.
    pub(crate) fn cause(self, rank: usize, host: &str) -> Option<Cause> {
        let cause = match self {
            End::Goodbye => return None,
            End::Altered(cause) => return Some(cause),
            End::Closed(error) => {
                let how = match error.kind() {
                    io::ErrorKind::UnexpectedEof => "closed".to_owned(),
                    _ => format!("broke ({error})"),
                };
                Cause::new(CauseKind::Exited, format!("its connection {how} without goodbye: see its own messages"))
            }
            End::Silent(limit) => Cause::new(
                CauseKind::Silent,
                format!(
                    "no heartbeat for {} s: its machine or process hangs, or the network is down",
                    limit.as_secs_f64()
                ),
            ),
            End::Malformed => {
                Cause::new(CauseKind::Error, "it sent a malformed control message: do all ranks run the same program?")
            }
        };
        Some(cause.of_rank(rank).on_host(host))
    }
}

/// One side of a control connection, which any thread may write to.
pub(crate) struct Line {
    link: Link,
    /// Set once this side has said goodbye.
    closing: Mutex<Option<Instant>>,
}

impl Line {
    pub(crate) fn new(link: Link, heartbeat: Duration) -> io::Result<Self> {
        // Control messages are small: a peer that takes none for this long hangs.
        configure(link.stream(), heartbeat)?;
        Ok(Line { link, closing: Mutex::new(None) })
    }

    pub(crate) fn send(&self, kind: u8, payload: &[u8]) -> io::Result<()> {
        self.link.send(kind, payload)
    }

    /// Says goodbye. The other side then closes too, which ends [`Line::listen`].
    pub(crate) fn close(&self) {
        *lock(&self.closing) = Some(Instant::now());
        // If the goodbye cannot be sent, the other side is gone.
        let _ = self.send(GOODBYE, &[]);
        let _ = self.link.stream().shutdown(Shutdown::Write);
    }

    /// Closes both directions.
    pub(crate) fn shut(&self) {
        // The other side may have closed already.
        let _ = self.link.stream().shutdown(Shutdown::Both);
    }

    /// Listens until the connection ends, and passes on each message. Meanwhile it sends heartbeats with the standing
    /// of `recorder`. If bytes were changed on the way, the other direction may be intact: the connection then stays
    /// open, so that the caller can send the cause before it shuts it.
    pub(crate) fn listen(
        &self,
        heartbeat: Duration,
        recorder: Option<&FlightRecorder>,
        mut receive: impl FnMut(Message),
    ) -> End {
        let end = self.listen_until(heartbeat, recorder, &mut receive);
        if !matches!(end, End::Altered(_)) {
            self.shut();
        }
        // After this side's goodbye, every end is expected.
        if lock(&self.closing).is_some() { End::Goodbye } else { end }
    }

    fn listen_until(
        &self,
        heartbeat: Duration,
        recorder: Option<&FlightRecorder>,
        receive: &mut impl FnMut(Message),
    ) -> End {
        let mut silence = Silence::new(heartbeat, Instant::now());
        let mut beaten: Option<Instant> = None;
        let mut goodbye = false;
        loop {
            let closing = *lock(&self.closing);
            if closing.is_none() && beaten.is_none_or(|last| last.elapsed() >= heartbeat / 4) {
                beaten = Some(Instant::now());
                let standing = recorder.and_then(|recorder| recorder.standing(heartbeat));
                // Reading notices a broken connection, and still delivers everything sent before the break.
                let _ = self.send(HEARTBEAT, &standing.map_or(Vec::new(), |standing| standing.to_bytes()));
            }
            match readable(self.link.stream(), heartbeat / 4) {
                Ok(true) => match self.link.receive(CAUSE_LIMIT) {
                    Ok(frame) => {
                        silence.broken(Instant::now());
                        match Message::from_frame(frame.kind, &frame.payload) {
                            Some(message) => receive(message),
                            None if frame.kind == GOODBYE => goodbye = true,
                            None => return End::Malformed,
                        }
                    }
                    Err(_) if goodbye => return End::Goodbye,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return End::Silent(heartbeat),
                    Err(error) => return Altered::cause(&error).map_or(End::Closed(error), End::Altered),
                },
                Ok(false) => {}
                Err(error) => return End::Closed(error),
            }
            // Looks in every round, since the first look after a break is the one that notices it.
            if silence.is_over_limit(Instant::now()) {
                return End::Silent(heartbeat);
            }
            if closing.is_some_and(|since| since.elapsed() >= LINGER) {
                return End::Goodbye;
            }
        }
    }
}

/// The control connection of a rank other than 0.
pub(crate) struct Control {
    line: Arc<Line>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Takes over a connection that the server has admitted. From now on it delivers the decision about `failure`.
    pub(crate) fn start(
        link: Link,
        server_host: String,
        failure: &Arc<Failure>,
        recorder: &FlightRecorder,
        heartbeat: Duration,
    ) -> io::Result<Self> {
        let line = Arc::new(Line::new(link, heartbeat)?);
        let answers = Arc::new(Answers::default());
        failure.set_relay(Arc::new(ToServer { line: Arc::downgrade(&line), answers: answers.clone() }));
        let thread = std::thread::Builder::new().name("enmasse-control".into()).spawn({
            let line = line.clone();
            let failure = failure.clone();
            let recorder = recorder.clone();
            move || {
                let end = line.listen(heartbeat, Some(&recorder), |message| match message {
                    Message::Decision(cause) => failure.settle(cause),
                    Message::Answer(answer) => answers.put(answer),
                    Message::Standing(_) | Message::Raise(_) | Message::Stall(_) | Message::Question(_) => {}
                });
                if let End::Altered(cause) = &end {
                    // Rank 0 is alive, and passes the cause on to the others.
                    let _ = line.send(RAISE, &cause.to_bytes());
                }
                // Before the ranks have met, nobody knows its machine.
                if let Some(cause) = end.cause(0, failure.host(0).unwrap_or(&server_host)) {
                    // Every rank sees the same end of rank 0, and there is no server left to ask.
                    failure.settle(Arc::new(cause));
                }
                line.shut();
            }
        })?;
        Ok(Control { line, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.line.close();
        if let Some(thread) = self.thread.take() {
            // It listens for [`LINGER`] more, in rounds of a quarter of a heartbeat.
            let _ = thread.join();
        }
    }
}

/// Weak, since the failure state outlives the connection.
struct ToServer {
    line: Weak<Line>,
    answers: Arc<Answers>,
}

impl Relay for ToServer {
    fn propose(&self, cause: &Arc<Cause>) {
        if let Some(line) = self.line.upgrade() {
            // If rank 0 is gone, the listening thread reports it. Without any decision, the proposal holds.
            let _ = line.send(RAISE, &cause.to_bytes());
        }
    }

    fn warn(&self, stall: Arc<Cause>) {
        if let Some(line) = self.line.upgrade() {
            // As above.
            let _ = line.send(STALL, &stall.to_bytes());
        }
    }

    fn arrivals(&self, question: Question) -> Option<Arrivals> {
        self.line.upgrade()?.send(QUESTION, &question.to_bytes()).ok()?;
        self.answers.wait(question)
    }
}
