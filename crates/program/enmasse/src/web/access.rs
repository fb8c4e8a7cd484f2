//! Who may read the pages: those who know the token, by a name of loopback.

use std::fs::File;
use std::io::{self, Read};

use super::Request;

/// Bytes of a token.
const TOKEN_BYTES: usize = 16;

/// What a request must show. Each start of a server has its own token.
pub struct Access {
    port: u16,
    token: String,
}

impl Access {
    pub fn new(port: u16) -> io::Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Access { port, token: bytes.iter().map(|byte| format!("{byte:02x}")).collect() })
    }

    /// The address to open.
    pub fn link(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    /// Refuses a request with a line that says why.
    pub fn check(&self, request: &Request) -> Result<(), &'static str> {
        // A foreign name that its owner has pointed here would make the pages part of that owner's site.
        let names = ["127.0.0.1", "localhost", "[::1]"].map(|name| format!("{name}:{}", self.port));
        let is_own = |host: &str| names.iter().any(|name| name.eq_ignore_ascii_case(host));
        if !request.header("host").is_some_and(is_own) {
            return Err("this address is not one of this machine's: open the printed link");
        }
        // Cookies know no ports, so a page of another server on this machine has the cookie sent too.
        let is_foreign = |origin: &str| !origin.strip_prefix("http://").is_some_and(is_own);
        if request.header("origin").is_some_and(is_foreign) {
            return Err("the request comes from another page");
        }
        let bearer = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let shown = [request.query("token"), bearer, self.cookie_of(request)];
        match shown.into_iter().flatten().any(|token| self.is_token(token)) {
            true => Ok(()),
            false => Err("the token is missing or wrong: open the link that enmasse printed"),
        }
    }

    /// The cookie for a request that showed the token in its address, so that links need none.
    pub fn cookie(&self, request: &Request) -> Option<String> {
        request.query("token")?;
        Some(format!("{}={}; HttpOnly; SameSite=Strict; Path=/", self.cookie_name(), self.token))
    }

    /// Servers on other ports have cookies of their own.
    fn cookie_name(&self) -> String {
        format!("enmasse-{}", self.port)
    }

    fn cookie_of<'a>(&self, request: &'a Request) -> Option<&'a str> {
        let name = self.cookie_name();
        let pairs = request.header("cookie")?.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.into_iter().find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    /// The time that it takes says nothing of how much of the token is right.
    fn is_token(&self, token: &str) -> bool {
        blake3::hash(token.as_bytes()) == blake3::hash(self.token.as_bytes())
    }
}
