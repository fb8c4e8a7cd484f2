//! The flight recorder: a rank's latest operations and the activity of its own code, kept for the
//! diagnosis of failures.
//!
//! Recording allocates nothing. An operation that has begun but not ended is the one that the rank
//! was in. A rank that has begun fewer operations than the others was in its own code, and its
//! activity says where. Heartbeats carry an activity that lasts long. It becomes part of the
//! warning of the ranks that wait, and of the cause at the end. Named after PyTorch's recorder.

mod follower;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::group_path::GroupPath;
use crate::locks::lock;
use crate::operation::{Header, Identity, Operation};
use crate::received::{take, take_u64};
pub use follower::{FlightFollower, TimedOperation};

/// Number of operations kept: some twenty steps of a model with as many buckets.
const CAPACITY: usize = 512;
/// Length limit of an activity on the wire, in bytes.
const ACTIVITY_LIMIT: usize = 120;
/// The most groups on the wire, of those formed last.
const GROUPS_LIMIT: usize = 32;

/// A rank's recorder. Clones share one record.
#[derive(Clone, Debug)]
pub struct FlightRecorder {
    flight: Arc<Mutex<Flight>>,
}

#[derive(Debug)]
struct Flight {
    activity: &'static str,
    since: Instant,
    /// Operations queued so far, of all groups; the n-th lies at index (n - 1) modulo the capacity.
    queued: u64,
    ring: Vec<Entry>,
    /// The rank's groups, each with the number of watched operations begun so far.
    begun: Vec<(GroupPath, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    what: Recorded,
    bytes: usize,
    /// Whether its caller went on, to wait for it later.
    in_background: bool,
    queued: Instant,
    started: Option<Instant>,
    ended: Option<Instant>,
    /// When its caller waited for it, if that came later.
    awaited: Option<[Instant; 2]>,
}

/// A recorded operation; its description is formatted only on demand.
#[derive(Clone, Copy, Debug)]
enum Recorded {
    Operation(Header),
    Watched(Watched),
}

/// An operation that another library carries out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    pub name: &'static str,
    pub bytes: usize,
    pub group: GroupPath,
    /// Its number among the group's watched operations, from 1.
    pub sequence: u64,
}

impl Watched {
    /// The operation's description, without its number.
    pub(crate) fn describe(&self) -> String {
        self.group.name_operation(format!("{} of {} bytes", self.name, self.bytes))
    }
}

impl Recorded {
    fn describe(&self) -> (u64, String) {
        match self {
            Recorded::Operation(header) => (header.sequence(), header.operation()),
            Recorded::Watched(watched) => (watched.sequence, watched.describe()),
        }
    }
}

/// A recorder's contents. Times are milliseconds since 1970 (UTC), by this machine's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightRecord {
    /// When the record was taken.
    pub time: u64,
    /// The activity of the rank's own code.
    pub activity: String,
    /// When that activity began.
    pub since: u64,
    /// The latest operations, in order.
    pub operations: Vec<FlightOperation>,
}

/// An operation in a [`FlightRecord`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightOperation {
    /// Its number in the group, from 1; watched operations are numbered separately.
    pub sequence: u64,
    /// Its description, such as `all_reduce(sum) of 1000 f32`.
    pub operation: String,
    /// When the rank requested it.
    pub queued: u64,
    /// When its turn came.
    pub started: Option<u64>,
    /// When it was done; `None` if it failed.
    pub ended: Option<u64>,
}

impl Default for FlightRecorder {
    fn default() -> Self {
        let ring = Vec::with_capacity(CAPACITY);
        let flight = Flight { activity: "starting", since: Instant::now(), queued: 0, ring, begun: Vec::new() };
        FlightRecorder { flight: Arc::new(Mutex::new(flight)) }
    }
}

impl FlightRecorder {
    /// Sets the activity of this rank's own code from now on, such as `reading a batch`.
    pub fn at(&self, activity: &'static str) {
        let mut flight = lock(&self.flight);
        flight.activity = activity;
        flight.since = Instant::now();
    }

    /// The current contents.
    pub fn record(&self) -> FlightRecord {
        let flight = lock(&self.flight);
        let now = Instant::now();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as u64);
        let at = |instant: Instant| time.saturating_sub(now.duration_since(instant).as_millis() as u64);
        let operations = flight.entries().map(|entry| {
            let (sequence, operation) = entry.what.describe();
            let (started, ended) = (entry.started.map(at), entry.ended.map(at));
            FlightOperation { sequence, operation, queued: at(entry.queued), started, ended }
        });
        FlightRecord {
            time,
            activity: flight.activity.to_owned(),
            since: at(flight.since),
            operations: operations.collect(),
        }
    }

    /// Records an operation, and returns its number in the record. In the background its caller goes on meanwhile.
    pub(crate) fn queued(&self, operation: &Operation, in_background: bool) -> u64 {
        let what = Recorded::Operation(operation.header(Identity::default()));
        let bytes = operation.count * operation.dtype.size();
        let queued = Instant::now();
        lock(&self.flight).append(Entry {
            what,
            bytes,
            in_background,
            queued,
            started: None,
            ended: None,
            awaited: None,
        })
    }

    /// Makes the rank a member of a group, in which it has begun no watched operation.
    pub(crate) fn joins(&self, group: GroupPath) {
        lock(&self.flight).begun.push((group, 0));
    }

    /// Numbers a watched operation of a group and records that it begins now. Returns its number in the record, too.
    pub(crate) fn watched(&self, group: GroupPath, name: &'static str, bytes: usize) -> (Watched, u64) {
        let now = Instant::now();
        let in_background = false;
        let mut flight = lock(&self.flight);
        let place = flight.begun.iter_mut().find(|(of, _)| *of == group);
        let sequence = place.map_or(1, |(_, begun)| {
            *begun += 1;
            *begun
        });
        let operation = Watched { name, bytes, group, sequence };
        let what = Recorded::Watched(operation);
        let started = Some(now);
        let entry = Entry { what, bytes, in_background, queued: now, started, ended: None, awaited: None };
        (operation, flight.append(entry))
    }

    /// The number of watched operations of a group that the rank has begun; `None` if it is no member.
    pub(crate) fn begun(&self, group: GroupPath) -> Option<u64> {
        begun_of(&lock(&self.flight).begun, group)
    }

    pub(crate) fn started(&self, number: u64) {
        lock(&self.flight).entry(number, |entry| entry.started = Some(Instant::now()));
    }

    pub(crate) fn ended(&self, number: u64) {
        lock(&self.flight).entry(number, |entry| entry.ended = Some(Instant::now()));
    }

    /// Records that the caller of an operation in the background has waited for it, from `began` until now.
    pub(crate) fn awaited(&self, number: u64, began: Instant) {
        lock(&self.flight).entry(number, |entry| entry.awaited = Some([began, Instant::now()]));
    }

    /// The rank's activity, if it has lasted at least this long. Otherwise nothing is allocated.
    pub(crate) fn standing(&self, at_least: Duration) -> Option<Standing> {
        let flight = lock(&self.flight);
        let lasting = flight.since.elapsed();
        let latest = flight.begun.len().saturating_sub(GROUPS_LIMIT);
        let begun = || flight.begun[latest..].to_vec();
        (lasting >= at_least).then(|| Standing { activity: flight.activity.to_owned(), lasting, begun: begun() })
    }
}

/// An operation's index in the ring; operations are numbered from 1.
fn place(number: u64) -> usize {
    ((number - 1) % CAPACITY as u64) as usize
}

impl Flight {
    fn append(&mut self, entry: Entry) -> u64 {
        self.queued += 1;
        match self.ring.get_mut(place(self.queued)) {
            Some(oldest) => *oldest = entry,
            // Within the capacity allocated at the start.
            None => self.ring.push(entry),
        }
        self.queued
    }

    /// Changes an entry, unless a later one has replaced it.
    fn entry(&mut self, number: u64, change: impl FnOnce(&mut Entry)) {
        if number + CAPACITY as u64 > self.queued
            && let Some(entry) = self.ring.get_mut(place(number))
        {
            change(entry);
        }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let first = self.queued - self.ring.len() as u64 + 1;
        (first..=self.queued).map(|number| &self.ring[place(number)])
    }
}

/// The watched operations of a group that a rank has begun, by those of all its groups; `None` if it is no member.
fn begun_of(begun: &[(GroupPath, u64)], group: GroupPath) -> Option<u64> {
    begun.iter().find_map(|&(of, begun)| (of == group).then_some(begun))
}

/// The part of a heartbeat that reports a long-lasting activity, and the watched operations begun until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub activity: String,
    pub lasting: Duration,
    /// The rank's groups, each with the number of its watched operations.
    pub begun: Vec<(GroupPath, u64)>,
}

impl Standing {
    /// See [`FlightRecorder::begun`].
    pub(crate) fn begun(&self, group: GroupPath) -> Option<u64> {
        begun_of(&self.begun, group)
    }

    /// The lasting in milliseconds, the number of groups in a byte, the groups, the activity.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let activity = &self.activity[..self.activity.floor_char_boundary(ACTIVITY_LIMIT)];
        let mut bytes = (self.lasting.as_millis() as u64).to_le_bytes().to_vec();
        bytes.push(self.begun.len() as u8);
        let counters = self.begun.iter().flat_map(|(group, begun)| [group.0, *begun]);
        bytes.extend(counters.flat_map(u64::to_le_bytes));
        bytes.extend(activity.as_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let lasting = Duration::from_millis(take_u64(&mut rest)?);
        let [groups] = take(&mut rest)?;
        let group = |_| Some((GroupPath(take_u64(&mut rest)?), take_u64(&mut rest)?));
        let begun: Vec<_> = (0..groups).map(group).collect::<Option<_>>()?;
        let activity = std::str::from_utf8(rest).ok()?.to_owned();
        let is_bounded = begun.len() <= GROUPS_LIMIT && activity.len() <= ACTIVITY_LIMIT;
        is_bounded.then_some(Standing { activity, lasting, begun })
    }
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "it has been {} for {:.0} s", self.activity, self.lasting.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Kind;

    fn operation(sequence: u64) -> Operation {
        let nothing = std::ptr::NonNull::<f32>::dangling().as_ptr();
        Operation { sequence, ..Operation::new(Kind::AllReduce, nothing, nothing, 8) }
    }

    #[test]
    fn the_latest_operations_are_kept() {
        let recorder = FlightRecorder::default();
        assert_eq!(recorder.record().operations, []);
        let last = CAPACITY as u64 + 3;
        for sequence in 1..=last {
            recorder.queued(&operation(sequence), true);
            if sequence < last {
                recorder.started(sequence);
            }
            if sequence + 1 < last {
                recorder.ended(sequence);
            }
        }
        // Already overwritten.
        recorder.ended(1);
        let operations = recorder.record().operations;
        assert_eq!(operations.len(), CAPACITY);
        let states: Vec<_> =
            operations.iter().map(|op| (op.sequence, op.started.is_some(), op.ended.is_some())).collect();
        assert_eq!(states[0], (4, true, true));
        assert_eq!(states[CAPACITY - 3..], [(last - 2, true, true), (last - 1, true, false), (last, false, false)]);
        assert_eq!(operations[0].operation, "all_reduce(sum) of 8 f32");
    }

    #[test]
    fn times_are_in_order() {
        let recorder = FlightRecorder::default();
        recorder.at("reading a batch");
        recorder.queued(&operation(1), false);
        recorder.started(1);
        recorder.ended(1);
        let record = recorder.record();
        let operation = &record.operations[0];
        let times = [record.since, operation.queued, operation.started.unwrap(), operation.ended.unwrap(), record.time];
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(record.activity, "reading a batch");
    }

    #[test]
    fn standings_round_trip() {
        let group = GroupPath::default().child(2).unwrap();
        let begun = vec![(GroupPath::default(), 7), (group, 1 << 40)];
        let standing =
            Standing { activity: "reading a batch".to_owned(), lasting: Duration::from_millis(31_400), begun };
        assert_eq!(Standing::from_bytes(&standing.to_bytes()), Some(standing.clone()));
        assert_eq!(standing.to_string(), "it has been reading a batch for 31 s");
        assert_eq!((standing.begun(group), standing.begun(group.child(0).unwrap())), (Some(1 << 40), None));
        let long = Standing { activity: "é".repeat(ACTIVITY_LIMIT), ..standing };
        assert_eq!(Standing::from_bytes(&long.to_bytes()).unwrap().activity, "é".repeat(ACTIVITY_LIMIT / 2));
        let with = |groups: u8, rest: &[u8]| [&[0; 8][..], &[groups], rest].concat();
        let malformed = [
            vec![0; 7],
            vec![0; 8],
            with(0, &[0xff]),
            with(0, &[b'a'; ACTIVITY_LIMIT + 1]),
            with(1, &[0; 15]),
            with(GROUPS_LIMIT as u8 + 1, &[0; (GROUPS_LIMIT + 1) * 16]),
        ];
        for malformed in malformed {
            assert_eq!(Standing::from_bytes(&malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn watched_operations_are_numbered_in_each_group() {
        let recorder = FlightRecorder::default();
        let group = GroupPath::default().child(0).unwrap();
        assert_eq!(recorder.begun(group), None);
        [GroupPath::default(), group].into_iter().for_each(|group| recorder.joins(group));
        let numbers = [group, GroupPath::default(), group].map(|of| recorder.watched(of, "all_reduce", 4).0.sequence);
        assert_eq!(
            (numbers, recorder.begun(group), recorder.begun(GroupPath::default())),
            ([1, 1, 2], Some(2), Some(1))
        );
        assert_eq!(recorder.standing(Duration::ZERO).unwrap().begun, [(GroupPath::default(), 1), (group, 2)]);
    }
}
