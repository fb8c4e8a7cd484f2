//! Ctrl-C, or SIGTERM, in a process that no launcher watches.

use std::io;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::failure::Failure;

/// While this lives, a request to stop ends the process with 130, whatever its threads do. Files appear whole or not at all
/// however a process ends, so there is nothing to wait for. Afterwards such requests are for whoever asks for them next.
pub struct Interrupts(Handle);

impl Interrupts {
    /// Begins to watch.
    pub fn watch() -> Result<Self, Failure> {
        let start = || -> io::Result<_> {
            let mut signals = Signals::new([SIGINT, SIGTERM])?;
            let handle = signals.handle();
            std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
                if signals.forever().next().is_some() {
                    std::process::exit(Failure::Interrupted.say().into());
                }
            })?;
            Ok(Interrupts(handle))
        };
        start().map_err(|error| Failure::Error(format!("cannot handle signals: {error}")))
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.0.close();
    }
}
