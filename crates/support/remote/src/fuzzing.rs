//! For fuzzing: what servers answer, and the files of profiles and of the cache, keep their promises for any bytes. Compiled with
//! `--cfg fuzzing` alone.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::address::{Address, Place};
use crate::cache::{Cache, Pieces};
use crate::http_object::HttpObject;
use crate::s3::Bucket;
use crate::source::{Source, Version};
use crate::transport::Transport;
use crate::{RemoteOptions, Variables};

/// Bytes that are asked of a server.
const WANTED: u64 = 64;

/// Whatever a server answers, it is a fault of one line, or the part that was asked for.
pub fn http(bytes: &[u8]) {
    *answer().lock().unwrap_or_else(PoisonError::into_inner) = bytes.to_vec();
    let object = HttpObject::new(transport(), &format!("http://{}/object", address()));
    match object.read(0..WANTED, None) {
        Ok(part) => assert_eq!(part.bytes.len() as u64, part.version.length.min(WANTED)),
        Err(fault) => assert!(!fault.words().contains('\n'), "{:?}", fault.words()),
    }
}

/// An address, and after a zero byte the files of credentials and of settings. A bucket of theirs is found, or refused in one
/// line.
pub fn profile(bytes: &[u8], folder: &Path) {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.splitn(3, '\0');
    let mut part = || parts.next().unwrap_or_default();
    let (address, credentials, config) = (part(), part(), part());
    let files = [("AWS_SHARED_CREDENTIALS_FILE", credentials), ("AWS_CONFIG_FILE", config)].map(|(variable, text)| {
        let path = folder.join(variable);
        std::fs::write(&path, text).expect("the folder for temporary files can be written");
        (variable.to_owned(), path.display().to_string())
    });
    let found = Address::parse(address).and_then(|found| match found.place {
        Place::Http => Ok(()),
        Place::S3 { bucket, key } => {
            let bucket = Arc::new(Bucket::new(address, &bucket, &Variables::new(files), transport())?);
            if key.is_empty() { Ok(()) } else { bucket.object(&key).map(drop) }
        }
    });
    if let Err(error) = found {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

/// Files that the cache did not write are not there. The first byte says which file these are.
pub fn cache(bytes: &[u8], folder: &Path) {
    const OBJECT: [&str; 2] = ["http://host/object", "http://host"];
    let Some((which, content)) = bytes.split_first() else { return };
    let options = RemoteOptions { cache: Some(folder.join("cache")), limit: 1 << 20, ..options() };
    let cache = Arc::new(Cache::open(&options).expect("the folder for temporary files can be written"));
    let version = Version { length: 10, tag: "\"1\"".to_owned() };
    let pieces = Pieces::open(cache.clone(), OBJECT[0], OBJECT[1], &version).expect("the folder can be written");
    let own = std::fs::read_dir(folder.join("cache")).expect("it is there").flatten().map(|entry| entry.path());
    let own = own.filter(|path| path.is_dir()).next().expect("the object has a folder");
    let name = ["object.txt", "0.piece", "known"][usize::from(*which) % 3];
    std::fs::write(own.join(name), content).expect("the folder can be written");
    let latest = cache.latest(OBJECT[0], OBJECT[1]);
    assert!(latest.is_none_or(|found| found == version));
    assert_eq!((pieces.load(0), pieces.load_named("known")), (None, None));
    pieces.store(0, &[7; 10]);
    let mut read = [0; 4];
    assert!(pieces.read(0, 6, &mut read) && read == [7; 4]);
    std::fs::remove_dir_all(&own).expect("the folder can be written");
}

fn options() -> RemoteOptions {
    RemoteOptions { variables: Variables::new(Vec::new()), timeout: Duration::from_secs(2), ..RemoteOptions::default() }
}

fn transport() -> Transport {
    static TRANSPORT: OnceLock<Transport> = OnceLock::new();
    TRANSPORT.get_or_init(|| Transport::new(&options()).expect("it needs nothing")).clone()
}

/// What the server sends.
fn answer() -> &'static Mutex<Vec<u8>> {
    static ANSWER: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    &ANSWER
}

/// A server that sends the same to everybody.
fn address() -> std::net::SocketAddr {
    static SERVER: OnceLock<std::net::SocketAddr> = OnceLock::new();
    *SERVER.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| serve(stream)));
        address
    })
}

fn serve(mut stream: TcpStream) {
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece) {
            Ok(read) if read > 0 => request.extend_from_slice(&piece[..read]),
            _ => return,
        }
    }
    // A client that has seen enough closes the connection.
    let _ = stream.write_all(&answer().lock().unwrap_or_else(PoisonError::into_inner));
    let _ = stream.shutdown(Shutdown::Write);
}
