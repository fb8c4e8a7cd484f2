//! Several hosts on this machine, made of namespaces. Each has its own name, address, loopback interface and shared memory;
//! files, users and process numbers are shared. Nothing of them has a name outside, so networks do not disturb each
//! other, and a test that is killed leaves none.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use test_support::Need;

use super::{Ended, Guard, finish, plain_environment};

/// The process that keeps a host alive. For every line that it reads, and at the end of its input, it kills what else
/// runs on the host.
const ANCHOR: &str = r#"
hostname "$1" && mount --bind "$2" /etc/hosts && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && ip link set lo up || exit
kill_all() {
    found=1
    while [ "$found" ]; do
        found=
        for process in /proc/[0-9]*; do
            pid=${process#/proc/}
            [ "$process/ns/net" -ef "/proc/$$/ns/net" ] && [ "$pid" != $$ ] && kill -KILL "$pid" && found=1
        done 2>/dev/null
    done
}
echo ready
while read -r line; do kill_all; echo ready; done
kill_all
"#;

/// Hosts on one switch, which run until this is dropped.
pub struct Network {
    switch: Anchor,
    hosts: Vec<Anchor>,
    /// With the file that is `/etc/hosts` everywhere.
    folder: TempDir,
}

impl Network {
    /// Connects hosts of these names. `None` if the test is skipped.
    pub fn up(names: &[&str]) -> Option<Self> {
        Self::connect(names).map_err(|reason| test_support::skip(Need::Hosts, reason.trim())).ok()
    }

    fn connect(names: &[&str]) -> Result<Self, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let table = folder.path().join("hosts");
        let lines = (0..names.len()).map(|place| format!("{} {}\n", address(place), names[place]));
        fs::write(&table, format!("127.0.0.1 localhost\n{}", lines.collect::<String>())).expect("writes");
        let table = table.display().to_string();

        let switch = Anchor::start("switch", &table, None)?;
        switch.set_up("ip link add switch type bridge")?;
        switch.set_up("ip link set switch up")?;
        let mut network = Network { switch, hosts: Vec::new(), folder };
        for (place, name) in names.iter().enumerate() {
            let host = Anchor::start(name, &table, Some(&network.switch))?;
            let cable = format!("ip link add cable{place} type veth peer name eth0 netns {}", host.process.id());
            network.switch.set_up(&cable)?;
            network.switch.set_up(&format!("ip link set cable{place} master switch up"))?;
            host.set_up(&format!("ip address add {}/24 dev eth0", address(place)))?;
            host.set_up("ip link set eth0 up")?;
            network.hosts.push(host);
        }
        Ok(network)
    }

    /// Runs a program on a host, in the folder in which the command is started.
    pub fn command(&self, host: &str, program: &str) -> Command {
        self.hosts[self.place(host)].command(program)
    }

    /// A program that runs words on a host, as ssh does: with the host first. It works on every host.
    pub fn agent(&self) -> PathBuf {
        let cases = self.hosts.iter().map(|host| format!("{}) target={};;\n", host.name, host.process.id()));
        let enter = r#"exec nsenter --wdns=/ --target $target --net --uts --ipc --mount -- sh -c "$*""#;
        let text = format!("#!/bin/sh\ncase $1 in\n{}esac\nshift\n{enter}\n", cases.collect::<String>());
        let path = self.folder.path().join("agent");
        if !path.exists() {
            fs::write(&path, text).expect("writes");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        path
    }

    /// A process on one of the hosts with such a variable, which runs the program.
    #[track_caller]
    pub fn process_with(&self, variable: &str) -> i32 {
        let networks = self.hosts.iter().map(|host| fs::read_link(format!("/proc/{}/ns/net", host.process.id())));
        let networks: Vec<PathBuf> = networks.map(|link| link.expect("the host runs")).collect();
        let is_it = |pid: &i32| {
            let has = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            networks.contains(&has("ns/net"))
                && has("exe") == Path::new(env!("CARGO_BIN_EXE_enmasse"))
                && variables.split(|byte| *byte == 0).any(|found| found == variable.as_bytes())
        };
        let names = fs::read_dir("/proc").expect("a list of processes").flatten().map(|entry| entry.file_name());
        names.filter_map(|name| name.to_str()?.parse().ok()).find(is_it).expect("a process with that variable")
    }

    /// Lets a host resolve its own name to a loopback address, as Debian does.
    #[track_caller]
    pub fn resolve_own_name_to_loopback(&self, host: &str) {
        let table = self.folder.path().join("hosts");
        let own = self.folder.path().join(format!("hosts-{host}"));
        let lines = fs::read_to_string(table).expect("reads");
        fs::write(&own, lines.replace(&format!("{} {host}\n", self.address(host)), &format!("127.0.1.1 {host}\n")))
            .expect("writes");
        self.hosts[self.place(host)].set_up(&format!("mount --bind {} /etc/hosts", own.display())).expect("is mounted");
    }

    /// The address of a host.
    pub fn address(&self, host: &str) -> String {
        address(self.place(host))
    }

    /// Takes a host off the network. The others notice only silence.
    #[track_caller]
    pub fn cut(&self, host: &str) {
        self.cable(host, "nomaster");
    }

    /// Ends [`Network::cut`].
    #[track_caller]
    pub fn heal(&self, host: &str) {
        self.cable(host, "master switch");
    }

    /// A loss of power: the host is silent, and its processes are gone.
    #[track_caller]
    pub fn crash(&mut self, host: &str) {
        self.cut(host);
        let place = self.place(host);
        self.hosts[place].kill_all();
    }

    #[track_caller]
    fn cable(&self, host: &str, to: &str) {
        self.switch.set_up(&format!("ip link set cable{} {to}", self.place(host))).expect("the cable obeys");
    }

    #[track_caller]
    fn place(&self, host: &str) -> usize {
        self.hosts.iter().position(|anchor| anchor.name == host).expect("a host of the network")
    }
}

/// The address of the host that was named at this place.
fn address(place: usize) -> String {
    format!("10.213.0.{}", place + 1)
}

/// The first process of a host.
struct Anchor {
    name: String,
    process: Child,
    /// Whether the host has namespaces of users as well, since only root can do without.
    rootless: bool,
}

impl Anchor {
    /// Waits until the host is there, and otherwise says why it is not. Hosts share the namespace of users of `first`.
    fn start(name: &str, table: &str, first: Option<&Anchor>) -> Result<Self, String> {
        let rootless = !rustix::process::geteuid().is_root();
        let mut command = match first {
            Some(anchor) if rootless => anchor.enter(&["--user", "--preserve-credentials"], "unshare"),
            _ => with_system_path(Command::new("unshare")),
        };
        if rootless && first.is_none() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--net", "--uts", "--ipc", "--mount", "--propagation", "private", "--"]);
        command.args(["sh", "-c", ANCHOR, "sh", name, table]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = command.spawn().map_err(|error| format!("cannot start unshare: {error}"))?;
        let mut anchor = Anchor { name: name.to_owned(), process, rootless };
        anchor.wait_until_ready().map(|()| anchor)
    }

    /// Waits for the anchor's word. If it has ended instead, its error is returned.
    fn wait_until_ready(&mut self) -> Result<(), String> {
        let guard = Guard::new(self.process.id() as i32);
        let mut said = String::new();
        BufReader::new(self.process.stdout.as_mut().expect("piped")).read_line(&mut said).expect("readable");
        if said != "ready\n" {
            self.process.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        }
        guard.end("a host");
        if said == "ready\n" { Ok(()) } else { Err(said) }
    }

    fn kill_all(&mut self) {
        self.process.stdin.as_mut().expect("piped").write_all(b"kill\n").expect("the anchor reads");
        self.wait_until_ready().expect("all are killed");
    }

    /// Runs a command that prepares the host.
    fn set_up(&self, words: &str) -> Result<(), String> {
        let mut words = words.split(' ');
        let ended: Ended = finish(self.command(words.next().expect("a program")).args(words));
        if ended.code == Some(0) { Ok(()) } else { Err(ended.stderr) }
    }

    fn command(&self, program: &str) -> Command {
        let user: &[&str] = if self.rootless { &["--user", "--preserve-credentials"] } else { &[] };
        self.enter(&[user, &["--net", "--uts", "--ipc", "--mount"]].concat(), program)
    }

    /// A program in these namespaces of the anchor.
    fn enter(&self, namespaces: &[&str], program: &str) -> Command {
        let mut command = with_system_path(Command::new("sh"));
        // In another namespace of mounts, the folder must be found anew.
        command.args(["-c", r#"exec nsenter --wdns="$PWD" "$@""#, "sh", "--target", &self.process.id().to_string()]);
        command.args(namespaces).args(["--", program]);
        command
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let guard = Guard::new(self.process.id() as i32);
        let _ = self.process.wait();
        guard.end("the end of a host");
    }
}

/// Without variables that affect the program, and with the folders of programs that few but root have in their path.
fn with_system_path(mut command: Command) -> Command {
    plain_environment(&mut command);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}
