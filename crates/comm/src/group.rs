//! The process group: the handle through which a rank talks to the others.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cause::{Cause, CauseKind};
use crate::element::{Element, Reduction};
use crate::engine::{Engine, Handle};
use crate::error::JoinError;
use crate::failure::{Failure, GroupEvent};
use crate::flight::FlightRecorder;
use crate::operation::{Identity, Kind, Operation};
use crate::rendezvous::Liaison;
use crate::shards::ShardMap;
use crate::transport::region::Region;
use crate::transport::shared::SharedTransport;
use crate::transport::{Members, Transport};

/// No rank may gather more than this from all ranks together by [`Group::all_gather_bytes`].
const GATHER_LIMIT: usize = 256 << 20;

/// How a group behaves beside its members and transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Time to let pass before each operation is carried out: a slow network, for tests of what overlaps with it.
    pub delay_per_operation: Duration,
    /// How long a rank waits in an operation for others before the group fails, naming them: ten minutes, as PyTorch's NCCL
    /// groups do.
    pub timeout: Duration,
    /// How long before observers hear of it: half a minute.
    pub stall_warning: Duration,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            delay_per_operation: Duration::ZERO,
            timeout: Duration::from_secs(600),
            stall_warning: Duration::from_secs(30),
        }
    }
}

/// What [`Group::reduce`] makes of one number from each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum: for counts, such as correct predictions.
    Sum,
    /// Their mean: for what is a mean on each rank already, such as a loss over batches of one size.
    Mean,
}

/// One rank's handle of its group. Clones are the same member; the member leaves when the last one is dropped.
///
/// All ranks call the same operations in the same order; what differs is an error that names the two ranks. Once the group
/// has failed, every operation pending or to come on every rank ends with the same [`Cause`].
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
    core: Arc<Core>,
}

/// What ends with the last clone.
struct Core {
    members: Members,
    failure: Arc<Failure>,
    recorder: FlightRecorder,
    /// None in a group of one.
    engine: Option<Engine>,
    /// None in a group of one, and between threads. Dropped last, when this rank waits for nobody any more.
    _liaison: Option<Liaison>,
}

impl Group {
    /// A group of one, which needs nobody.
    pub fn single() -> Self {
        let members = Members { rank: 0, hosts: vec![crate::cause::host_name()], identity: Identity::default() };
        let (failure, recorder) = Default::default();
        Group { core: Arc::new(Core { members, failure, recorder, engine: None, _liaison: None }) }
    }

    /// A group of `n` ranks that are threads of this process; element r is the handle of rank r.
    pub fn threads(n: usize) -> Result<Vec<Group>, JoinError> {
        Self::threads_with(n, GroupOptions::default())
    }

    /// The same, with options.
    pub fn threads_with(n: usize, options: GroupOptions) -> Result<Vec<Group>, JoinError> {
        if n <= 1 {
            return Ok((0..n).map(|_| Group::single()).collect());
        }
        let region = Arc::new(Region::private(n).map_err(|source| JoinError::SharedMemory { source })?);
        let failure = Arc::new(Failure::default());
        let hosts = vec![crate::cause::host_name(); n];
        (0..n)
            .map(|rank| {
                let members = Members { rank, hosts: hosts.clone(), identity: Identity::default() };
                let transport = Box::new(SharedTransport::new(region.clone(), members.clone()));
                Self::new(members, transport, failure.clone(), FlightRecorder::default(), options, None)
            })
            .collect()
    }

    pub(crate) fn new(
        members: Members,
        transport: Box<dyn Transport>,
        failure: Arc<Failure>,
        recorder: FlightRecorder,
        options: GroupOptions,
        liaison: Option<Liaison>,
    ) -> Result<Self, JoinError> {
        let engine = Engine::start(transport, failure.clone(), recorder.clone(), options)
            .map_err(|source| JoinError::Thread { source })?;
        Ok(Group { core: Arc::new(Core { members, failure, recorder, engine: Some(engine), _liaison: liaison }) })
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.core.members.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.core.members.world_size()
    }

    /// Which attempt of the job this is, on all ranks: 0 at first, and more after each restart.
    pub fn attempt(&self) -> u32 {
        self.core.members.identity.attempt
    }

    /// Whether this is rank 0: the one that talks and writes files.
    pub fn is_main(&self) -> bool {
        self.rank() == 0
    }

    /// One number out of one from each rank, on every rank; the number itself in a group of one.
    ///
    /// ```
    /// use enmasse_comm::{Group, Reduce};
    /// assert_eq!(Group::single().reduce(0.25, Reduce::Mean)?, 0.25);
    /// # Ok::<(), std::sync::Arc<enmasse_comm::Cause>>(())
    /// ```
    pub fn reduce(&self, value: f64, by: Reduce) -> Result<f64, Arc<Cause>> {
        let mut sum = [value];
        self.all_reduce(&mut sum)?;
        Ok(match by {
            Reduce::Sum => sum[0],
            Reduce::Mean => sum[0] / self.world_size() as f64,
        })
    }

    /// The sum over all ranks, in the fixed tree of [`crate::tree_fold`], on every rank.
    pub fn all_reduce<T: Element>(&self, data: &mut [T]) -> Result<(), Arc<Cause>> {
        self.all_reduce_with(data, Reduction::Sum)
    }

    /// The same for any reduction.
    pub fn all_reduce_with<T: Element>(&self, data: &mut [T], reduction: Reduction) -> Result<(), Arc<Cause>> {
        let pointer = data.as_mut_ptr();
        self.run(Operation { reduction, ..self.all_reduce_of(pointer, data.len()) })
    }

    /// Starts the sum over all ranks of `len` elements at `data`, and returns. The communication thread carries out what was
    /// started in order.
    ///
    /// # Safety
    /// The memory stays valid, and nobody else touches it, until [`Handle::wait`] has returned or the handle was dropped; the
    /// handle is not forgotten.
    pub unsafe fn all_reduce_start<T: Element>(&self, data: *mut T, len: usize) -> Handle {
        self.start(self.all_reduce_of(data, len))
    }

    /// The sum over `shards` shards in the fixed tree of [`crate::tree_fold`], on every rank: the same bits whether each rank
    /// hosts one of them or a rank several, as a [`ShardMap`] divides them.
    ///
    /// A rank adds up its shards as far as they are whole subtrees ([`ShardMap::schedule`]). Partial sum j lies in `data` from
    /// `j * stride` on, `len` elements. The first `len` elements become the result; what the others are then is undefined.
    ///
    /// ```
    /// use enmasse_comm::Group;
    /// // Three shards on two ranks: rank 0 hosts shards 0 and 1, and has added them up.
    /// let ranks = Group::threads(2)?.into_iter().map(|group| {
    ///     std::thread::spawn(move || {
    ///         let mut values = if group.rank() == 0 { [1.0 + 2.0] } else { [4.0f32] };
    ///         group.all_reduce_shards(&mut values, 1, 1, 3).map(|()| values)
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap()?, [7.0]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_reduce_shards<T: Element>(
        &self,
        data: &mut [T],
        len: usize,
        stride: usize,
        shards: usize,
    ) -> Result<(), Arc<Cause>> {
        let operation = self.all_reduce_of_shards(data.as_mut_ptr(), len, stride, shards)?;
        let partials = operation.shards.partials(self.rank()).count();
        if (partials - 1)
            .checked_mul(stride)
            .and_then(|start| start.checked_add(len))
            .is_none_or(|end| end > data.len())
        {
            let message = format!(
                "{} elements do not hold {partials} partial sums of {len}, one every {stride} elements",
                data.len()
            );
            return Err(self.misuse(&operation, message));
        }
        self.run(operation)
    }

    /// Starts the same sum of what lies at `data`, and returns.
    ///
    /// # Safety
    /// As for [`Group::all_reduce_start`], for all partial sums of this rank: element `j * stride + i` is valid for each
    /// `i < len` and each number j of a partial sum.
    pub unsafe fn all_reduce_shards_start<T: Element>(
        &self,
        data: *mut T,
        len: usize,
        stride: usize,
        shards: usize,
    ) -> Handle {
        match self.all_reduce_of_shards(data, len, stride, shards) {
            Ok(operation) => self.start(operation),
            Err(cause) => Handle::ended(Err(cause)),
        }
    }

    /// Copies `data` of rank `root` to all others.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Arc<Cause>> {
        let pointer = data.as_mut_ptr();
        let operation = Operation { root, ..Operation::new(Kind::Broadcast, pointer, pointer, data.len()) };
        if root >= self.world_size() {
            return Err(self.misuse(&operation, format!("there is no rank {root}: use 0 to {}", self.world_size() - 1)));
        }
        self.run(operation)
    }

    /// Puts every rank's `input` one after another into `output`, which has room for as many from each rank.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Arc<Cause>> {
        let operation = Operation::new(Kind::AllGather, input.as_ptr(), output.as_mut_ptr(), input.len());
        if input.len().checked_mul(self.world_size()) != Some(output.len()) {
            let (world_size, found) = (self.world_size(), output.len());
            let message = format!("the output has {found} elements: {} for each of {world_size} ranks", input.len());
            return Err(self.misuse(&operation, message));
        }
        let start = self.rank() * input.len();
        output[start..start + input.len()].copy_from_slice(input);
        self.run(operation)
    }

    /// Everybody's bytes, which may differ in length: up to 256 MiB together.
    pub fn all_gather_bytes(&self, input: &[u8]) -> Result<Vec<Vec<u8>>, Arc<Cause>> {
        let mut lengths = vec![0; self.world_size()];
        self.all_gather(&[input.len() as i64], &mut lengths)?;
        let total = lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(usize::try_from(length).ok()?));
        if total.is_none_or(|total| total > GATHER_LIMIT) {
            let message = format!("{lengths:?} bytes exceed {GATHER_LIMIT} together: gather in several calls");
            let nothing = Operation::new(Kind::AllGather, input.as_ptr(), std::ptr::null_mut(), input.len());
            return Err(self.misuse(&nothing, message));
        }
        let mut gathered: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0; length as usize]).collect();
        gathered[self.rank()].copy_from_slice(input);
        for (root, bytes) in gathered.iter_mut().enumerate() {
            self.broadcast(bytes, root)?;
        }
        Ok(gathered)
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self) -> Result<(), Arc<Cause>> {
        self.run(Operation::barrier())
    }

    /// Ends the group: on every rank every operation, pending or to come, fails with `cause` within a second, unless the
    /// group has failed before. From any thread, at any time.
    pub fn abort(&self, cause: Cause) {
        self.core.failure.raise(cause);
    }

    /// A cause that names this rank and its host, for [`Group::abort`].
    pub fn own_cause(&self, kind: CauseKind, message: impl Into<String>) -> Cause {
        self.cause_of(self.rank(), kind, message)
    }

    /// A cause that names any rank of the group and its host.
    pub fn cause_of(&self, rank: usize, kind: CauseKind, message: impl Into<String>) -> Cause {
        let host = self.core.members.hosts.get(rank).cloned().unwrap_or_default();
        Cause::new(kind, message).of_rank(rank).on_host(host)
    }

    /// The recorder of this rank's operations. Whoever says at it what the rank is at lets the others know why they wait.
    pub fn flight_recorder(&self) -> &FlightRecorder {
        &self.core.recorder
    }

    /// Has `observer` told what happens to the group, on whichever thread notices: also while this rank's own code is stuck. It
    /// must not hold the group, or use it.
    pub fn observe(&self, observer: impl Fn(&GroupEvent) + Send + Sync + 'static) {
        self.core.failure.observe(self.rank(), Arc::new(observer));
    }

    /// Why the group failed, if it has.
    pub fn cause(&self) -> Option<Arc<Cause>> {
        self.core.failure.cause()
    }

    /// An error once the group has failed; as cheap as one atomic load before.
    #[inline]
    pub fn check(&self) -> Result<(), Arc<Cause>> {
        self.core.failure.check()
    }

    /// A sum over ranks that have one shard each.
    fn all_reduce_of<T: Element>(&self, data: *mut T, len: usize) -> Operation {
        Operation { shards: ShardMap::one_each(self.world_size()), ..Operation::new(Kind::AllReduce, data, data, len) }
    }

    fn all_reduce_of_shards<T: Element>(
        &self,
        data: *mut T,
        len: usize,
        stride: usize,
        shards: usize,
    ) -> Result<Operation, Arc<Cause>> {
        let operation = Operation { stride, ..self.all_reduce_of(data, len) };
        let shards =
            ShardMap::new(shards, self.world_size()).map_err(|error| self.misuse(&operation, error.to_string()))?;
        if stride < len && shards.most_partials() > 1 {
            let message = format!("partial sums of {len} elements overlap where one begins every {stride} elements");
            return Err(self.misuse(&operation, message));
        }
        Ok(Operation { shards, ..operation })
    }

    fn start(&self, operation: Operation) -> Handle {
        match &self.core.engine {
            Some(engine) => engine.start_operation(operation),
            None => Handle::ended(self.check()),
        }
    }

    fn run(&self, operation: Operation) -> Result<(), Arc<Cause>> {
        match &self.core.engine {
            Some(engine) => engine.run(operation),
            None => self.check(),
        }
    }

    /// A call that cannot be right ends the group, since the other ranks wait for this one.
    fn misuse(&self, operation: &Operation, message: String) -> Arc<Cause> {
        let cause = self.own_cause(CauseKind::Error, message).during(operation.describe(), 0);
        self.abort(cause.clone());
        self.cause().unwrap_or_else(|| Arc::new(cause))
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {})", self.rank(), self.world_size())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let rank = self.members.rank;
            let cause = Cause::new(CauseKind::Error, "it panicked; its message is on its standard error");
            self.failure.raise(cause.of_rank(rank).on_host(self.members.hosts[rank].clone()));
        }
        if let Some(engine) = &mut self.engine {
            engine.close();
        }
    }
}
