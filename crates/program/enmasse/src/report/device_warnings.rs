//! Says what makes devices slower than they could be: at the start of a run, and once for each new reason at the end of an epoch.

use enmasse_device::Device;
use enmasse_train::{Callback, CallbackResult, Control, EpochRecord};

use crate::failure::Failure;
use crate::output::warn;
use crate::ranks::Rank;

/// Watches the devices of all ranks. Each rank has one.
pub struct DeviceWarnings<'a> {
    rank: &'a Rank,
    device: &'a dyn Device,
    said: Vec<String>,
}

impl<'a> DeviceWarnings<'a> {
    /// Says what is known at the start. All ranks must call it.
    pub fn start(rank: &'a Rank, device: &'a dyn Device) -> Result<Self, Failure> {
        let mut warnings = DeviceWarnings { rank, device, said: Vec::new() };
        warnings.say_new()?;
        Ok(warnings)
    }

    fn say_new(&mut self) -> Result<(), Failure> {
        for line in self.rank.device_warnings(self.device)? {
            if !self.said.contains(&line) {
                if self.rank.is_first() {
                    warn(&line);
                }
                self.said.push(line);
            }
        }
        Ok(())
    }
}

impl Callback for DeviceWarnings<'_> {
    fn on_train_epoch_end(&mut self, _record: &EpochRecord, _control: &mut Control) -> CallbackResult {
        self.say_new().map_err(|failure| failure.message().to_owned().into())
    }
}
