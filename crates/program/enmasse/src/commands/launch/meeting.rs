//! `enmasse launch --nnodes MIN:MAX --rdzv-endpoint HOST:PORT`: nodes meet, and may join and leave.

use std::time::Duration;

use enmasse_comm::Token;
use enmasse_launch::{Elastic, Job, Timing, launch_elastic};
use enmasse_system::writer;

use super::topology::Meeting;
use crate::failure::Failure;
use crate::output::say_block;

/// How much longer than its workers' time limit an agent may take to stop.
const STOP_MARGIN: Duration = Duration::from_secs(30);

/// Runs this node's part of the job.
pub fn run(job: &Job, meeting: Meeting, shutdown_timeout: Duration) -> Result<(), Failure> {
    let token = Token::from_variables(&|name| std::env::var(name).ok());
    let token = token.map_err(Failure::usage)?;
    let Meeting { least, most, endpoint, local_address, timing } = meeting;
    let timing = Timing { stop: shutdown_timeout + STOP_MARGIN, ..timing };
    let elastic = Elastic { least, most, endpoint, token, local_address, timing };
    // The ranks write to the same streams.
    let _ = writer::finish();
    let ending = launch_elastic(job, &elastic, |line| say_block(format_args!("{line}"))).map_err(Failure::error)?;
    if let Some(report) = ending.report {
        say_block(format_args!("{report}"));
    }
    Failure::told(ending.code)
}
