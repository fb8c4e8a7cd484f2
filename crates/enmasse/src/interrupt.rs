//! Ctrl-C, or SIGTERM, in a process that no launcher of ours watches.

use std::io;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// From here on the first request to stop ends the process with 130, whatever its threads do. Files appear whole or not at
/// all however a process ends, so there is nothing to wait for.
pub fn watch() -> Result<(), Failure> {
    let start = || -> io::Result<_> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            if signals.forever().next().is_some() {
                std::process::exit(Failure::Interrupted.say().into());
            }
        })
    };
    start().map(drop).map_err(|error| Failure::Error(format!("cannot handle signals: {error}")))
}
