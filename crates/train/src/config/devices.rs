//! `--devices KIND[:N|:LIST]`: a kind of device, and their number or a list of them. The program knows which kinds exist.

use std::fmt;

use super::value::{Kind, SettingValue, quoted};

/// The devices of a run on one machine: one per rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Devices {
    /// The kind, such as `cpu`.
    pub kind: String,
    /// Their number, or a list of them.
    pub selection: DeviceSelection,
}

/// The selected devices of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceSelection {
    /// This number of devices.
    Count(usize),
    /// The devices with these numbers, in the order of ranks.
    List(Vec<usize>),
}

impl Devices {
    /// `count` devices of a kind.
    pub fn new(kind: impl Into<String>, count: usize) -> Self {
        Devices { kind: kind.into(), selection: DeviceSelection::Count(count) }
    }

    /// Number of devices.
    pub fn count(&self) -> usize {
        match &self.selection {
            DeviceSelection::Count(count) => *count,
            DeviceSelection::List(list) => list.len(),
        }
    }

    /// The number of a rank's device, if numbers were given.
    pub fn ordinal(&self, local_rank: usize) -> Option<usize> {
        match &self.selection {
            DeviceSelection::Count(_) => None,
            DeviceSelection::List(list) => list.get(local_rank).copied(),
        }
    }

    /// The devices to pass to every rank: one device, or all numbers, from which a rank takes its own by its local rank.
    pub fn of_ranks(&self) -> Self {
        let selection = match &self.selection {
            DeviceSelection::Count(_) => DeviceSelection::Count(1),
            DeviceSelection::List(list) => DeviceSelection::List(list.clone()),
        };
        Devices { kind: self.kind.clone(), selection }
    }

    /// Whether ranks of a node with `local_ranks` ranks can be given these devices: one device, or a list of one per rank.
    pub fn fits_ranks(&self, local_ranks: usize) -> bool {
        match &self.selection {
            DeviceSelection::Count(count) => *count == 1,
            DeviceSelection::List(list) => list.len() == local_ranks,
        }
    }
}

/// `cpu:2`, or `gpu:0,3`; a list of one number ends in a comma.
impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.kind)?;
        match &self.selection {
            DeviceSelection::Count(count) => write!(f, "{count}"),
            DeviceSelection::List(list) => {
                let numbers: Vec<String> = list.iter().map(usize::to_string).collect();
                write!(f, "{}{}", numbers.join(","), if list.len() == 1 { "," } else { "" })
            }
        }
    }
}

/// `cpu` without a number is `cpu:1`.
impl SettingValue for Devices {
    const KIND: Kind = Kind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        let refuse = || "must be KIND:N with N ranks, 1 or more, or KIND:LIST, such as cpu:2 or gpu:0,3".to_owned();
        let (kind, which) = text.split_once(':').unwrap_or((text, "1"));
        if kind.is_empty() || !kind.bytes().all(|byte| byte.is_ascii_lowercase()) {
            return Err(refuse());
        }
        let number = |text: &str| text.trim().parse().map_err(|_| refuse());
        let selection = if which.contains(',') {
            let list = which.trim_end_matches(',').split(',').map(number).collect::<Result<Vec<usize>, _>>()?;
            if let Some(twice) = list.iter().enumerate().find(|(at, device)| list[..*at].contains(device)) {
                return Err(format!("names {kind} {} twice: a device has one rank", twice.1));
            }
            DeviceSelection::List(list)
        } else {
            DeviceSelection::Count(number(which).ok().filter(|&count| count > 0).ok_or_else(refuse)?)
        };
        Ok(Devices { kind: kind.to_owned(), selection })
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn to_toml(&self) -> Option<String> {
        quoted(&self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_counts_and_lists() {
        let check = |text: &str, expected: Result<(&str, usize, Option<usize>), &str>| {
            let found = Devices::parse(text);
            let seen = found.as_ref().map(|devices| (devices.kind.as_str(), devices.count(), devices.ordinal(0)));
            match (seen, expected) {
                (Ok(seen), Ok(expected)) => assert_eq!(seen, expected, "{text}"),
                (Err(seen), Err(expected)) => assert!(seen.contains(expected), "{text}: {seen}"),
                (seen, _) => panic!("{text}: {seen:?}"),
            }
            if let Ok(devices) = found {
                assert_eq!(Devices::parse(&devices.to_string()), Ok(devices));
            }
        };
        check("cpu", Ok(("cpu", 1, None)));
        check("reference:2", Ok(("reference", 2, None)));
        check("gpu:3,1", Ok(("gpu", 2, Some(3))));
        check("gpu:2,", Ok(("gpu", 1, Some(2))));
        check("cpu:0", Err("1 or more"));
        check("cpu:", Err("1 or more"));
        check(":2", Err("KIND:N"));
        check("CPU:2", Err("KIND:N"));
        check("gpu:1,1", Err("names gpu 1 twice"));
        check("gpu:1,x", Err("KIND:LIST"));
        let (two, four) = (Devices::parse("gpu:0,3").unwrap(), Devices::new("cpu", 4));
        assert_eq!((two.of_ranks().to_string(), four.of_ranks().to_string()), ("gpu:0,3".into(), "cpu:1".into()));
        assert_eq!([two.ordinal(0), two.ordinal(1), two.ordinal(2), four.ordinal(0)], [Some(0), Some(3), None, None]);
        assert_eq!([two.fits_ranks(1), two.fits_ranks(2), four.fits_ranks(4)], [false, true, false]);
        assert!(four.of_ranks().fits_ranks(4));
    }
}
