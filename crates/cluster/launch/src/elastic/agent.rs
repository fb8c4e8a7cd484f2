//! The thread of a node's agent: a [`Member`] with its connection. The launcher's own thread runs the workers, and gets
//! [`Order`]s from here.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use enmasse_comm::Channel;

use super::leader::Rules;
use super::leader_server::{LeaderServer, names_loopback};
use super::member::{Member, MemberAction, MemberEvent};
use super::message::{AgentInfo, Assigned, Decision, ToMember, WorkersEnd, receive, send};
use super::{Endpoint, Tell};
use crate::environment::ports::bind_any;

/// Time limit of an attempt to reach a leader.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// An order to the launcher's thread.
pub(super) enum Order {
    /// Run workers. The first byte of the pipe asks to stop them, the second one to kill them. The socket reserves the
    /// port of rank 0's store until then.
    Start { assigned: Assigned, recall: PipeReader, reserved: Option<TcpListener> },
    /// Exit.
    Exit(Decision),
}

/// A notice to an agent. Connections are numbered, so that late notices of an older one can be told apart.
pub(super) enum Notice {
    Connected(Result<Channel, String>),
    Message(u64, ToMember),
    Lost(u64),
    WorkersEnded(WorkersEnd),
    StopRequest(i32),
}

/// The agent's settings.
#[derive(Clone)]
pub(super) struct Setting {
    pub(super) endpoint: Endpoint,
    pub(super) job: String,
    pub(super) info: AgentInfo,
    pub(super) rules: Rules,
    pub(super) tell: Tell,
    /// The hall, while this agent leads.
    pub(super) leader_server: Arc<Mutex<Option<LeaderServer>>>,
}

pub(super) struct Agent {
    setting: Setting,
    origin: Instant,
    member: Member,
    notices: Sender<Notice>,
    orders: Sender<Order>,
    /// Wakes the launcher's thread for an order.
    wake: Arc<OwnedFd>,
    channel: Option<Arc<Channel>>,
    links: u64,
    recall: Option<(PipeWriter, u8)>,
    reserved: Option<TcpListener>,
}

impl Agent {
    pub(super) fn new(setting: Setting, notices: Sender<Notice>, orders: Sender<Order>, wake: Arc<OwnedFd>) -> Self {
        let origin = Instant::now();
        let member = Member::new(setting.info.clone(), setting.rules.timing, Duration::ZERO);
        Agent { setting, origin, member, notices, orders, wake, channel: None, links: 0, recall: None, reserved: None }
    }

    /// Runs until the agent exits, or the launcher's thread has ended.
    pub(super) fn run(mut self, inbox: &Receiver<Notice>) {
        let mut goes_on = self.handle(MemberEvent::Tick);
        while goes_on {
            let now = self.origin.elapsed();
            let deadline = self.member.deadline();
            // This wait has no deadline, but an owner: the launcher's thread holds the other end.
            let left = deadline.map_or(Duration::from_secs(3600), |deadline| deadline.saturating_sub(now));
            let notice = match inbox.recv_timeout(left) {
                Ok(notice) => Some(notice),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let event = notice.map_or(Some(MemberEvent::Tick), |notice| self.event(notice));
            goes_on = event.is_none_or(|event| self.handle(event));
        }
    }

    fn event(&mut self, notice: Notice) -> Option<MemberEvent> {
        Some(match notice {
            Notice::Connected(Ok(channel)) => {
                self.links += 1;
                let channel = Arc::new(channel);
                let link = self.links;
                let notices = self.notices.clone();
                self.channel = Some(channel.clone());
                let reader = std::thread::Builder::new().name("enmasse-agent-reader".into());
                let reading = reader.spawn(move || read(&channel, link, &notices));
                if reading.is_err() {
                    return Some(MemberEvent::NotLinked { why: "cannot start a thread".into() });
                }
                MemberEvent::Linked { port: self.reserve() }
            }
            Notice::Connected(Err(why)) => MemberEvent::NotLinked { why },
            Notice::Message(link, message) if link == self.links => MemberEvent::Message(message),
            Notice::Lost(link) if link == self.links => {
                self.channel = None;
                MemberEvent::Lost
            }
            Notice::Message(..) | Notice::Lost(_) => return None,
            Notice::WorkersEnded(end) => {
                self.recall = None;
                MemberEvent::WorkersEnded { end, port: self.reserve() }
            }
            Notice::StopRequest(signal) => {
                // The leader ends the job.
                if let Some(leader_server) = self.setting.leader_server().as_ref() {
                    leader_server.shut_down(signal);
                }
                MemberEvent::StopRequest { signal }
            }
        })
    }

    /// Handles an event; false once the agent has exited.
    fn handle(&mut self, event: MemberEvent) -> bool {
        for action in self.member.handle(self.origin.elapsed(), event) {
            match action {
                MemberAction::Connect => self.connect(),
                MemberAction::Wait { why, left } => {
                    (self.setting.tell)(&format!(
                        "waiting for the leading node, up to {:.0} s: {why}",
                        left.as_secs_f64()
                    ));
                }
                MemberAction::Disconnect => {
                    self.channel.take().into_iter().for_each(|channel| channel.close());
                    self.links += 1;
                }
                MemberAction::Send(message) => self.channel.iter().for_each(|channel| send(channel, &message)),
                MemberAction::Start(assigned) => self.start(assigned),
                MemberAction::Stop { why } => self.recall(1, &why),
                MemberAction::Kill { why } => self.recall(2, &why),
                MemberAction::Exit(decision) => {
                    self.order(Order::Exit(decision));
                    return false;
                }
            }
        }
        true
    }

    /// Connects in a separate thread, since connecting takes time and signals must be handled meanwhile.
    fn connect(&self) {
        let (setting, notices) = (self.setting.clone(), self.notices.clone());
        // As good as any other random number, and different at each attempt.
        let name = setting.info.id.wrapping_add(self.origin.elapsed().as_nanos() as u64);
        let connect = move || {
            let led = setting.lead_unless_led(name);
            let result = led
                .map_err(|error| format!("cannot lead at {}: {error}", setting.endpoint))
                .and_then(|()| reach(&setting.endpoint, &setting.job));
            let _ = notices.send(Notice::Connected(result));
        };
        let thread = std::thread::Builder::new().name("enmasse-agent-connect".into()).spawn(connect);
        if let Err(error) = thread {
            let _ = self.notices.send(Notice::Connected(Err(error.to_string())));
        }
    }

    fn start(&mut self, assigned: Assigned) {
        match io::pipe() {
            Ok((recall, writer)) => {
                self.recall = Some((writer, 0));
                let reserved = self.reserved.take();
                self.order(Order::Start { assigned, recall, reserved });
            }
            Err(error) => {
                let report = format!("cannot make a pipe: {error}");
                let _ = self.notices.send(Notice::WorkersEnded(WorkersEnd::Failed { rank: None, code: 1, report }));
            }
        }
    }

    /// Asks the launcher's thread to stop (1) or kill (2) the workers.
    fn recall(&mut self, degree: u8, why: &str) {
        if let Some((pipe, done)) = &mut self.recall {
            (self.setting.tell)(&format!("{} the workers: {why}", if degree == 1 { "stopping" } else { "killing" }));
            while *done < degree {
                // The pipe is empty or holds one byte, so writing never blocks. It is closed if the workers have ended
                // already.
                let _ = pipe.write_all(&[0]);
                *done += 1;
            }
        }
    }

    fn order(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            // An event counter accepts any number below its maximum.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    /// A free port for rank 0's store, reserved until workers start.
    fn reserve(&mut self) -> u16 {
        let host =
            if names_loopback(&self.setting.endpoint.host) { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        if self.reserved.is_none() {
            self.reserved = bind_any(|port| TcpListener::bind((host, port))).ok();
        }
        let address = self.reserved.as_ref().and_then(|listener| listener.local_addr().ok());
        address.map_or(0, |address| address.port())
    }
}

impl Setting {
    /// Becomes the leader if there is none.
    fn lead_unless_led(&self, name: u64) -> io::Result<()> {
        let mut leader_server = self.leader_server();
        if leader_server.as_ref().is_some_and(LeaderServer::is_over) {
            *leader_server = None;
        }
        if leader_server.is_none() {
            *leader_server =
                LeaderServer::open(&self.endpoint, &self.job, self.rules.clone(), name, self.tell.clone())?;
        }
        Ok(())
    }

    fn leader_server(&self) -> MutexGuard<'_, Option<LeaderServer>> {
        self.leader_server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(channel: &Channel, link: u64, notices: &Sender<Notice>) {
    while let Some(message) = receive(channel) {
        if notices.send(Notice::Message(link, message)).is_err() {
            break;
        }
    }
    channel.close();
    let _ = notices.send(Notice::Lost(link));
}

/// Connects to the job's leader. The error says why there is none.
pub(super) fn reach(endpoint: &Endpoint, job: &str) -> Result<Channel, String> {
    let addresses = endpoint.addresses().map_err(|error| format!("{endpoint}: {error}"))?;
    let mut why = format!("{endpoint}: the name has no address");
    for address in addresses {
        match Channel::connect(address, &endpoint.token, job, CONNECT_LIMIT) {
            Ok(channel) => return Ok(channel),
            // Connected, but without an answer; an agent answers at once.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                why = format!("{endpoint}: the listener does not answer like an agent: is it another program's port?");
            }
            Err(error) => why = format!("{endpoint}: {error}"),
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use enmasse_comm::Token;

    #[test]
    fn a_port_of_another_program_is_no_leader() {
        // It accepts connections, and sends nothing.
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = other.local_addr().unwrap().port();
        let endpoint = Endpoint { host: "127.0.0.1".into(), port, token: Token::from_bytes([7; 32]) };
        let why = reach(&endpoint, "job").unwrap_err();
        assert!(why.ends_with("does not answer like an agent: is it another program's port?"), "{why}");
    }
}
