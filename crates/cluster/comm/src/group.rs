//! The process group: the handle through which a rank communicates with the others.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::algorithm::{Algorithm, AlgorithmChoice};
use crate::buffers::BufferBytes;
use crate::cause::{Cause, CauseKind, host_name};
use crate::engine::Engine;
use crate::error::JoinError;
use crate::failure::{Failure, GroupEvent};
use crate::flight::FlightRecorder;
use crate::operation::{Identity, Operation};
use crate::options::GroupOptions;
use crate::rendezvous::Liveness;
use crate::rendezvous::form::Connectivity;
use crate::topology::Topology;
use crate::traffic::Traffic;
use crate::transport::region::Region;
use crate::transport::shared::SharedTransport;
use crate::transport::{Members, Transport};
use crate::watchdog::{GroupShared, Watchdog};

/// One rank's handle of its group. Clones are the same member; the member leaves when the last one is dropped.
///
/// All ranks call the same operations in the same order. A difference is an error that names the two ranks. Once the
/// group has failed, every pending or later operation on every rank ends with the same [`Cause`].
///
/// ```
/// use enmasse_comm::Group;
/// let ranks = Group::threads(3)?.into_iter().map(|group| {
///     std::thread::spawn(move || {
///         let mut values = [group.rank() as f32; 4];
///         group.all_reduce(&mut values).map(|()| values)
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     assert_eq!(rank.join().unwrap()?, [3.0; 4]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Group {
    pub(crate) core: Arc<Core>,
    /// That of all-reduces by this handle.
    pub(crate) algorithm: Algorithm,
}

/// The state that the last clone drops.
pub(crate) struct Core {
    pub members: Members,
    /// `None` in a group of one.
    pub engine: Option<Engine>,
    /// Groups split from this one so far.
    pub children: AtomicU64,
    /// For operations that other libraries carry out.
    pub group_shared: Arc<GroupShared>,
    pub topology: Topology,
    ways: Vec<String>,
    /// Dropped last, when this rank no longer waits for any other.
    pub group_state: GroupState,
}

/// State that a group shares with the groups split from it.
#[derive(Clone)]
pub(crate) struct GroupState {
    pub failure: Arc<Failure>,
    pub recorder: FlightRecorder,
    pub options: GroupOptions,
    pub watchdog: Arc<Watchdog>,
    /// Nanoseconds that callers on this rank have waited.
    waited: Arc<AtomicU64>,
    pub connectivity: Connectivity,
    /// `None` in a job of one rank, and between threads.
    #[expect(dead_code, reason = "held for its drop")]
    pub liveness: Option<Arc<Liveness>>,
    #[expect(dead_code, reason = "held for its drop")]
    told: Arc<Told>,
}

/// How long the end of a group waits for observers. They write a few lines, unless their disk or terminal hangs.
const OBSERVERS: Duration = Duration::from_secs(10);

/// Dropped last: then observers have been told everything, and what they write is complete.
struct Told(Arc<Failure>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.wait_for_observers(OBSERVERS);
    }
}

impl GroupState {
    pub(crate) fn new(
        failure: Arc<Failure>,
        recorder: FlightRecorder,
        options: GroupOptions,
        connectivity: Connectivity,
        liveness: Option<Arc<Liveness>>,
    ) -> Self {
        let watchdog = Arc::new(Watchdog::new(failure.clone()));
        let told = Arc::new(Told(failure.clone()));
        let waited = Arc::default();
        GroupState { failure, recorder, options, watchdog, waited, connectivity, liveness, told }
    }

    fn within_process(failure: Arc<Failure>, options: GroupOptions) -> Self {
        GroupState::new(failure, FlightRecorder::default(), options, Connectivity::within_process(), None)
    }
}

/// The failure state of ranks that are threads of this process.
fn failure_here(ranks: usize) -> Arc<Failure> {
    let failure = Failure::default();
    failure.set_hosts(vec![host_name(); ranks]);
    Arc::new(failure)
}

impl Group {
    /// A group of one rank, which opens no connection.
    pub fn single() -> Self {
        let place = (Members::of_job(0, 1, Identity::default()), Topology::apart(1));
        Self::of(place, None, None, vec![], GroupState::within_process(failure_here(1), GroupOptions::default()))
    }

    /// A group of `n` ranks that are threads of this process; element r is the handle of rank r.
    ///
    /// # Errors
    /// The kernel gives no memory or no thread.
    pub fn threads(n: usize) -> Result<Vec<Group>, JoinError> {
        Self::threads_with(n, GroupOptions::default())
    }

    /// The same, with options.
    ///
    /// # Errors
    /// The kernel gives no memory or no thread.
    pub fn threads_with(n: usize, options: GroupOptions) -> Result<Vec<Group>, JoinError> {
        if n <= 1 {
            return Ok((0..n).map(|_| Group::single()).collect());
        }
        let region = Arc::new(Region::private(SharedTransport::layout(n)).map_err(JoinError::SharedMemory)?);
        let failure = failure_here(n);
        (0..n)
            .map(|rank| {
                let members = Members::of_job(rank, n, Identity::default());
                let transport = Box::new(SharedTransport::new(region.clone(), members.clone()));
                let ways = vec!["ranks are threads, which share memory".to_owned()];
                let place = (members, Topology::together(n));
                Self::new(place, Some(transport), ways, GroupState::within_process(failure.clone(), options))
            })
            .collect()
    }

    /// A member of a group; without a transport it is the only member.
    pub(crate) fn new(
        place: (Members, Topology),
        transport: Option<Box<dyn Transport>>,
        ways: Vec<String>,
        group_state: GroupState,
    ) -> Result<Self, JoinError> {
        let region = transport.as_ref().and_then(|transport| transport.region());
        let start = |transport| {
            let GroupState { failure, recorder, options, waited, .. } = &group_state;
            Engine::start(transport, failure.clone(), recorder.clone(), *options, waited.clone())
        };
        let engine = transport.map(start).transpose().map_err(JoinError::Thread)?;
        Ok(Self::of(place, engine, region, ways, group_state))
    }

    fn of(
        (members, topology): (Members, Topology),
        engine: Option<Engine>,
        region: Option<Arc<Region>>,
        ways: Vec<String>,
        group_state: GroupState,
    ) -> Self {
        group_state.recorder.joins(members.path);
        let group_shared = Arc::new(GroupShared { members: members.clone(), region, options: group_state.options });
        let algorithm = match group_state.options.all_reduce {
            AlgorithmChoice::Named(algorithm) => algorithm,
            AlgorithmChoice::Auto => Algorithm::default(),
        };
        let children = AtomicU64::new(0);
        let core = Core { members, engine, children, group_shared, topology, ways, group_state };
        Group { core: Arc::new(core), algorithm }
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.core.members.rank
    }

    /// The number in the whole job of a rank of this group. In a group that was not split from another it is the same
    /// number.
    pub fn job_rank(&self, rank: usize) -> usize {
        self.core.members.job_ranks.get(rank).copied().unwrap_or(rank)
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.core.members.world_size()
    }

    /// The attempt of the job, equal on all ranks: 0 at first, and higher after each restart.
    pub fn attempt(&self) -> u32 {
        self.core.members.identity.attempt
    }

    /// How the ranks exchange data, and why some of one machine do not share memory: lines for people, the same on all ranks.
    /// Empty in a group of one.
    pub fn ways(&self) -> &[String] {
        &self.core.ways
    }

    /// What decides by which algorithm the group's all-reduces go.
    pub fn algorithm_choice(&self) -> AlgorithmChoice {
        self.core.group_state.options.all_reduce
    }

    /// The algorithm of all-reduces by this handle.
    pub fn all_reduce_algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// A handle of the same member whose all-reduces go by this algorithm, which the group's ranks must be connected for.
    pub fn summing_by(&self, algorithm: Algorithm) -> Group {
        Group { algorithm, ..self.clone() }
    }

    /// The number of nodes: sets of ranks that share memory.
    pub fn nodes(&self) -> usize {
        self.core.topology.nodes().len()
    }

    /// The memory through which the group's data pass in this process.
    pub fn buffer_bytes(&self) -> BufferBytes {
        self.core.engine.as_ref().map_or(BufferBytes::default(), Engine::buffer_bytes)
    }

    /// What this rank has exchanged with others so far, in operations that have ended. Waits for one that is under way.
    pub fn traffic(&self) -> Traffic {
        self.core.engine.as_ref().map_or(Traffic::default(), Engine::traffic)
    }

    /// Whether this is rank 0, which prints and writes files.
    pub fn is_main(&self) -> bool {
        self.rank() == 0
    }

    /// The name of the machine of a rank of this group; `None` if there is no such rank.
    pub fn host(&self, rank: usize) -> Option<&str> {
        self.core.group_state.failure.host(*self.core.members.job_ranks.get(rank)?)
    }

    /// Total time that callers on this rank have waited for operations of its groups to end, of this one and of those split from the
    /// same job, including the time in which they carried them out.
    pub fn waited(&self) -> Duration {
        self.core.engine.as_ref().map_or(Duration::ZERO, Engine::waited)
    }

    /// Ends the group: every pending or later operation on every rank fails with `cause` within a second, unless the
    /// group has failed before. May be called from any thread, at any time.
    pub fn abort(&self, cause: Cause) {
        self.core.group_state.failure.raise(cause);
    }

    /// The same, and returns the cause that the group settles on: this one, or one that came before.
    pub fn fail(&self, cause: Cause) -> Arc<Cause> {
        self.abort(cause.clone());
        self.cause().unwrap_or_else(|| Arc::new(cause))
    }

    /// A cause that names this rank and its host, for [`Group::abort`].
    pub fn own_cause(&self, kind: CauseKind, message: impl Into<String>) -> Cause {
        self.cause_of(self.rank(), kind, message)
    }

    /// A cause that names the given rank of the group and its host.
    pub(crate) fn cause_of(&self, rank: usize, kind: CauseKind, message: impl Into<String>) -> Cause {
        self.core.group_state.failure.placed(Cause::new(kind, message).of_rank(self.job_rank(rank)))
    }

    /// The recorder of this rank's operations. The activity set here tells the other ranks why they wait.
    pub fn flight_recorder(&self) -> &FlightRecorder {
        &self.core.group_state.recorder
    }

    /// Registers an observer of the group's events. A thread of its own calls it, even while this rank's own code is
    /// stuck, so that an observer that hangs in its output delays no heartbeat. The observer must not hold the group, or
    /// use it.
    pub fn observe(&self, observer: impl Fn(&GroupEvent) + Send + Sync + 'static) {
        self.core.group_state.failure.observe(self.job_rank(self.rank()), Arc::new(observer));
    }

    /// The cause of the failure, if the group has failed.
    pub fn cause(&self) -> Option<Arc<Cause>> {
        self.core.group_state.failure.cause()
    }

    /// An error once the group has failed. Until then it costs one atomic load.
    ///
    /// # Errors
    /// The group's [`Cause`], if it has failed.
    #[inline]
    pub fn check(&self) -> Result<(), Arc<Cause>> {
        self.core.group_state.failure.check()
    }

    /// Ends the group because of an invalid call, since the other ranks wait for this one.
    pub(crate) fn misuse(&self, operation: &Operation, message: String) -> Arc<Cause> {
        let operation = Operation { group: self.core.members.path, ..*operation };
        self.fail(self.own_cause(CauseKind::Error, message).during(operation.describe(), 0))
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {}", self.rank(), self.world_size())?;
        match self.core.members.path {
            path if path.is_whole_job() => f.write_str(")"),
            path => write!(f, " of group {path})"),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Members { rank, job_ranks, .. } = &self.members;
            let cause = Cause::new(CauseKind::Error, "it panicked; see its standard error");
            self.group_state.failure.raise(cause.of_rank(job_ranks[*rank]));
        }
        if let Some(engine) = &mut self.engine {
            engine.close();
        }
    }
}
