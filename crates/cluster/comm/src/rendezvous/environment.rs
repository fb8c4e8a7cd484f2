//! The rendezvous that a launcher describes in the environment: torchrun's variables, and a few of enmasse's own.

use std::net::TcpListener;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};

use super::{MeetingPoint, Rendezvous};
use crate::error::JoinError;
use crate::token::Token;

impl Rendezvous {
    /// `env://`: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. All are required; an empty one counts as missing.
    ///
    /// The launcher may add ENMASSE_TOKEN_FD, a descriptor from which the token is read. Otherwise see
    /// [`Token::from_variables`]. For rank 0, ENMASSE_STORE_FD is the descriptor of a listening socket. ENMASSE_JOB, or else torchrun's
    /// TORCHELASTIC_RUN_ID, is the job's name; TORCHELASTIC_RESTART_COUNT is its attempt. ENMASSE_JOIN_TIMEOUT is how many
    /// seconds ranks wait for all to join, ENMASSE_HEARTBEAT after how many seconds without a sign of life a rank is
    /// declared silent.
    /// TORCHELASTIC_USE_AGENT_STORE=True means that the address is the one of torchrun's agent, through whose store the
    /// ranks then find each other.
    ///
    /// # Errors
    /// A variable is missing or has an impossible value, or the token is refused.
    pub fn from_environment() -> Result<Self, JoinError> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// The same from any source of variables.
    ///
    /// # Errors
    /// A variable is missing or has an impossible value, or the token is refused.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, JoinError> {
        let variable =
            |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let required = |name: &'static str| {
            let problem = "is not set: env:// needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT";
            variable(name).ok_or_else(|| JoinError::Variable { name, problem: problem.into() })
        };
        let rank = number("RANK", &required("RANK")?)?;
        let world_size = number("WORLD_SIZE", &required("WORLD_SIZE")?)?;
        let (host, port) = (required("MASTER_ADDR")?, required("MASTER_PORT")?);
        let port: u16 = number("MASTER_PORT", &port)?;
        // An IPv6 address needs brackets before a port, and may already have them.
        let bare = host.contains(':') && !host.starts_with('[');
        let host = if bare { format!("[{host}]") } else { host };
        let mut rendezvous = Rendezvous::tcp(&format!("tcp://{host}:{port}"), rank, world_size)?;

        if let Some(job) = variable("ENMASSE_JOB").or_else(|| variable("TORCHELASTIC_RUN_ID")) {
            rendezvous.job = job;
        }
        if let Some(attempt) = variable("TORCHELASTIC_RESTART_COUNT") {
            rendezvous.attempt = number("TORCHELASTIC_RESTART_COUNT", &attempt)?;
        }
        if let Some(text) = variable("ENMASSE_JOIN_TIMEOUT") {
            rendezvous.join_timeout = seconds("ENMASSE_JOIN_TIMEOUT", &text)?;
        }
        if let Some(text) = variable("ENMASSE_HEARTBEAT") {
            rendezvous.heartbeat = seconds("ENMASSE_HEARTBEAT", &text)?;
        }
        if variable("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True") {
            let local: Option<usize> =
                variable("LOCAL_WORLD_SIZE").map(|text| number("LOCAL_WORLD_SIZE", &text)).transpose()?;
            rendezvous.meeting_point = MeetingPoint::AgentStore { same_machine: local == Some(world_size) };
        }
        if let Some(text) = variable("ENMASSE_TOKEN_FD") {
            const NAME: &str = "ENMASSE_TOKEN_FD";
            let descriptor = inherited(NAME, &text)?;
            let token = Token::from_descriptor(std::os::fd::AsFd::as_fd(&descriptor));
            rendezvous.token = Some(token.map_err(|error| unusable(NAME, &text, &error))?);
        } else {
            rendezvous.token = Token::from_variables(&variable)?;
        }
        if let Some(text) = variable("ENMASSE_STORE_FD").filter(|_| rank == 0 && world_size > 1) {
            const NAME: &str = "ENMASSE_STORE_FD";
            let descriptor = inherited(NAME, &text)?;
            match rustix::net::sockopt::socket_acceptconn(&descriptor) {
                Ok(true) => rendezvous.listener = Some(TcpListener::from(descriptor)),
                Ok(false) => return Err(unusable(NAME, &text, &"it does not listen")),
                Err(error) => return Err(unusable(NAME, &text, &error)),
            }
        }
        Ok(rendezvous)
    }
}

fn number<T: std::str::FromStr>(name: &'static str, text: &str) -> Result<T, JoinError> {
    text.parse().map_err(|_| JoinError::Variable { name, problem: format!("is {text:?}: it must be a whole number") })
}

fn seconds(name: &'static str, text: &str) -> Result<Duration, JoinError> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| JoinError::Variable { name, problem: format!("is {text:?}: it must be a number of seconds") })
}

fn unusable(name: &'static str, text: &str, why: &dyn std::fmt::Display) -> JoinError {
    JoinError::Variable { name, problem: format!("is {text:?}, which cannot be used as a descriptor: {why}") }
}

/// A copy of a descriptor that the launcher left open. The original is unchanged, except that child processes do not
/// inherit it.
fn inherited(name: &'static str, text: &str) -> Result<OwnedFd, JoinError> {
    let number: RawFd = number(name, text)?;
    if number < 0 {
        return Err(unusable(name, text, &"it is negative"));
    }
    // SAFETY: used for three calls, which fail cleanly on a number that is not open and touch only its flags.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let copy = fcntl_getfd(descriptor)
        .and_then(|flags| fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC))
        .and_then(|()| fcntl_dupfd_cloexec(descriptor, 3));
    copy.map_err(|error| unusable(name, text, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn parse(variables: &[(&str, &str)]) -> Result<Rendezvous, String> {
        let find = |name: &str| variables.iter().rfind(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Rendezvous::from_variables(&find).map_err(|error| error.to_string())
    }

    const COMPLETE: [(&str, &str); 4] =
        [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")];

    fn with(more: &[(&'static str, &str)]) -> Result<Rendezvous, String> {
        parse(&[&COMPLETE[..], more].concat())
    }

    #[test]
    fn all_four_are_required_and_empty_is_missing() {
        let complete = with(&[]).unwrap();
        assert_eq!((complete.rank, complete.world_size, &*complete.address), (1, 4, "10.0.0.1:29500"));
        for (name, _) in COMPLETE {
            for error in [with(&[(name, " ")]).unwrap_err(), with(&[(name, "")]).unwrap_err()] {
                assert!(error.starts_with(&format!("{name} is not set: ")), "{error}");
            }
        }
    }

    #[test]
    fn malformed_variables_are_named() {
        let check = |name: &'static str, value: &str, expected: &str| {
            let error = with(&[(name, value)]).unwrap_err();
            assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        };
        check("RANK", "-1", "RANK is \"-1\"");
        check("RANK", "4", "rank 4 of 4 is impossible");
        check("WORLD_SIZE", "four", "WORLD_SIZE is \"four\"");
        check("MASTER_PORT", "65536", "MASTER_PORT is \"65536\"");
        check(
            "ENMASSE_TOKEN",
            "short",
            "ENMASSE_TOKEN is shorter than 16 bytes: make a secret with `openssl rand -hex 32`",
        );
        check(
            "ENMASSE_TOKEN",
            "xxxxxxxxxxxxxxxx",
            "ENMASSE_TOKEN has fewer than 6 different bytes: make a secret with",
        );
        check("ENMASSE_TOKEN_FD", "99999", "cannot be used as a descriptor");
        check("ENMASSE_TOKEN_FD", "-1", "it is negative");
        check("TORCHELASTIC_RESTART_COUNT", "x", "TORCHELASTIC_RESTART_COUNT is \"x\"");
        check("ENMASSE_JOIN_TIMEOUT", "-1", "ENMASSE_JOIN_TIMEOUT is \"-1\": it must be a number of seconds");
        check("ENMASSE_HEARTBEAT", "soon", "ENMASSE_HEARTBEAT is \"soon\": it must be a number of seconds");
    }

    #[test]
    fn ranks_wait_ten_minutes_unless_told_otherwise() {
        let check = |more: &[(&'static str, &str)], seconds: f64| {
            assert_eq!(with(more).unwrap().join_timeout, Duration::from_secs_f64(seconds), "{more:?}");
        };
        check(&[], 600.0);
        check(&[("ENMASSE_JOIN_TIMEOUT", "0.5")], 0.5);
    }

    #[test]
    fn a_rank_is_silent_after_five_seconds_unless_told_otherwise() {
        let check = |more: &[(&'static str, &str)], seconds: f64| {
            assert_eq!(with(more).unwrap().heartbeat, Duration::from_secs_f64(seconds), "{more:?}");
        };
        check(&[], 5.0);
        check(&[("ENMASSE_HEARTBEAT", "90")], 90.0);
    }

    #[test]
    fn names_are_found_in_order() {
        let both = with(&[("ENMASSE_JOB", "ours"), ("TORCHELASTIC_RUN_ID", "theirs")]).unwrap();
        assert_eq!((&*both.job, both.attempt), ("ours", 0));
        let theirs = with(&[("TORCHELASTIC_RUN_ID", "theirs"), ("TORCHELASTIC_RESTART_COUNT", "3")]).unwrap();
        assert_eq!((&*theirs.job, theirs.attempt), ("theirs", 3));
        assert_eq!(with(&[("MASTER_ADDR", "fe80::1")]).unwrap().address, "[fe80::1]:29500");
    }

    #[test]
    fn the_agent_of_torchrun_is_asked_when_the_variable_says_so() {
        let check = |more: &[(&'static str, &str)], expected: MeetingPoint| {
            assert_eq!(with(more).unwrap().meeting_point, expected, "{more:?}");
        };
        const AGENT: (&str, &str) = ("TORCHELASTIC_USE_AGENT_STORE", "True");
        check(&[("TORCHELASTIC_USE_AGENT_STORE", "False")], MeetingPoint::Address);
        check(&[AGENT], MeetingPoint::AgentStore { same_machine: false });
        check(&[AGENT, ("LOCAL_WORLD_SIZE", "2")], MeetingPoint::AgentStore { same_machine: false });
        check(&[AGENT, ("LOCAL_WORLD_SIZE", "4")], MeetingPoint::AgentStore { same_machine: true });
    }

    #[test]
    fn descriptors_are_taken_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = listener.as_raw_fd().to_string();
        let rendezvous = with(&[("RANK", "0"), ("ENMASSE_STORE_FD", &number)]).unwrap();
        assert_eq!(rendezvous.listener.unwrap().local_addr().unwrap(), listener.local_addr().unwrap());
        assert!(with(&[("ENMASSE_STORE_FD", &number)]).unwrap().listener.is_none(), "only rank 0 listens");

        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &[7; 32]).unwrap();
        let number = file.as_raw_fd().to_string();
        let rendezvous = with(&[("ENMASSE_TOKEN_FD", &number), ("ENMASSE_TOKEN", "another, ignored text")]).unwrap();
        assert_eq!(rendezvous.token.unwrap().as_bytes(), &[7; 32]);
        assert!(with(&[("RANK", "0"), ("ENMASSE_STORE_FD", &number)]).unwrap_err().contains("cannot be used"));
    }
}
