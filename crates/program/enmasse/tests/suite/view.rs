//! Runs as pages: who may read them, what they show while a run goes on, and what clients cannot do.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::common::{Running, enmasse, failed, images, program, refused, until, write_png};
use crate::report::trained;

/// A name that is a script wherever it is not escaped.
const HOSTILE: &str = "<script>alert(1)<|script>";

/// More than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A program that serves pages.
pub struct Served {
    running: Running,
    pub port: u16,
    pub token: String,
}

impl Served {
    pub fn start(arguments: &[&str]) -> Self {
        let mut running = Running::start(program().args(["view", "--port", "0"]).args(arguments));
        let line = running.line();
        let (port, token) = link(&line);
        Served { running, port, token }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// The whole answer to a request in which `TOKEN` and `HOST` stand for the right ones.
    fn ask(&self, head: &str, body: &[u8]) -> String {
        let mut stream = self.connect();
        let head = head.replace("TOKEN", &self.token).replace("HOST", &format!("127.0.0.1:{}", self.port));
        stream.write_all(format!("{head}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
        // A request may be refused while it is sent.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[track_caller]
    fn get(&self, path: &str) -> String {
        let answer = self.ask(&format!("GET {path} HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN"), b"");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        answer
    }

    /// The whole answer to what is sent as a form of the page would send it.
    pub fn send(&self, path: &str, kind: &str, body: &[u8]) -> String {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\nAuthorization: Bearer TOKEN");
        self.ask(&format!("{head}\r\nContent-Type: {kind}\r\nContent-Length: {length}"), body)
    }

    /// A stream of events.
    pub fn events(&self, path: &str) -> Events {
        let mut stream = self.connect();
        let head = format!("GET {path}?token={} HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", self.token, self.port);
        stream.write_all(head.as_bytes()).unwrap();
        Events(BufReader::new(stream))
    }
}

pub struct Events(BufReader<TcpStream>);

impl Events {
    /// Reads until a line has this text.
    #[track_caller]
    pub fn wait(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream ended before {text}");
        }
    }
}

/// The port and the token of a line with a link.
#[track_caller]
fn link(line: &str) -> (u16, String) {
    let rest = line.split_once("http://127.0.0.1:").unwrap_or_else(|| panic!("no link: {line}")).1;
    let (port, rest) = rest.split_once("/?token=").unwrap();
    (port.parse().unwrap(), rest.split_whitespace().next().unwrap().to_owned())
}

fn epoch(number: u64, loss: f64) -> String {
    format!(
        "{{\"event\":\"epoch\",\"epoch\":{number},\"train_loss\":{loss},\"val_loss\":0.75,\"seconds\":2.0,\"world_size\":1}}\n"
    )
}

/// A run folder with some epochs of ten, and no process that trains.
fn begun(folder: &Path, name: &str, epochs: u64) -> String {
    let run = folder.join(name);
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("config.toml"), "model = \"mlp\"\nepochs = 10\n").unwrap();
    fs::write(run.join("metrics.jsonl"), (0..epochs).map(|number| epoch(number, 1.5)).collect::<String>()).unwrap();
    run.display().to_string()
}

#[test]
fn strangers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(&[&begun(folder.path(), "one", 2)]);
    let check = |head: &str, status: u16, line: &str| {
        let answer = served.ask(head, b"");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(line), "{head}: {answer}");
        assert!(status == 200 || !answer.contains("<html"), "{head}: {answer}");
    };
    check("GET / HTTP/1.1\r\nHost: HOST", 403, "the token is missing or wrong");
    check("GET /?token=0123 HTTP/1.1\r\nHost: HOST", 403, "the token is missing or wrong");
    check("GET /metrics HTTP/1.1\r\nHost: HOST", 403, "the token is missing or wrong");
    check("GET /?token=TOKEN HTTP/1.1\r\nHost: evil.example", 403, "not one of this machine's");
    check("GET /?token=TOKEN HTTP/1.1\r\nHost: 127.0.0.1:1", 403, "not one of this machine's");
    check("GET /?token=TOKEN HTTP/1.1", 403, "not one of this machine's");
    check("GET /?token=TOKEN HTTP/1.1\r\nHost: HOST\r\nHost: evil.example", 400, "malformed");
    check("GET /?token=TOKEN HTTP/1.1\r\nHost: HOST\r\nOrigin: http://127.0.0.1:1", 403, "another page");
    check("nonsense", 400, "Bad Request");
    check("GET / HTTP/1.1\r\nHost: HOST\r\nOrigin: null", 403, "another page");
    check(&format!("GET /?token=TOKEN HTTP/1.1\r\nHost: HOST\r\nX: {}", "x".repeat(17 << 10)), 431, "Too Large");
    check(&format!("GET / HTTP/1.1\r\nHost: HOST{}", "\r\nX: x".repeat(64)), 431, "Too Large");
    check("PUT /?token=TOKEN HTTP/1.1\r\nHost: HOST", 405, "pages are read");

    // The token once gives a cookie, by which pages need none.
    let first = served.ask("GET /?token=TOKEN HTTP/1.1\r\nHost: HOST", b"");
    let cookie = first.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/"), "{cookie}");
    assert!(first.contains("content-security-policy: default-src 'none'; "), "{first}");
    assert!(
        first.contains("x-content-type-options: nosniff") && first.contains("referrer-policy: same-origin"),
        "{first}"
    );
    let (cookie, _) = cookie.split_once(';').unwrap();
    check(&format!("GET /run/0 HTTP/1.1\r\nHost: HOST\r\nCookie: a=b; {cookie}"), 200, "<h1>one</h1>");
}

#[test]
fn connections_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(&[&begun(folder.path(), "one", 2)]);
    let idle: Vec<TcpStream> = (0..64).map(|_| served.connect()).collect();
    let mut answer = String::new();
    served.connect().read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("too many connections"), "{answer}");
    drop(idle);
    let is_served = || {
        let mut stream = served.connect();
        let rest = format!("HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\r\n", served.port);
        let head = format!("GET /?token={} {rest}", served.token);
        let mut answer = String::new();
        // A connection that is one too many may be reset.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        answer.starts_with("HTTP/1.1 200 ").then_some(())
    };
    until("a page", is_served);
}

#[test]
fn a_connection_has_several_requests() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(&[&begun(folder.path(), "one", 2)]);
    let mut stream = BufReader::new(served.connect());
    // The refusal in the middle has a body that nobody reads.
    for (token, sent, status) in [(&served.token[..], "", 200), ("x", "body", 403), (&served.token, "", 200)] {
        let port = served.port;
        let length = sent.len();
        let head =
            format!("POST /icon.svg?token={token} HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: {length}");
        let head = if sent.is_empty() { head.replace("POST", "GET") } else { head };
        stream.get_mut().write_all(format!("{head}\r\n\r\n{sent}").as_bytes()).unwrap();
        let mut line = String::new();
        let mut length = 0;
        stream.read_line(&mut line).unwrap();
        assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{line}");
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).unwrap();
            if let Some(told) = line.strip_prefix("content-length: ") {
                length = told.trim().parse().unwrap();
            }
        }
        stream.read_exact(&mut vec![0; length]).unwrap();
    }
}

#[test]
fn addresses_do_not_reach_files() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(&[&begun(folder.path(), "one", 2)]);
    for path in [
        "/run/0/config.toml",
        "/run/0/../../etc/passwd",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/run/0/..%2fconfig.svg",
        "/run/1",
        "/run/-1",
        "/run/18446744073709551616",
        "/etc/passwd",
    ] {
        let answer = served.ask(&format!("GET {path} HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN"), b"");
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.ends_with("there is no such page\n"), "{path}: {answer}");
    }
}

#[test]
fn an_epoch_appears_while_the_page_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let run = begun(folder.path(), "one", 2);
    let served = Served::start(&[&run]);
    let mut clients: Vec<Events> = (0..10).map(|_| served.events("/run/0/events")).collect();
    clients.iter_mut().for_each(|client| client.wait("2 of 10"));
    // One of them closes its page.
    drop(clients.pop());
    let mut metrics = OpenOptions::new().append(true).open(Path::new(&run).join("metrics.jsonl")).unwrap();
    let line = epoch(2, 0.125);
    // A line that is not whole yet is no epoch.
    let (begin, end) = line.split_at(30);
    metrics.write_all(begin.as_bytes()).unwrap();
    metrics.write_all(end.as_bytes()).unwrap();
    clients.iter_mut().for_each(|client| client.wait("3 of 10"));
    assert!(served.get("/run/0").contains("<dd>0.1250</dd>"));
    // A run that goes on from an earlier epoch writes the file anew.
    let other = Path::new(&run).join("new");
    fs::write(&other, epoch(0, 1.0)).unwrap();
    fs::rename(&other, Path::new(&run).join("metrics.jsonl")).unwrap();
    clients.iter_mut().for_each(|client| client.wait("1 of 10"));
}

#[test]
fn many_epochs_make_a_small_page() {
    let folder = tempfile::tempdir().unwrap();
    let run = begun(folder.path(), "one", 50_000);
    let served = Served::start(&[&run]);
    let (page, curves) = (served.get("/run/0"), served.get("/run/0/curves.svg"));
    assert!(page.contains("50000 of 10") && page.len() < 100_000, "{} bytes", page.len());
    assert!(curves.contains("<svg") && curves.len() < 200_000, "{} bytes", curves.len());
}

#[test]
fn runs_are_listed_and_their_figures_are_for_prometheus_too() {
    let folder = tempfile::tempdir().unwrap();
    begun(folder.path(), HOSTILE, 2);
    begun(folder.path(), "a\"b", 10);
    let broken = begun(folder.path(), "broken", 1);
    fs::write(Path::new(&broken).join("metrics.jsonl"), "{\n").unwrap();
    let served = Served::start(&[&folder.path().display().to_string()]);
    let page = served.get("/");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;|script&gt;") && !page.contains("<script>"), "{page}");
    assert!(page.contains("10 of 10") && page.contains(">finished<") && page.contains(">stopped<"), "{page}");
    assert!(served.get("/run/2").contains("metrics.jsonl: a line after epoch 0 is malformed"));
    let metrics = served.get("/metrics");
    let body = metrics.split_once("\r\n\r\n").unwrap().1;
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("enmasse_") && name.contains("{run=\"") && name.ends_with("\"}"), "{line}");
        value.parse::<f64>().unwrap();
    }
    assert!(body.contains("enmasse_epoch{run=\"a\\\"b\"} 10\n"), "{body}");
    // A run that begins later is found.
    begun(folder.path(), "zz", 3);
    until("the new run", || served.get("/").contains(">zz</a>").then_some(()));
}

#[test]
fn each_rank_has_its_figures() {
    let folder = tempfile::tempdir().unwrap();
    let run = begun(folder.path(), "one", 1);
    let metrics = Path::new(&run).join("metrics.jsonl");
    // Of the third rank nothing is known, and no GPU tells how busy it is.
    let ranks = "\"ranks\":{\"images_per_second\":[30.25,10.0,null],\"data_wait\":[0.5,0.0],\"rank_wait\":[0.0,0.25,null],\
        \"resident_bytes\":[104857600,1],\"device_bytes\":[null,2097152]}";
    let line = epoch(1, 0.5).replace("\"world_size\":1", &format!("\"world_size\":3,{ranks}"));
    OpenOptions::new().append(true).open(&metrics).unwrap().write_all(line.as_bytes()).unwrap();
    let served = Served::start(&[&run]);
    let page = served.get("/run/0");
    let row = |cells: &[&str]| format!("<tr><td>{}</td></tr>", cells.join("</td><td>"));
    for cells in [
        ["0", "30.2", "50.00 %", "0.00 %", "100.0 MiB", "–"],
        ["1", "10.0", "0.00 %", "25.00 %", "0.0 MiB", "2.0 MiB"],
        ["2", "–", "–", "–", "–", "–"],
    ] {
        assert!(page.contains(&row(&cells)), "{cells:?}: {page}");
    }
    assert!(page.contains(">GPU memory</th>") && !page.contains(">GPU use</th>"), "{page}");
    let metrics = served.get("/metrics");
    let figures: Vec<&str> = metrics.lines().filter(|line| line.starts_with("enmasse_rank_device_bytes{")).collect();
    assert_eq!(figures, ["enmasse_rank_device_bytes{run=\"one\",rank=\"1\"} 2097152"]);
    let figures = metrics.lines().filter(|line| line.starts_with("enmasse_rank_images_per_second{")).count();
    assert_eq!((figures, metrics.matches("# TYPE enmasse_rank_").count()), (2, 5), "{metrics}");
}

#[test]
fn an_image_is_predicted_and_its_classes_are_text() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    fs::rename(data.join("dark"), data.join(HOSTILE)).unwrap();
    let data = data.display().to_string();
    let run = folder.path().join("one").display().to_string();
    let model = ["--model", "mlp", "--size", "12", "--epochs", "1", "--batch", "4", "--devices", "cpu:1"];
    enmasse(&[&["train", &data, "--out", &run], &model[..]].concat()).well();
    // Regression test: of a run by the default devices the page said that auto takes no number.
    let config = Path::new(&run).join("config.toml");
    let settings = fs::read_to_string(&config).unwrap();
    assert!(settings.contains("devices = \"cpu:1\""), "{settings}");
    fs::write(&config, settings.replace("devices = \"cpu:1\"", "devices = \"auto\"")).unwrap();
    let served = Served::start(&[&run]);
    let page = served.get("/run/0");
    assert!(page.contains("<h2>Ranks</h2>") && page.contains(" MiB</td>"), "{page}");
    assert!(page.contains(">finished<") && page.contains("confusion.svg") && page.contains("type=\"file\""), "{page}");
    assert!(served.get("/run/0/confusion.svg?after=1").contains("<svg"));

    let file = folder.path().join("sent.png");
    write_png(&file, 12, 14, &[7; 12 * 14 * 3]);
    let image = fs::read(&file).unwrap();
    let send = |kind: &str, body: &[u8]| served.send("/run/0/image", kind, body);
    let form = [
        b"--b0\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\n\r\n",
        &image[..],
        b"\r\n--b0--\r\n",
    ];
    for answer in [send("image/png", &image), send("multipart/form-data; boundary=b0", &form.concat())] {
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(" %</td>"), "{answer}");
        assert!(answer.contains("&lt;script&gt;alert(1)") && !answer.contains("<script>"), "{answer}");
    }
    // The second image is the first one again, and has the same neighbours.
    let near = [0, 1].map(|number| {
        let address = format!("/run/0/image/{number}");
        served.events(&format!("{address}/events")).wait("Compared with all ");
        let page = served.get(&address);
        assert!(!page.contains("<script>") && !page.contains("http-equiv"), "{page}");
        let (_, near) = page.split_once("<div class=\"near\">").unwrap();
        near.split_once("<h2>").unwrap().0.replace(&address, "")
    });
    assert_eq!((near[0].matches("<figure>").count(), &near[0]), (8, &near[1]));
    assert!(near[0].contains("<b>&lt;script&gt;alert(1)&lt;|script&gt;</b>, 0.9"), "{}", near[0]);
    let thumbnail = served.get("/run/0/image/0/7");
    assert!(thumbnail.contains("content-type: image/png\r\n") && thumbnail.contains("PNG"), "{thumbnail}");
    for path in ["0/8", "0/-1", "0/a", "0/0/0", "2", "99999999999999999999", "../image/0"] {
        let head = format!("GET /run/0/image/{path} HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN");
        let answer = served.ask(&head, b"");
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
    }
    let check = |answer: &str, status: u16, line: &str| {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(line), "{answer}");
    };
    check(&send("image/png", b"no image"), 422, "role=\"alert\"");
    check(&send("image/png", b""), 422, "no image was sent");
    check(&send("multipart/form-data; boundary=b1", &form.concat()), 422, "no image was sent");
    check(&send("image/png", &vec![0; (32 << 20) + 1]), 413, "the limit is 32 MiB");
    // It goes on afterwards.
    served.get("/run/0");
}

#[test]
fn predictions_of_a_run_are_made_when_someone_asks() {
    let folder = tempfile::tempdir().unwrap();
    let (run, data) = trained(folder.path(), "one");
    let served = Served::start(&[&run]);
    let page = served.get("/run/0/predictions");
    assert!(page.contains(">Evaluate<") && !page.contains("<figure"), "{page}");
    let ask = || {
        let answer = served.send("/run/0/predictions", "application/x-www-form-urlencoded", b"");
        assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains(">Evaluate<"), "{answer}");
        served.events("/run/0/predictions/events").wait("data-final");
        served.get("/run/0/predictions")
    };
    let page = ask();
    assert!(
        page.contains("<p>On the validation part, 6 images: accuracy ") && page.contains(">Evaluate again<"),
        "{page}"
    );
    assert!(!page.contains("<script>") && !page.contains("http-equiv"), "{page}");
    let (_, examples) = page.split_once("<h3>Examples, evenly over the part</h3>").unwrap();
    assert_eq!(examples.matches("<figure>").count(), 6);
    assert!(examples.contains("<b>=&lt;script&gt;alert(1)&lt;|script&gt;</b>"), "{examples}");
    // What was found is not looked for again before someone asks.
    fs::rename(&data, folder.path().join("gone")).unwrap();
    assert!(served.get("/run/0/predictions").contains("6 images"));
    let page = ask();
    assert!(page.contains("They cannot be shown: ") && !page.contains("<figure"), "{page}");
    for path in ["/run/1/predictions", "/run/0/predictions/0", "/run/x/predictions"] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN");
        assert!(served.ask(&head, b"").starts_with("HTTP/1.1 404 "), "{path}");
    }
    let answer = served.send("/run/1/predictions", "application/x-www-form-urlencoded", b"");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}

#[test]
fn predictions_of_numbers_stand_beside_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let mut table = "path,brightness\n".to_owned();
    for (class, brightness) in [("dark", 0.25), ("light", 0.75)] {
        (0..10).for_each(|number| {
            let ending = if number % 2 == 0 { "png" } else { "jpg" };
            table += &format!("{class}/{number:03}.{ending},{brightness}\n");
        });
    }
    let list = data.join("list.csv");
    fs::write(&list, table).unwrap();
    let list = list.display().to_string();
    let run = folder.path().join("one").display().to_string();
    let model = ["--model", "mlp", "--size", "12", "--epochs", "1", "--batch", "4", "--devices", "cpu:1"];
    enmasse(
        &[&["train", &list, "--label-column", "brightness", "--task", "regression", "--out", &run], &model[..]]
            .concat(),
    )
    .well();
    let served = Served::start(&[&run]);
    served.send("/run/0/predictions", "application/x-www-form-urlencoded", b"");
    served.events("/run/0/predictions/events").wait("data-final");
    let page = served.get("/run/0/predictions");
    let figures = page.matches("<figure>").count();
    let with_truth = ["<b>0.25</b> predicted as <b>", "<b>0.75</b> predicted as <b>"];
    assert_eq!((figures, with_truth.map(|text| page.matches(text).count()).iter().sum()), (4, 4), "{page}");
    // Features of images with numbers were compared with the numbers.
    let file = data.join("dark/000.png");
    served.send("/run/0/image", "image/png", &fs::read(file).unwrap());
    served.events("/run/0/image/0/events").wait("data-final");
    let page = served.get("/run/0/image/0");
    assert!(page.contains("Compared with all 16 training images") && page.contains("<b>0.25</b>, 1.000"), "{page}");
}

#[test]
fn training_images_that_are_gone_are_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let (run, data) = trained(folder.path(), "one");
    let served = Served::start(&[&run]);
    fs::rename(&data, folder.path().join("gone")).unwrap();
    let file = folder.path().join("sent.png");
    write_png(&file, 12, 14, &[7; 12 * 14 * 3]);
    let answer = served.send("/run/0/image", "image/png", &fs::read(&file).unwrap());
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(" %</td>"), "{answer}");
    served.events("/run/0/image/0/events").wait("They cannot be shown: ");
    let page = served.get("/run/0/image/0");
    let (_, line) = page.split_once("They cannot be shown: ").unwrap();
    assert!(line.split_once("</p>").unwrap().0.contains("data"), "{page}");
    assert!(!page.contains("http-equiv"), "{page}");
}

#[test]
fn a_run_shows_itself_while_it_trains() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10).display().to_string();
    let run = folder.path().join("one").display().to_string();
    let model = ["--model", "mlp", "--size", "12", "--epochs", "100000", "--batch", "4", "--devices", "cpu:1"];
    // Another program may take the port meanwhile; then the run does not begin.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let shown = ["train", &data, "--out", &run, "--dashboard", &port.to_string(), "--json"];
    let mut training = Running::start(program().args(shown).args(model));
    let first = training.line();
    assert!(first.contains("\"epoch\""), "{first}");
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stranger.set_read_timeout(Some(TIMEOUT)).unwrap();
    stranger
        .write_all(format!("GET / HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stranger.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let log = fs::read_to_string(Path::new(&run).join("logs/rank-0.log")).unwrap();
    assert!(!log.contains("token="), "the token is in the log: {log}");
    training.signal(rustix::process::Signal::INT);
    let ended = training.finish();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    let (told, token) = link(ended.stderr.lines().find(|line| line.contains("as a page")).unwrap());
    assert_eq!((told, token.len(), TcpStream::connect(("127.0.0.1", port)).is_err()), (port, 32, true));
    assert!(!fs::read_to_string(Path::new(&run).join("config.toml")).unwrap().contains("dashboard"));
}

#[test]
fn pages_that_cannot_be_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    failed(&enmasse(&["view", &path, "--port", "0"]), 1, &["is not a run folder"]);
    let run = begun(folder.path(), "one", 1);
    let served = Served::start(&[&run]);
    let taken = served.port.to_string();
    failed(&enmasse(&["view", &run, "--port", &taken]), 1, &["cannot listen on port", "choose another port, or 0"]);
    failed(&enmasse(&["view", &run, "--port", "x"]), 2, &["--port", "must be a port"]);
    refused(&enmasse(&["train", "--find-lr", "--dashboard"]), 2, &["--dashboard", "keeps no run"]);
    // It ends as other commands do.
    served.running.signal(rustix::process::Signal::TERM);
    assert_eq!(served.running.finish().code, Some(143));
}

#[test]
fn settings_are_shown_with_where_they_come_from() {
    let folder = tempfile::tempdir().unwrap();
    let [known, unknown] = ["known", "unknown"].map(|name| begun(folder.path(), name, 1));
    fs::write(Path::new(&known).join("origins.json"), "{\"model\":\"command line\"}").unwrap();
    let served = Served::start(&[&known, &unknown]);
    let check = |page: &str, origin: &str| {
        let row = format!("<tr><td>model</td><td>mlp</td><td>{origin}</td>");
        let shown = served.get(page);
        assert!(shown.contains(&row), "{page}: {shown}");
    };
    check("/run/0", "command line");
    check("/run/1", "not kept");
}
