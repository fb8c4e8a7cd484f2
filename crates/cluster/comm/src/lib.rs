//! Process groups: store, rendezvous, transports, collectives, and the cause of every failure.
//!
//! Ranks are processes or threads that run the same operations in the same order. A [`Group`] is one rank's handle. All
//! sums are added in one fixed tree over shards ([`tree_fold`]), so that transport, timing and the number of ranks
//! ([`ShardMap`]) never change a bit. Nothing waits for ever: a failure on one rank ends the operations of all, with
//! the same [`Cause`].
//!
//! What torch.distributed and MPI have is here: [`Group::all_reduce`], [`Group::reduce_to`], [`Group::reduce_scatter`],
//! [`Group::broadcast`], [`Group::all_gather`], [`Group::gather`], [`Group::scatter`], [`Group::all_to_all`], [`Group::barrier`] and
//! [`Group::split`]; [`Pair`] sends and receives. Reductions are sum, product, minimum and maximum, of each [`Element`] type. The same
//! operations whose names end with `_owned` return at once, and give their memory back when they end ([`Pending`]).
//!
//! What travels between machines is encrypted and authenticated with keys from a [`Token`] that all ranks hold. The crate `ring`
//! does it, which needs a C compiler.
//!
//! The crate knows bytes, element types and deadlines. It knows no model, and all its state is in its handles, except that
//! MPI starts and ends once in a process.
//!
//! Use it wherever ranks exchange numbers: it needs no other crate of enmasse.
//!
//! ```
//! use enmasse_comm::{Group, Reduce};
//! let ranks = Group::threads(3)?.into_iter().map(|group| {
//!     std::thread::spawn(move || {
//!         let mut gradients = [group.rank() as f32; 4];
//!         group.all_reduce(&mut gradients)?;
//!         group.reduce(f64::from(gradients[0]), Reduce::Mean)
//!     })
//! });
//! for rank in ranks.collect::<Vec<_>>() {
//!     assert_eq!(rank.join().unwrap()?, 0.0 + 1.0 + 2.0);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod algorithm;
mod arrivals;
mod awake;
mod binomial;
mod buffers;
mod cause;
mod clock;
mod collectives;
mod compare;
mod compression;
mod control;
mod cost;
mod element;
mod engine;
mod error;
mod exchange;
mod failure;
mod flight;
#[cfg(fuzzing)]
pub mod fuzzing;
mod group;
mod group_path;
mod locks;
mod memory;
mod mpi;
mod net;
mod operation;
mod options;
mod pair;
mod parts;
mod pending;
mod pieces;
mod received;
#[cfg(test)]
mod relay_tests;
mod rendezvous;
mod rounds;
mod server;
mod shards;
mod split;
mod store;
mod sync;
mod token;
mod topology;
mod traffic;
mod transport;
mod tree;
mod watch;
mod watchdog;

pub use algorithm::{Algorithm, AlgorithmChoice};
pub use buffers::BufferBytes;
pub use cause::{Cause, CauseKind, host_name};
pub use clock::{Clock, ClockOffset};
pub use collectives::Reduce;
pub use compare::ComparedText;
pub use compression::Compression;
pub use cost::{Connection, CostModel, Messages, Work};
pub use element::{DType, Element, Reduction};
pub use engine::Handle;
pub use error::JoinError;
pub use failure::GroupEvent;
pub use flight::{FlightFollower, FlightOperation, FlightRecord, FlightRecorder, TimedOperation};
pub use group::Group;
pub use half::{bf16 as Bf16, f16 as F16};
pub use mpi::{MpiFamily, MpiSums};
pub use net::channel::{Channel, ChannelListener};
pub use net::refused::Refused;
pub use options::GroupOptions;
pub use pair::Pair;
pub use pending::Pending;
pub use rendezvous::{MeetingPoint, Rendezvous, TransportChoice};
pub use shards::{Fold, LocalShard, ShardMap, ShardsError};
pub use token::{TOKEN_BYTES, Token, UserSecretError, WeakToken};
pub use traffic::Traffic;
pub use tree::tree_fold;
pub use watch::Watch;
