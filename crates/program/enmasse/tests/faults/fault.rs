//! The faults: what happens to a run, and at which moment. A seed draws one, and with the same seed it is the same.

use std::fmt;

use rustix::io::Errno;
use rustix::process::Signal;

/// What a call of a rank is about. Moments are counted in such calls, because time would make no seed repeatable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Reading an image: moments all over the epochs, in any rank.
    Images,
    /// A file of the run folder other than logs, which rank 0 writes: moments within checkpoints, mostly.
    Run,
    /// A rank's own log.
    Log,
    /// Sending on a TCP connection.
    Link,
}

/// Before the `nth` call of this sort by this rank, from 1.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub rank: usize,
    pub place: Place,
    pub nth: u64,
}

/// Who is killed.
#[derive(Clone, Copy, Debug)]
pub enum Victims {
    /// The rank whose moment it is.
    Rank,
    /// All ranks.
    Ranks,
    /// The process that started them.
    Launcher,
    /// Ranks and launcher, as when a machine goes down.
    Job,
}

/// What happens at the moment.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Kill(Victims),
    /// The rank is killed, and then the one that makes the `nth` call on the run folder, which it writes to in the first one's place.
    KillSurvivorToo {
        nth: u64,
    },
    /// A signal that asks the job to stop: to its launcher, or to all its processes.
    Ask {
        signal: Signal,
        everybody: bool,
    },
    /// The rank stands still for ever.
    Hang,
    /// The whole job stands still for two heartbeats.
    Freeze,
    /// The call fails.
    Fail(Errno),
    /// From this call on the disk of the run folder is full.
    FillDisk,
    /// The same, and SIGTERM to the job's launcher.
    AskAndFillDisk,
    /// The next `write` takes half of its bytes.
    Shorten,
    /// The connection is closed in both directions.
    Cut,
    /// One bit of the sent bytes flips.
    Flip {
        bit: u64,
    },
}

/// A file of the run folder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Victim {
    Last,
    Best,
    Metrics,
    Config,
    Split,
    Classes,
}

impl Victim {
    pub const ALL: [Victim; 6] =
        [Victim::Last, Victim::Best, Victim::Metrics, Victim::Config, Victim::Split, Victim::Classes];

    pub fn name(self) -> &'static str {
        match self {
            Victim::Last => "checkpoints/last.safetensors",
            Victim::Best => "checkpoints/best.safetensors",
            Victim::Metrics => "metrics.jsonl",
            Victim::Config => "config.toml",
            Victim::Split => "split.json",
            Victim::Classes => "class_indices.json",
        }
    }
}

/// What a file suffers between a stop and a resume. Places are drawn from all 64-bit numbers, and count modulo the size.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    Truncate { at: u64 },
    Flip { bit: u64 },
    Remove,
}

/// The sorts of fault, which are the rows of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    KillRank,
    KillRanks,
    KillLauncher,
    KillJob,
    AskToStop,
    Hang,
    Freeze,
    UnreadableImage,
    FailedCall,
    FullDisk,
    ShortWrite,
    CutLink,
    FlippedLink,
    DamagedFile,
    FaultInResume,
    Restarted,
}

impl Kind {
    /// All, with their shares among drawn faults. Those that wait for heartbeats are rare, because they take seconds.
    pub const ALL: [(Kind, u64); 16] = [
        (Kind::KillRank, 12),
        (Kind::KillRanks, 8),
        (Kind::KillLauncher, 8),
        (Kind::KillJob, 8),
        (Kind::AskToStop, 12),
        (Kind::Hang, 4),
        (Kind::Freeze, 2),
        (Kind::UnreadableImage, 4),
        (Kind::FailedCall, 14),
        (Kind::FullDisk, 8),
        (Kind::ShortWrite, 4),
        (Kind::CutLink, 8),
        (Kind::FlippedLink, 8),
        (Kind::DamagedFile, 14),
        (Kind::FaultInResume, 14),
        (Kind::Restarted, 8),
    ];
}

/// The row's name.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::KillRank => "one rank killed",
            Kind::KillRanks => "all ranks killed",
            Kind::KillLauncher => "launcher killed",
            Kind::KillJob => "ranks and launcher killed",
            Kind::AskToStop => "SIGINT or SIGTERM",
            Kind::Hang => "one rank stopped for good",
            Kind::Freeze => "whole job stopped for a while",
            Kind::UnreadableImage => "image unreadable",
            Kind::FailedCall => "system call fails",
            Kind::FullDisk => "disk full from a call on",
            Kind::ShortWrite => "write takes half",
            Kind::CutLink => "TCP connection cut",
            Kind::FlippedLink => "bit flipped on a connection",
            Kind::DamagedFile => "file damaged before resume",
            Kind::FaultInResume => "job killed, and a fault in its resume",
            Kind::Restarted => "one rank killed under --max-restarts",
        })
    }
}

/// What happens in one start of a job, and when.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub moment: Moment,
    pub act: Act,
}

/// A run with a fault, and how it is resumed.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub kind: Kind,
    /// Whether ranks talk over TCP instead of shared memory.
    pub tcp: bool,
    pub first: Fault,
    /// In the first resume.
    pub second: Option<Fault>,
    /// Between stop and resume.
    pub damage: Option<(Victim, Damage)>,
    /// The number of ranks that resume the run. The bits do not depend on it.
    pub resumed_ranks: usize,
}

/// How many calls of each sort each rank makes in a run without a fault.
pub type Calls = std::collections::BTreeMap<(usize, Place), u64>;

impl Scenario {
    /// The fault of a seed, in runs that make these many calls over shared memory and over TCP.
    pub fn of_seed(seed: u64, calls: &[Calls; 2]) -> Self {
        let mut draws = Draws(seed);
        let mut left = draws.below(Kind::ALL.iter().map(|(_, share)| share).sum());
        let chosen = Kind::ALL.iter().find(|(_, share)| {
            let found = left < *share;
            left = left.saturating_sub(*share);
            found
        });
        Self::of_kind(chosen.expect("shares add up").0, &mut draws, calls)
    }

    /// A single fault, of the kind that it is.
    pub fn of_fault(kind: Kind, first: Fault) -> Self {
        let tcp = first.moment.place == Place::Link;
        Scenario { kind, tcp, first, second: None, damage: None, resumed_ranks: 2 }
    }

    /// A fault of this kind.
    pub fn of_kind(kind: Kind, draws: &mut Draws, calls: &[Calls; 2]) -> Self {
        let on_link = [Kind::CutLink, Kind::FlippedLink].contains(&kind);
        let tcp = on_link || draws.below(4) == 0;
        let calls = &calls[usize::from(tcp)];
        let first = Fault::of_kind(kind, draws, calls);
        let seconds = [Kind::KillRank, Kind::KillJob, Kind::AskToStop, Kind::FailedCall, Kind::FullDisk];
        let second = (kind == Kind::FaultInResume).then(|| {
            let kind = seconds[draws.below(seconds.len() as u64) as usize];
            let mut second = Fault::of_kind(kind, draws, calls);
            // The rest of a run makes fewer calls than a whole one.
            second.moment.nth = second.moment.nth.div_ceil(2);
            second
        });
        let victim = Victim::ALL[draws.below(Victim::ALL.len() as u64) as usize];
        let damage = match draws.below(5) {
            0 | 1 => Damage::Truncate { at: draws.next() },
            2 | 3 => Damage::Flip { bit: draws.next() },
            _ => Damage::Remove,
        };
        let damage = (kind == Kind::DamagedFile).then_some((victim, damage));
        let resumed_ranks = 1 + draws.below(2) as usize;
        Scenario { kind, tcp, first, second, damage, resumed_ranks }
    }
}

impl Fault {
    fn of_kind(kind: Kind, draws: &mut Draws, calls: &Calls) -> Self {
        let (rank, place) = match kind {
            Kind::CutLink | Kind::FlippedLink => (draws.below(2) as usize, Place::Link),
            Kind::FailedCall if draws.below(8) == 0 => (draws.below(2) as usize, Place::Log),
            Kind::FailedCall | Kind::FullDisk | Kind::ShortWrite => (0, Place::Run),
            Kind::UnreadableImage => (draws.below(2) as usize, Place::Images),
            // Half of the moments lie within a write to the run folder.
            _ if draws.below(2) == 0 => (0, Place::Run),
            _ => (draws.below(2) as usize, Place::Images),
        };
        let nth = 1 + draws.below(calls[&(rank, place)]);
        let errors = [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::ROFS];
        let act = match kind {
            Kind::KillRank | Kind::Restarted => Act::Kill(Victims::Rank),
            Kind::KillRanks => Act::Kill(Victims::Ranks),
            Kind::KillLauncher => Act::Kill(Victims::Launcher),
            Kind::KillJob | Kind::DamagedFile | Kind::FaultInResume => Act::Kill(Victims::Job),
            Kind::AskToStop => {
                let signal = [Signal::INT, Signal::TERM][draws.below(2) as usize];
                Act::Ask { signal, everybody: draws.below(2) == 0 }
            }
            Kind::Hang => Act::Hang,
            Kind::Freeze => Act::Freeze,
            Kind::UnreadableImage => Act::Fail(Errno::IO),
            Kind::FailedCall => Act::Fail(errors[draws.below(errors.len() as u64) as usize]),
            Kind::FullDisk => Act::FillDisk,
            Kind::ShortWrite => Act::Shorten,
            Kind::CutLink => Act::Cut,
            Kind::FlippedLink => Act::Flip { bit: draws.next() },
        };
        Fault { moment: Moment { rank, place, nth }, act }
    }
}

/// Random numbers from a seed: SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Draws(pub u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
