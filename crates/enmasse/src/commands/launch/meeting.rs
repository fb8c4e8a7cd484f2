//! `enmasse launch --nnodes MIN:MAX --rdzv-endpoint HOST:PORT`: nodes meet, and may come and go.

use std::time::Duration;

use enmasse_comm::Token;
use enmasse_launch::{Elastic, Job, Timing, launch_elastic};

use super::options::Meeting;
use crate::failure::Failure;
use crate::output::say;

/// The text that proves, on all nodes, that they belong to the job.
const TOKEN: &str = "ENMASSE_TOKEN";
/// How much longer than its workers' own time to stop an agent may take.
const STOP_MARGIN: Duration = Duration::from_secs(30);

/// Runs this node's part of the job.
pub fn run(job: &Job, meeting: Meeting, shutdown_timeout: Duration) -> Result<(), Failure> {
    let token = match std::env::var(TOKEN) {
        Ok(text) => Some(Token::from_text(&text).ok_or_else(|| {
            Failure::Usage(format!("{TOKEN} is shorter than 16 bytes: set a longer secret, the same on all nodes"))
        })?),
        Err(_) => None,
    };
    let timing = timing(&meeting.configuration, shutdown_timeout)?;
    let Meeting { least, most, endpoint, local_address, .. } = meeting;
    let elastic = Elastic { least, most, endpoint, token, local_address, timing };
    let ending = launch_elastic(job, &elastic, |line| say(format_args!("{line}"))).map_err(Failure::error)?;
    if let Some(report) = ending.report {
        say(format_args!("{report}"));
    }
    match ending.code {
        0 => Ok(()),
        code => Err(Failure::Told(code)),
    }
}

/// What `--rdzv-conf` says, by torchrun's names.
fn timing(configuration: &[(String, String)], shutdown_timeout: Duration) -> Result<Timing, Failure> {
    let mut timing = Timing { stop: shutdown_timeout + STOP_MARGIN, ..Timing::default() };
    let (mut interval, mut attempts) = (None, None);
    for (key, value) in configuration {
        let number = value.parse::<f64>().ok().filter(|number| (0.0..=1e9).contains(number));
        let seconds = number.map(Duration::from_secs_f64);
        let refusal = || Failure::Usage(format!("--rdzv-conf {key}={value}: must be a number of seconds"));
        match key.as_str() {
            "join_timeout" | "timeout" => timing.join = seconds.ok_or_else(refusal)?,
            "last_call_timeout" => timing.last_call = seconds.ok_or_else(refusal)?,
            "keep_alive_interval" => {
                interval = Some(seconds.filter(|seconds| !seconds.is_zero()).ok_or_else(refusal)?);
            }
            "keep_alive_max_attempt" => {
                let count = value.parse::<u32>().ok().filter(|count| (1..=1000).contains(count));
                attempts = Some(count.ok_or_else(|| {
                    Failure::Usage(format!("--rdzv-conf {key}={value}: must be a whole number from 1 to 1000"))
                })?);
            }
            // What they set at torchrun has no like here: who leads, and how, is settled by who can listen.
            "is_host" | "store_type" | "use_libuv" | "close_timeout" | "heartbeat_timeout" | "read_timeout" => {}
            _ => {
                return Err(Failure::Usage(format!(
                    "--rdzv-conf {key}: is none of join_timeout, last_call_timeout, keep_alive_interval, \
                     keep_alive_max_attempt"
                )));
            }
        }
    }
    if interval.is_some() || attempts.is_some() {
        // torchrun's own values where one of the two is missing.
        timing.lease = interval.unwrap_or(Duration::from_secs(5)) * attempts.unwrap_or(3);
    }
    Ok(timing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let read = |text: &str| {
            let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
            let pairs: Vec<_> = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            timing(&pairs, Duration::from_secs(5)).map_err(|failure| failure.message().to_owned())
        };
        let usual = Timing { stop: Duration::from_secs(35), ..Timing::default() };
        assert_eq!(read(""), Ok(usual));
        assert_eq!(read("is_host=true,store_type=tcp"), Ok(usual));
        let seconds = Duration::from_secs_f64;
        assert_eq!(
            read("join_timeout=7,last_call_timeout=0.5"),
            Ok(Timing { join: seconds(7.0), last_call: seconds(0.5), ..usual })
        );
        assert_eq!(read("keep_alive_interval=2"), Ok(Timing { lease: seconds(6.0), ..usual }));
        assert_eq!(read("keep_alive_interval=2,keep_alive_max_attempt=1"), Ok(Timing { lease: seconds(2.0), ..usual }));
        for wrong in ["join_timeout=x", "join_timeout=-1", "keep_alive_interval=0", "keep_alive_max_attempt=0", "a=1"] {
            let error = read(wrong).unwrap_err();
            assert!(error.starts_with(&format!("--rdzv-conf {}", wrong.split('=').next().unwrap())), "{error}");
        }
    }
}
