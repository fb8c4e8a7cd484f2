//! Runs the real program on tiny images, always with a deadline.

pub mod cluster;
pub mod lease;
pub mod network;
pub mod runs;
pub mod terminal;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use jpeg_encoder::{ColorType, Encoder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Far longer than any run here, on however busy a machine. It only ends a test that would hang.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The JSON objects on standard output, which must contain nothing else. The event of the start is left out.
    pub fn json(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        self.stdout.lines().map(parse).filter(|line: &Value| line["event"] != "start").collect()
    }

    /// The same, for a run that must have succeeded.
    #[track_caller]
    pub fn well(self) -> Self {
        assert_eq!(self.code, Some(0), "stderr: {}\nstdout: {}", self.stderr, self.stdout);
        self
    }
}

/// The command failed with this code and one line on standard error, which contains all of these.
#[track_caller]
pub fn refused(ended: &Ended, code: i32, mentions: &[&str]) {
    assert_eq!(ended.stderr.lines().count(), 1, "not one line: {}", ended.stderr);
    failed(ended, code, mentions);
}

/// The run failed with this code; after the facts comes one line that contains all of these.
#[track_caller]
pub fn failed(ended: &Ended, code: i32, mentions: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    let line = ended.stderr.lines().last().unwrap_or_default();
    let errors = ended.stderr.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.collect::<Vec<_>>(), [line], "{}", ended.stderr);
    for mention in mentions {
        assert!(line.contains(mention), "{mention:?} is not in {line:?}");
    }
}

/// The program, without variables that affect it.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_enmasse"));
    plain_environment(&mut command);
    command
}

/// Removes variables that a launcher around the tests, or a user, may have set, and hides the machine's own GPUs.
pub fn plain_environment(command: &mut Command) {
    command.env("CUDA_VISIBLE_DEVICES", "");
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let launcher = [
            "RANK",
            "WORLD_SIZE",
            "LOCAL_",
            "GROUP_",
            "MASTER_",
            "TORCHELASTIC_",
            "ENMASSE_",
            "OMPI_",
            "PMI",
            "SLURM",
            "JSM_",
            "LSB_",
            "KUBERNETES_",
            "PET_",
            "AWS_",
        ];
        if launcher.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name.as_ref());
        }
    }
}

/// Runs the program to its end.
#[track_caller]
pub fn enmasse<S: AsRef<str>>(arguments: &[S]) -> Ended {
    finish(program().args(arguments.iter().map(AsRef::as_ref)))
}

/// Runs a command to its end.
#[track_caller]
pub fn finish(command: &mut Command) -> Ended {
    Running::start(command).finish()
}

/// A running program. Dropped before its end, it is killed.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: mpsc::Receiver<String>,
    ended: bool,
}

impl Running {
    /// Starts a command with its streams captured.
    pub fn start(command: &mut Command) -> Self {
        Self::spawn(command.stdin(Stdio::null()))
    }

    /// Starts a command that reads what is written to the second.
    pub fn start_with_input(command: &mut Command) -> (Self, ChildStdin) {
        let mut running = Self::spawn(command.stdin(Stdio::piped()));
        let input = running.child.stdin.take().expect("piped");
        (running, input)
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut stream = child.stderr.take().expect("piped");
        let (sender, stderr) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            // Invalid UTF-8 shows in the comparison that fails.
            let _ = stream.read_to_string(&mut text);
            let _ = sender.send(text);
        });
        Running { child, stdout, stderr, ended: false }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The next line of standard output. The event of the start is left out.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let guard = Guard::new(self.pid());
        self.stdout.read_line(&mut line).expect("readable");
        if line.starts_with("{\"event\":\"start\"") {
            line.clear();
            self.stdout.read_line(&mut line).expect("readable");
        }
        guard.end("a line");
        line
    }

    /// The child processes, in the order of their start.
    pub fn children(&self) -> Vec<i32> {
        let list = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).expect("readable");
        list.split_whitespace().map(|pid| pid.parse().expect("a number")).collect()
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for the end.
    #[track_caller]
    pub fn finish(mut self) -> Ended {
        let guard = Guard::new(self.pid());
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).expect("text");
        let status: ExitStatus = self.child.wait().expect("waits");
        guard.end("the end");
        self.ended = true;
        let stderr = self.stderr.recv_timeout(DEADLINE).expect("standard error ends with the program");
        Ended { code: status.code(), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Kills a process that exceeds the deadline, so that the test that waits for it continues, and fails.
struct Guard {
    done: mpsc::Sender<()>,
    late: thread::JoinHandle<bool>,
}

impl Guard {
    fn new(pid: i32) -> Self {
        let (done, wait) = mpsc::channel();
        let late = thread::spawn(move || {
            let late = wait.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout);
            if late {
                send(pid, Signal::KILL);
            }
            late
        });
        Guard { done, late }
    }

    #[track_caller]
    fn end(self, what: &str) {
        let _ = self.done.send(());
        assert!(!self.late.join().expect("no panic"), "{what} did not come within {DEADLINE:?}");
    }
}

/// Sends a signal; the process may be gone.
pub fn send(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).expect("a process number"), signal);
}

/// Whether the process exists, including a zombie.
pub fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Connects to a port as another program does, once it listens. Returns when the port has refused the connection.
pub fn refused_stranger(address: &str) {
    let mut stranger = until("the port", || TcpStream::connect(address).ok());
    stranger.set_read_timeout(Some(DEADLINE)).expect("a limit");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sends");
    let end = stranger.read(&mut [0]);
    // A reset is equivalent to an end of file.
    let is_closed = end.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |read| *read == 0);
    assert!(is_closed, "{end:?}");
}

/// Calls `ask` repeatedly until it has an answer, or the deadline has passed. Between two calls the core is free for others.
#[track_caller]
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within {DEADLINE:?}");
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// A folder of three class folders with `each` images: dark, light, and red ones, alternately PNG and JPEG.
pub fn images(root: &Path, each: usize) -> PathBuf {
    let data = root.join("images");
    for (label, class) in ["dark", "light", "red"].into_iter().enumerate() {
        let folder = data.join(class);
        fs::create_dir_all(&folder).expect("creates");
        for number in 0..each {
            let width = 12 + number as u16 % 5;
            let height = 14;
            let shade = |pixel: usize| (pixel * 31 + number * 17) as u8 % 60;
            let pixels: Vec<u8> = (0..usize::from(width) * usize::from(height))
                .flat_map(|pixel| match label {
                    0 => [shade(pixel); 3],
                    1 => [190 + shade(pixel); 3],
                    _ => [200, shade(pixel), shade(pixel)],
                })
                .collect();
            match number % 2 {
                0 => write_png(&folder.join(format!("{number:03}.png")), width, height, &pixels),
                _ => write_jpeg(&folder.join(format!("{number:03}.jpg")), width, height, &pixels, ColorType::Rgb),
            }
        }
    }
    data
}

/// Writes a tar archive as WebDataset's are: of each `(class, name)` in `files` the image below `data`, and its label.
pub fn write_archive(path: &Path, data: &Path, files: &[(String, String)]) {
    let mut archive = tar::Builder::new(fs::File::create(path).expect("creates"));
    for (class, name) in files {
        let mut label = tar::Header::new_gnu();
        label.set_size(class.len() as u64);
        let stem = name.split('.').next().unwrap_or_default();
        archive.append_path_with_name(data.join(class).join(name), format!("{class}/{name}")).expect("appends");
        archive.append_data(&mut label, format!("{class}/{stem}.cls"), class.as_bytes()).expect("appends");
    }
    archive.finish().expect("writes");
}

/// Writes a JPEG file of any colour type.
pub fn write_jpeg(path: &Path, width: u16, height: u16, pixels: &[u8], color: ColorType) {
    let encoder = Encoder::new_file(path, 90).expect("creates");
    encoder.encode(pixels, width, height, color).expect("encodes");
}

/// Writes a PNG file of RGB pixels.
pub fn write_png(path: &Path, width: u16, height: u16, pixels: &[u8]) {
    let mut encoder = png::Encoder::new(fs::File::create(path).expect("creates"), width.into(), height.into());
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().expect("writes");
    writer.write_image_data(pixels).expect("writes");
}

/// Every file below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for entry in entries {
        let path = entry.expect("readable").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// Asserts that a run folder holds only complete files, and no temporary ones.
#[track_caller]
pub fn assert_whole(folder: &Path) {
    for path in files(folder) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(!name.ends_with(".tmp") && !name.contains(".enmasse-"), "left behind: {}", path.display());
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("safetensors") if enmasse_train::is_checkpoint(&path).expect("a header") => {
                drop(enmasse_train::Checkpoint::load(&path).expect("a whole checkpoint"));
            }
            Some("safetensors" | "pth") => drop(enmasse_weights::read(&path).expect("whole weights")),
            Some("json") => {
                let text = fs::read_to_string(&path).expect("text");
                serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            }
            _ => {}
        }
    }
}

/// The records of a run's `metrics.jsonl`.
pub fn metrics(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).expect("there is one");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Writes the tensors of a checkpoint as a bare weights file, like those of other programs.
pub fn strip_metadata(checkpoint: &str, bare: &str) {
    let bytes = fs::read(checkpoint).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    fs::write(bare, safetensors::serialize(tensors.tensors(), None).unwrap()).unwrap();
}
