//! The doctor: one page for a bug report, about this machine and the cause of a run's failure.
//!
//! [`examine`] inspects processor, memory, GPUs, network, environment and disks, has two ranks reduce numbers, and
//! reads the files of a failed run: the [`FailureRecord`], the [`flight_record`]s and the ranks' logs. It starts the
//! calling program again with [`SELF_TEST`], for which the program calls [`play`].
//!
//! Use it by `enmasse doctor`, and in a program of your own to say why a run failed.
//!
//! ```no_run
//! let report = enmasse_doctor::examine(Some("runs/flowers".as_ref()), None);
//! println!("{report}");
//! ```

mod bounded;
mod data;
mod disk;
mod environment;
mod failure_record;
pub mod flight_record;
mod flights;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gpu;
mod lists;
mod log_folder;
mod memory;
mod network;
mod past_run;
mod processor;
mod rank_end;
mod report;
mod self_test;
mod story;
mod tail;

use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::time::Duration;

use enmasse_comm::host_name;
use enmasse_datasets::shapes;
use enmasse_system::machine::Limits;
use enmasse_wording::utc_time;

pub use failure_record::FailureRecord;
pub use report::Report;
pub use self_test::{FLAG as SELF_TEST, SelfTestError, play};

use report::{Finding, Section};

/// Listing a large data set takes a while; beyond this it is a fault.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Examines everything, the most informative first: a failed run and a data set, if given, then this machine. The
/// report holds no secret of the environment.
pub fn examine(run: Option<&Path>, data: Option<&Path>) -> Report {
    let limits = Limits::gather();
    let host = host_name();
    let mut sections: Vec<Section> = run.map(|run| patiently("run", run, past_run::section)).into_iter().collect();
    sections.extend([
        processor::section(&limits),
        memory::section(&limits),
        gpu::section(),
        network::section(&host),
        environment::section(&|name| std::env::var_os(name)),
        self_test::section(),
    ]);
    sections.extend(data.map(|data| patiently("data", data, data::section)));
    sections.push(disk::section(&places(run)));
    let mut report = Report { heading: heading(&host), sections };
    report.redact(&environment::secrets(std::env::vars_os()));
    report
}

/// The findings of `look` in a folder that the user has named, whose file server may be slow, or gone.
fn patiently(title: &'static str, folder: &Path, look: fn(&Path) -> Section) -> Section {
    let own = folder.to_owned();
    bounded::within(TIMEOUT, move || look(&own)).unwrap_or_else(|| {
        let text = format!("{}: not read within {} s", folder.display(), TIMEOUT.as_secs());
        Section { title, findings: vec![Finding::problem(title, text, "check whether its file server answers")] }
    })
}

/// Program, machine, time.
fn heading(host: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let kernel = rustix::system::uname();
    let release = read_to_string("/etc/os-release").unwrap_or_default();
    let system = system_name(&release).unwrap_or("unknown Linux distribution");
    format!(
        "enmasse {} on {host}: {system}, kernel {} {}; {} UTC",
        env!("CARGO_PKG_VERSION"),
        kernel.release().to_string_lossy(),
        kernel.machine().to_string_lossy(),
        rank_end::clock(&utc_time(now.as_secs()))
    )
}

/// `Debian GNU/Linux 12 (bookworm)` from `/etc/os-release`.
fn system_name(release: &str) -> Option<&str> {
    let line = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(line.trim_matches(['"', '\''])).filter(|name| !name.is_empty())
}

/// The folders to which enmasse writes.
fn places(run: Option<&Path>) -> Vec<(&'static str, PathBuf)> {
    let runs = run.map_or_else(|| PathBuf::from("runs"), Path::to_owned);
    let cache = shapes::default_cache().ok();
    let mut places = vec![("runs", runs), ("temporary", std::env::temp_dir())];
    places.extend(cache.map(|cache| ("cache", cache)));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems() {
        let check = |text: &str, expected: Option<&str>| assert_eq!(system_name(text), expected);
        check("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n", Some("Debian GNU/Linux 12 (bookworm)"));
        check("PRETTY_NAME=Alpine\n", Some("Alpine"));
        check("PRETTY_NAME=\"\"\n", None);
        check("", None);
    }
}
