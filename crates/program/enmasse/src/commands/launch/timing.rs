//! `--rdzv-conf KEY=VALUE,...`: torchrun's names for how long nodes wait for each other.

use std::time::Duration;

use enmasse_launch::Timing;

use super::flags::GivenFlags;
use crate::failure::{Failure, usage};

/// Keys that have an effect: the first two wherever ranks join, the others where nodes meet at an endpoint.
const KEYS: [&str; 5] =
    ["join_timeout", "timeout", "last_call_timeout", "keep_alive_interval", "keep_alive_max_attempt"];

/// torchrun's keys that have no effect here, and why.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("is_host", "the node that can listen at the endpoint leads"),
    ("store_type", "nodes meet at enmasse's own store"),
    ("use_libuv", "nodes meet at enmasse's own store"),
    ("read_timeout", "nodes wait for their leader as long as join_timeout says"),
    ("close_timeout", "a job ends on all nodes at once"),
    ("heartbeat_timeout", "a node is lost after keep_alive_interval x keep_alive_max_attempt"),
];

/// The values of `--rdzv-conf`, and a line for each key that has no effect.
pub fn read(given: &GivenFlags<'_>) -> Result<(Timing, Vec<String>), Failure> {
    let pairs = given.value("rdzv-conf", "KEY=VALUE,KEY=VALUE", pairs)?.unwrap_or_default();
    let mut timing = Timing::default();
    let mut interval = None;
    let mut attempts = None;
    let mut warnings = Vec::new();
    for (key, value) in &pairs {
        let refuse = |expected: &str| usage!("--rdzv-conf {key}={value}: must be {expected}");
        let number = value.parse::<f64>().ok().filter(|number| (0.0..=1e9).contains(number));
        let seconds = || number.map(Duration::from_secs_f64).ok_or_else(|| refuse("a number of seconds"));
        match key.as_str() {
            "join_timeout" | "timeout" => timing.join = seconds()?,
            "last_call_timeout" => timing.last_call = seconds()?,
            "keep_alive_interval" if number == Some(0.0) => return Err(refuse("a number of seconds above 0")),
            "keep_alive_interval" => interval = Some(seconds()?),
            "keep_alive_max_attempt" => {
                let count = value.parse::<u32>().ok().filter(|count| (1..=1000).contains(count));
                attempts = Some(count.ok_or_else(|| refuse("a whole number from 1 to 1000"))?);
            }
            key => match WITHOUT_EFFECT.iter().find(|(known, _)| *known == key) {
                Some((_, why)) => warnings.push(format!("--rdzv-conf {key}={value} has no effect: {why}")),
                None => {
                    let known = KEYS.join(", ");
                    return Err(usage!("--rdzv-conf {key}: is not a key; the keys are {known}"));
                }
            },
        }
    }
    if interval.is_some() || attempts.is_some() {
        // torchrun's default if one of the two is missing.
        timing.lease = interval.unwrap_or(Duration::from_secs(5)) * attempts.unwrap_or(3);
    }
    Ok((timing, warnings))
}

/// The pairs that matter only where nodes meet at an endpoint.
pub fn of_meetings(given: &GivenFlags<'_>) -> Result<Vec<String>, Failure> {
    let pairs = given.value("rdzv-conf", "KEY=VALUE,KEY=VALUE", pairs)?.unwrap_or_default();
    let of_meetings = pairs.iter().filter(|(key, _)| KEYS[2..].contains(&key.as_str()));
    Ok(of_meetings.map(|(key, value)| format!("{key}={value}")).collect())
}

fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        Some((key.trim().to_owned(), value.trim().to_owned()))
            .filter(|(key, value)| !key.is_empty() && !value.is_empty())
    };
    text.split(',').filter(|text| !text.trim().is_empty()).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<(Timing, Vec<String>), String> {
        let matches =
            super::super::command("launch").try_get_matches_from(["launch", "--rdzv-conf", text, "program"]).unwrap();
        let given = GivenFlags { matches: &matches, environment: &|_| None };
        read(&given).map_err(|failure| failure.message().to_owned())
    }

    #[test]
    fn durations() {
        let default = Timing::default();
        let check = |text: &str, expected: Timing| assert_eq!(of(text), Ok((expected, Vec::new())), "{text}");
        let seconds = Duration::from_secs_f64;
        check("", default);
        check(
            "join_timeout=7,last_call_timeout=0.5",
            Timing { join: seconds(7.0), last_call: seconds(0.5), ..default },
        );
        check(" timeout = 5 ", Timing { join: seconds(5.0), ..default });
        check("keep_alive_interval=2", Timing { lease: seconds(6.0), ..default });
        check("keep_alive_interval=2,keep_alive_max_attempt=1", Timing { lease: seconds(2.0), ..default });
    }

    #[test]
    fn refusals() {
        let check = |text: &str, expected: &str| {
            assert_eq!(of(text), Err(format!("--rdzv-conf {text}: must be {expected}")));
        };
        check("join_timeout=x", "a number of seconds");
        check("join_timeout=-1", "a number of seconds");
        check("keep_alive_interval=0", "a number of seconds above 0");
        check("keep_alive_max_attempt=0", "a whole number from 1 to 1000");
        check("a", "KEY=VALUE,KEY=VALUE");
        let keys = "join_timeout, timeout, last_call_timeout, keep_alive_interval, keep_alive_max_attempt";
        assert_eq!(of("join_timout=5"), Err(format!("--rdzv-conf join_timout: is not a key; the keys are {keys}")));
    }

    #[test]
    fn keys_without_effect_are_reported() {
        for (key, why) in WITHOUT_EFFECT {
            let expected = format!("--rdzv-conf {key}=1 has no effect: {why}");
            assert_eq!(of(&format!("{key}=1")), Ok((Timing::default(), vec![expected])));
        }
    }
}
