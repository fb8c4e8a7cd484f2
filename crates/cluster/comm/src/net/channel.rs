//! Connections between programs that are not ranks, such as the agents of an elastic job. They prove the token to each
//! other as ranks do, and then exchange frames.

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use super::acceptor::Acceptor;
use super::handshake::{HandshakeError, Introduction, Purpose, answer, introduce};
use super::link::Link;
use super::refused::Refused;
use super::{configure, connect};
use crate::cause::host_name;
use crate::operation::Identity;
use crate::token::Token;

/// How long a message may wait for space in the send buffer: a reader that reads nothing for this long hangs.
const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// An open connection whose other end holds the same token. Any thread may write; only one should read.
#[derive(Debug)]
pub struct Channel {
    link: Link,
}

impl Channel {
    /// Size limit of a message, in bytes.
    pub const MESSAGE_LIMIT: usize = 1 << 17;
    /// The kind of all its frames.
    const KIND: u8 = 1;

    /// Connects to a listener of the same job, within `limit`.
    ///
    /// # Errors
    /// Nobody listens there within `limit`, or the listener is of another job or has another token.
    pub fn connect(address: SocketAddr, token: &Token, job: &str, limit: Duration) -> io::Result<Self> {
        let stream = connect(&address, limit)?;
        let introduction = Introduction {
            purpose: Purpose::Agent,
            rank: 0,
            target: 0,
            world_size: 0,
            identity: Identity::of_job(job, 0),
            host: host_name(),
        };
        let link = introduce(stream, token, &introduction, limit).map_err(|error| match error {
            HandshakeError::Io(error) => error,
            HandshakeError::Token => {
                io::Error::other("the other side holds another token: set ENMASSE_TOKEN to the same text on all nodes")
            }
            refusal => io::Error::other(refusal.to_string()),
        })?;
        Channel::over(link)
    }

    fn over(link: Link) -> io::Result<Self> {
        configure(link.stream(), WRITE_LIMIT)?;
        // A quiet channel is not dead: its users send heartbeats.
        link.stream().set_read_timeout(None)?;
        Ok(Channel { link })
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The connection has closed or broke, or the message is too long.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        self.link.send(Self::KIND, message)
    }

    /// Waits for a message. Fails once either side closes, or if the message was changed on the way.
    ///
    /// # Errors
    /// The connection has closed or broke, or the message was changed.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        Ok(self.link.receive(Self::MESSAGE_LIMIT)?.payload)
    }

    /// Closes the channel for both sides. Messages sent before still arrive.
    pub fn close(&self) {
        // The channel may be closed already.
        let _ = self.link.stream().shutdown(Shutdown::Both);
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// The connection has broken.
    pub fn peer(&self) -> io::Result<IpAddr> {
        Ok(self.link.stream().peer_addr()?.ip())
    }
}

/// Listens for channels. Dropping it closes the socket; channels stay open.
pub struct ChannelListener {
    acceptor: Acceptor,
}

impl ChannelListener {
    /// Accepts connections. `admit` runs in each connection's own thread, for any length of time.
    ///
    /// # Errors
    /// The kernel gives no thread, or the socket has no address.
    pub fn start(
        listener: TcpListener,
        token: Token,
        job: &str,
        admit: impl Fn(Channel) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let identity = Identity::of_job(job, 0);
        let door = Arc::new(move |link: Link, who: Introduction| {
            let refusal = match who {
                _ if who.purpose != Purpose::Agent => Some("this address is for agents, not for ranks"),
                _ if who.identity != identity => Some("it belongs to another job: do two jobs use one address?"),
                _ => None,
            };
            if answer(&link, refusal).is_ok()
                && refusal.is_none()
                && let Ok(channel) = Channel::over(link)
            {
                admit(channel);
            }
        });
        Ok(ChannelListener { acceptor: Acceptor::start(listener, token, 0, door)? })
    }

    /// Closes the socket. Returns the connections that were refused because they did not prove the token; `None` if there
    /// were none.
    pub fn close(self) -> Option<Refused> {
        self.acceptor.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn channels_carry_messages_between_members_of_a_job() {
        let token = Token::generate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, receiver) = mpsc::channel();
        let admit = move |channel: Channel| {
            channel.send(b"welcome").unwrap();
            sender.send(channel.receive().map_err(|error| error.kind())).unwrap();
        };
        let listener = ChannelListener::start(listener, token.clone(), "job", admit).unwrap();
        let channel = Channel::connect(address, &token, "job", LIMIT).unwrap();
        assert_eq!(channel.receive().unwrap(), b"welcome");
        channel.send(b"hello").unwrap();
        assert_eq!(receiver.recv_timeout(LIMIT).unwrap(), Ok(b"hello".to_vec()));

        let channel = Channel::connect(address, &token, "job", LIMIT).unwrap();
        channel.close();
        assert!(receiver.recv_timeout(LIMIT).unwrap().is_err());

        let refused = Channel::connect(address, &token, "another", LIMIT).unwrap_err();
        assert!(refused.to_string().starts_with("it belongs to another job"), "{refused}");
        let stranger = Channel::connect(address, &Token::generate().unwrap(), "job", LIMIT).unwrap_err();
        assert!(stranger.to_string().starts_with("the other side holds another token"), "{stranger}");
        let refused = listener.close().map(|refused| refused.to_string());
        let expected = format!("refused at {address}: 1 connection from 127.0.0.1, without the token of this run");
        assert_eq!(refused, Some(expected));
        assert!(Channel::connect(address, &token, "job", LIMIT).is_err());
    }
}
