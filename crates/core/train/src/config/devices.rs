//! `--devices auto|KIND[:N|:all|:free:N|:LIST]`: a kind of device, and their number or a list of them. The program knows which kinds exist,
//! and what `auto` takes.

use std::fmt;

use super::value::{SettingKind, SettingValue};

/// The devices of a run on one machine: one per rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Devices {
    /// The kind, such as `cpu`; `auto` until the program has looked at the machine.
    pub kind: String,
    /// Their number, or a list of them.
    pub selection: DeviceSelection,
    /// Whether the program took them for `auto`. A run keeps the word `auto`, so that a resumed one looks at its machine again.
    pub automatic: bool,
}

/// The word that leaves the kind to the program.
const AUTO: &str = "auto";

/// Stands before what the process that starts the ranks has taken for `auto`, in their arguments.
const DECIDED: &str = "auto=";

/// The word for all devices of a kind.
const ALL: &str = "all";

/// The word before a number of devices that no other program uses.
const FREE: &str = "free:";

/// The selected devices of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceSelection {
    /// This number of devices.
    Count(usize),
    /// All that the machine has: this number, once the program has looked.
    All(usize),
    /// This number of devices on which no other program computes: those with these numbers, once the program has looked.
    Free(usize, Vec<usize>),
    /// The devices with these numbers, in the order of ranks.
    List(Vec<usize>),
}

impl Devices {
    /// `count` devices of a kind.
    pub fn new(kind: impl Into<String>, count: usize) -> Self {
        Devices { kind: kind.into(), selection: DeviceSelection::Count(count), automatic: false }
    }

    /// Devices that the program took for `auto`.
    pub fn taken(kind: impl Into<String>, selection: DeviceSelection) -> Self {
        Devices { kind: kind.into(), selection, automatic: true }
    }

    /// What is said of a wrong [`Devices::of_gpus`].
    pub const GPUS: &str = "must be a number of GPUs, -1 for all, or a list such as 0,1";

    /// The devices that Lightning's `gpus` means: a number of GPUs, all for -1, or a list. `None` inside for 0, which is CPUs; `None` for
    /// anything else.
    pub fn of_gpus(text: &str) -> Option<Option<String>> {
        match text.parse::<i64>() {
            Ok(-1) => Some(Some("gpu:all".to_owned())),
            Ok(0) => Some(None),
            Ok(count) if count > 0 => Some(Some(format!("gpu:{count}"))),
            Ok(_) => None,
            Err(_) => {
                let numbers =
                    text.strip_suffix(',').unwrap_or(text).split(',').map(|number| number.trim().parse().ok());
                let selection = DeviceSelection::List(numbers.collect::<Option<_>>()?);
                Some(Some(Devices { selection, ..Devices::new("gpu", 1) }.to_string()))
            }
        }
    }

    /// Whether the program has yet to look at the machine.
    pub fn is_undecided(&self) -> bool {
        self.kind == AUTO
    }

    /// The argument of a rank that is to take these without another look at the machine. `TrainConfig::set` reads it.
    pub fn argument(&self) -> String {
        match self.automatic && !self.is_undecided() {
            true => format!("{DECIDED}{}", Devices { automatic: false, ..self.clone() }),
            false => self.to_string(),
        }
    }

    /// The number of devices that the user asked for; `None` for `auto` and all.
    pub fn asked(&self) -> Option<usize> {
        let is_number = !self.automatic && !matches!(self.selection, DeviceSelection::All(_));
        is_number.then(|| self.count())
    }

    /// As many devices of this kind; `None` if another kind's number is not known before the machine is.
    pub(super) fn on(&self, kind: &str) -> Option<Self> {
        if self.kind == kind { Some(self.clone()) } else { self.asked().map(|count| Devices::new(kind, count)) }
    }

    /// Number of devices.
    pub fn count(&self) -> usize {
        match &self.selection {
            DeviceSelection::Count(count) | DeviceSelection::All(count) | DeviceSelection::Free(count, _) => *count,
            DeviceSelection::List(list) => list.len(),
        }
    }

    /// The number of a rank's device, if numbers were given.
    pub fn ordinal(&self, local_rank: usize) -> Option<usize> {
        match &self.selection {
            DeviceSelection::Count(_) | DeviceSelection::All(_) => None,
            DeviceSelection::Free(_, list) | DeviceSelection::List(list) => list.get(local_rank).copied(),
        }
    }

    /// The devices to pass to every rank: one device, or the word or numbers from which a rank takes its own by its local rank.
    pub fn of_ranks(&self) -> Self {
        let selection = match &self.selection {
            DeviceSelection::Count(_) => DeviceSelection::Count(1),
            DeviceSelection::Free(_, list) => DeviceSelection::List(list.clone()),
            asked @ (DeviceSelection::All(_) | DeviceSelection::List(_)) => asked.clone(),
        };
        Devices { selection, ..self.clone() }
    }

    /// The devices of a run of `ranks` ranks, each of which was given these.
    pub fn of_run(&self, ranks: usize) -> Self {
        let selection = match &self.selection {
            DeviceSelection::Count(_) => DeviceSelection::Count(ranks),
            DeviceSelection::All(_) => DeviceSelection::All(ranks),
            asked @ (DeviceSelection::Free(..) | DeviceSelection::List(_)) => asked.clone(),
        };
        Devices { selection, ..self.clone() }
    }

    /// Whether ranks of a node with `local_ranks` ranks can be given these devices: one device, all, or a list of one per rank.
    pub fn fits_ranks(&self, local_ranks: usize) -> bool {
        match &self.selection {
            DeviceSelection::Count(count) => *count == 1,
            DeviceSelection::All(_) => true,
            // Another rank may have taken a device before this one looks.
            DeviceSelection::Free(..) => false,
            DeviceSelection::List(list) => list.len() == local_ranks,
        }
    }
}

/// `cpu:2`, or `gpu:0,3`; a list of one number ends in a comma. Devices that were taken for `auto` are `auto`.
impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.automatic {
            return f.write_str(AUTO);
        }
        write!(f, "{}:", self.kind)?;
        match &self.selection {
            DeviceSelection::Count(count) => write!(f, "{count}"),
            DeviceSelection::All(_) => f.write_str(ALL),
            DeviceSelection::Free(count, _) => write!(f, "{FREE}{count}"),
            DeviceSelection::List(list) => {
                let numbers: Vec<String> = list.iter().map(usize::to_string).collect();
                write!(f, "{}{}", numbers.join(","), if list.len() == 1 { "," } else { "" })
            }
        }
    }
}

/// `cpu` without a number is `cpu:1`.
impl SettingValue for Devices {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        if text == AUTO {
            return Ok(Devices { automatic: true, ..Devices::new(AUTO, 1) });
        }
        if let Some(taken) = text.strip_prefix(DECIDED) {
            return Ok(Devices { automatic: true, ..Devices::parse(taken)? });
        }
        let refuse = || {
            "must be auto, or KIND:N with N ranks, 1 or more, KIND:all, KIND:free:N or KIND:LIST, such as cpu:2, gpu:all or gpu:0,3"
                .to_owned()
        };
        let (kind, which) = text.split_once(':').unwrap_or((text, "1"));
        match kind {
            AUTO => return Err("auto takes no number: it is all GPUs, or as many CPU ranks as usual".to_owned()),
            // In PyTorch `cuda:1` is the second GPU, here `gpu:1` is one GPU.
            "cuda" => {
                return Err("NVIDIA's GPUs are gpu here: gpu:1 is one of them, and gpu:0, is the first".to_owned());
            }
            _ => {}
        }
        if kind.is_empty() || !kind.bytes().all(|byte| byte.is_ascii_lowercase()) {
            return Err(refuse());
        }
        let number = |text: &str| text.trim().parse().map_err(|_| refuse());
        let selection = if which == ALL {
            DeviceSelection::All(1)
        } else if let Some(count) = which.strip_prefix(FREE) {
            DeviceSelection::Free(number(count).ok().filter(|&count| count > 0).ok_or_else(refuse)?, Vec::new())
        } else if which.contains(',') {
            let list = which.trim_end_matches(',').split(',').map(number).collect::<Result<Vec<usize>, _>>()?;
            if let Some(twice) = list.iter().enumerate().find(|(at, device)| list[..*at].contains(device)) {
                return Err(format!("names {kind} {} twice: a device has one rank", twice.1));
            }
            DeviceSelection::List(list)
        } else {
            DeviceSelection::Count(number(which).ok().filter(|&count| count > 0).ok_or_else(refuse)?)
        };
        Ok(Devices { kind: kind.to_owned(), selection, automatic: false })
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
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
        check("gpu:all", Ok(("gpu", 1, None)));
        check("gpu:free:2", Ok(("gpu", 2, None)));
        check("gpu:free:0", Err("1 or more"));
        check("gpu:free", Err("1 or more"));
        check("gpu:all,1", Err("gpu:all"));
        check("cpu:0", Err("1 or more"));
        check("cpu:", Err("1 or more"));
        check(":2", Err("KIND:N"));
        check("CPU:2", Err("KIND:N"));
        check("gpu:1,1", Err("names gpu 1 twice"));
        check("gpu:1,x", Err("KIND:LIST"));
        check("auto", Ok(("auto", 1, None)));
        check("auto:1", Err("auto takes no number"));
        check("cuda:0", Err("gpu:0, is the first"));
        check("cuda", Err("gpu:1 is one of them"));
        let two = Devices::parse("gpu:0,3").unwrap();
        let four = Devices::new("cpu", 4);
        assert_eq!((two.of_ranks().to_string(), four.of_ranks().to_string()), ("gpu:0,3".into(), "cpu:1".into()));
        assert_eq!((two.of_run(2), four.of_ranks().of_run(4)), (two.clone(), four.clone()));
        assert_eq!([two.ordinal(0), two.ordinal(1), two.ordinal(2), four.ordinal(0)], [Some(0), Some(3), None, None]);
        assert_eq!([two.fits_ranks(1), two.fits_ranks(2), four.fits_ranks(4)], [false, true, false]);
        assert!(four.of_ranks().fits_ranks(4));
        let free = Devices { selection: DeviceSelection::Free(2, vec![3, 1]), ..two.clone() };
        assert_eq!((free.to_string(), free.of_ranks().to_string()), ("gpu:free:2".into(), "gpu:3,1".into()));
        assert_eq!((free.ordinal(1), free.fits_ranks(2)), (Some(1), false));
        let all = Devices { selection: DeviceSelection::All(8), ..two.clone() };
        assert_eq!((all.to_string(), all.of_ranks().to_string(), all.count()), ("gpu:all".into(), "gpu:all".into(), 8));
        assert!(all.fits_ranks(2) && all.fits_ranks(8));
        // A run keeps the word, whatever it took.
        let taken = Devices { automatic: true, ..four.clone() };
        assert_eq!((taken.to_string(), taken.of_ranks().to_string(), taken.count()), ("auto".into(), "auto".into(), 4));
        assert_eq!((taken.asked(), four.asked()), (None, Some(4)));
        // Its ranks are told what it took.
        let taken = Devices::taken("gpu", DeviceSelection::List(vec![2]));
        assert_eq!((taken.to_string(), taken.argument()), ("auto".into(), "auto=gpu:2,".into()));
        assert_eq!((Devices::parse(&taken.argument()), four.argument()), (Ok(taken), "cpu:4".into()));
        assert_eq!(Devices::parse("auto").unwrap().argument(), "auto");
    }
}
