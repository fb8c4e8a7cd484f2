//! For fuzzing: each reader of the wire keeps its promises for any bytes. Compiled with `--cfg fuzzing` alone.

use std::io::{Cursor, ErrorKind, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use crate::cause::{CAUSE_LIMIT, Cause};
use crate::control::Message;
use crate::flight::Standing;
use crate::net::handshake::{Introduction, Reception, introduce};
use crate::net::link::{FRAME_LIMIT, read_frame, write_frame};
use crate::net::record::{Altered, Cipher, Inbound, Outbound};
use crate::operation::{HEADER_BYTES, Header};
use crate::rendezvous::agent_store::AgentStore;
use crate::rendezvous::form::RankInfo;
use crate::rendezvous::rank_zero_address::Notice;
use crate::store::{Request, from_answer, to_answer};
use crate::token::{TOKEN_BYTES, Token};
use crate::transport::frames::{FrameSize, Receiving, Sending};
use crate::transport::queue::{Bytes, Queue};

const LIMIT: Duration = Duration::from_secs(10);

fn outbound() -> Outbound {
    Outbound::new(Cipher::Aes128Gcm, [1; 32])
}

fn inbound() -> Inbound {
    Inbound::new(Cipher::Aes128Gcm, [1; 32], "link".into())
}

/// A cause is written as it was read, within its limit, and prints as one line.
pub fn cause(bytes: &[u8]) {
    if let Some(cause) = Cause::from_bytes(bytes) {
        let again = cause.to_bytes();
        assert!(again.len() <= CAUSE_LIMIT && !cause.to_string().contains(char::is_control));
        assert_eq!(Cause::from_bytes(&again), Some(cause));
    }
}

/// A control message, whose kind is the first byte.
pub fn control(bytes: &[u8]) {
    let Some((&kind, payload)) = bytes.split_first() else { return };
    match Message::from_frame(kind, payload) {
        Some(Message::Standing(Some(standing))) => {
            assert_eq!(Standing::from_bytes(&standing.to_bytes()).as_ref(), Some(&standing));
            assert!(standing.to_string().len() <= payload.len() + 64);
        }
        Some(Message::Raise(_) | Message::Decision(_) | Message::Stall(_)) => cause(payload),
        Some(Message::Question(question)) => assert_eq!(question.to_bytes(), payload),
        Some(Message::Answer((question, arrivals))) => assert_eq!(arrivals.to_bytes(question), payload),
        Some(Message::Standing(None)) | None => {}
    }
}

/// An introduction is written as it was read.
pub fn introduction(bytes: &[u8]) {
    if let Some(introduction) = Introduction::from_bytes(bytes) {
        assert_eq!(introduction.to_bytes(), bytes);
    }
}

/// The header of an operation is written as it was read, and describes itself.
pub fn header(bytes: &[u8]) {
    if let Some((bytes, _)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let header = Header::from_bytes(bytes);
        assert_eq!(header.to_bytes(), *bytes);
        assert!(header.operation().len() < 256);
    }
}

/// A request to the store is written as it was read, and the values of an answer can be answered again. A notice of rank 0's
/// place is written as it was read.
pub fn store(bytes: &[u8]) {
    if let Some(request) = Request::from_bytes(bytes) {
        assert_eq!(request.to_bytes(), bytes);
    }
    if let Some((&ranks, answer)) = bytes.split_first()
        && let Some(values) = from_answer(answer, ranks.into())
    {
        let given: Vec<_> = values.iter().map(String::as_bytes).collect();
        assert_eq!(from_answer(&to_answer(&given), values.len()), Some(values));
    }
    if let Some(notice) = std::str::from_utf8(bytes).ok().and_then(Notice::from_text) {
        assert_eq!(Notice::from_text(&notice.to_text()), Some(notice));
    }
}

/// A rank's card is written as it was read.
pub fn card(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(card) = RankInfo::from_text(text)
    {
        assert_eq!(card.to_text(), text);
    }
}

/// Frames of a peer that does not hold the key are refused. Those of one that does arrive as they were sent, or are
/// refused for their length.
pub fn frames(bytes: &[u8]) {
    let stranger = read_frame(bytes, &mut inbound(), FRAME_LIMIT).unwrap_err();
    assert!(Altered::is(&stranger) || stranger.kind() == ErrorKind::UnexpectedEof);

    let Some((&[l0, l1, l2, l3, kind], payload)) = bytes.split_first_chunk() else { return };
    // A right head with any length, and then what is left of the input.
    let mut sealing = outbound();
    let mut wire = vec![];
    for record in [&[l0, l1, l2, l3, kind][..], payload] {
        let mut bytes = record.to_vec();
        let tag = sealing.seal(&mut bytes);
        wire.extend([&bytes[..], &tag].concat());
    }
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    match read_frame(&wire[..], &mut inbound(), FRAME_LIMIT) {
        Ok(frame) => assert!(frame.kind == kind && frame.payload == payload[..length]),
        Err(_) => assert!(length != payload.len() || length > FRAME_LIMIT),
    }

    let mut wire = vec![];
    write_frame(&mut wire, &mut outbound(), kind, payload).unwrap();
    let frame = read_frame(&wire[..], &mut inbound(), FRAME_LIMIT).unwrap();
    assert!(frame.kind == kind && frame.payload == payload);
}

/// The bytes of a collective arrive as they were sent, or not at all. The first bytes say where one is changed, and in
/// which way.
pub fn message(bytes: &[u8]) {
    let Some((&[a0, a1, change], message)) = bytes.split_first_chunk() else { return };
    let mut wire = vec![];
    let frames = FrameSize::new(2);
    let mut sending = Sending::new(outbound(), frames);
    let mut queue = Queue::new(1);
    // SAFETY: `message` outlives the queue's use, and nothing changes it.
    unsafe { queue.begin(Bytes::of(message.as_ptr(), 0..message.len())) };
    while !queue.is_complete() {
        sending.progress(&mut queue, &mut wire).unwrap();
    }
    let at = usize::from(u16::from_le_bytes([a0, a1]));
    let changed = wire.get_mut(at).is_some_and(|byte| {
        *byte ^= change;
        change != 0
    });
    let mut received = vec![0; message.len()];
    let mut receiving = Receiving::new(inbound(), frames);
    let mut queue = Queue::new(1);
    // SAFETY: `received` outlives the queue's use, and nothing else uses it until then.
    unsafe { queue.begin(Bytes::of(received.as_mut_ptr(), 0..received.len())) };
    let progress = receiving.progress(&mut queue, Cursor::new(&wire));
    assert_eq!(progress.is_err(), changed);
    assert!(changed || received == message);
}

/// A program without the token that has sent these bytes is not admitted, and one that has answered with them gets no
/// introduction.
pub fn handshake(bytes: &[u8]) {
    let token = Token::from_bytes([1; TOKEN_BYTES]);
    let (stranger, own) = connection(bytes);
    let mut reception = Reception::new(own).unwrap();
    if let Ok(true) = reception.advance(&token) {
        assert!(reception.end(&token, LIMIT).is_err());
    }
    drop(stranger);

    let (stranger, own) = connection(bytes);
    let identity = Default::default();
    let purpose = crate::net::handshake::Purpose::Store;
    let introduction = Introduction { purpose, rank: 1, target: 0, world_size: 2, identity, host: "h".into() };
    assert!(introduce(own, &token, &introduction, LIMIT).is_err());
    drop(stranger);
}

/// Whatever torchrun's store answers, a value is bounded.
pub fn agent_store(bytes: &[u8]) {
    let deadline = Instant::now() + LIMIT;
    let address = listener().local_addr().unwrap().to_string();
    let mut store = AgentStore::connect(&address, deadline).unwrap();
    let server = accept(bytes);
    if let Ok(Some(value)) = store.get("key") {
        // A byte that is not UTF-8 becomes a character of three bytes.
        assert!(value.len() <= 3 * bytes.len());
    }
    let _ = store.add("key", 1);
    drop(server);
}

fn listener() -> &'static TcpListener {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    LISTENER.get_or_init(|| TcpListener::bind("127.0.0.1:0").unwrap())
}

/// The next connection, on which these bytes have been sent, and nothing else will be. Closing it leaves no socket
/// behind, of which a machine has few.
fn accept(bytes: &[u8]) -> TcpStream {
    let mut stream = listener().accept().unwrap().0;
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream
}

/// Both ends of a connection; these bytes have been sent to the second one.
fn connection(bytes: &[u8]) -> (TcpStream, TcpStream) {
    let own = TcpStream::connect(listener().local_addr().unwrap()).unwrap();
    (accept(bytes), own)
}
