//! The environment variables through which a rank learns its place: torchrun's names, read and written.
//!
//! Reading is pure: it takes a lookup, so that every combination can be tested without touching the process.

use std::ffi::OsString;

use thiserror::Error;

/// The rank among all ranks, from 0.
pub const RANK: &str = "RANK";
/// The number of ranks.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// The rank among those of its machine, from 0.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// The number of ranks on this machine.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// The machine among all machines, from 0.
pub const GROUP_RANK: &str = "GROUP_RANK";
/// The number of machines.
pub const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// The host of rank 0.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// The port on which rank 0 opens the store.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// How often the launcher has started the ranks again.
pub const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// How often it would.
pub const MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// The name of the job.
pub const RUN_ID: &str = "TORCHELASTIC_RUN_ID";

/// A rank's place in a launched job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchedRank {
    /// The rank among all ranks.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The rank among those of its node.
    pub local_rank: usize,
    /// The number of ranks on its node.
    pub local_world_size: usize,
    /// The node among all nodes (`GROUP_RANK`).
    pub node: usize,
    /// The number of nodes (`GROUP_WORLD_SIZE`).
    pub node_count: usize,
    /// Where rank 0 opens the store: host and port. Always there when `world_size` is above 1.
    pub master: Option<(String, u16)>,
    /// How often the launcher has started the ranks again.
    pub restart_count: usize,
    /// How often it would.
    pub max_restarts: usize,
    /// The name of the job; empty when the launcher gave none.
    pub run_id: String,
}

/// What is wrong with the variables.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnvironmentError {
    /// One variable without its companion.
    #[error("{missing} is not set although {present} is: set both or neither")]
    HalfSet {
        /// The variable that is set.
        present: &'static str,
        /// The variable that should be.
        missing: &'static str,
    },
    /// Several ranks without a place to meet.
    #[error("WORLD_SIZE is {world_size} but MASTER_ADDR and MASTER_PORT are not set: set them to where rank 0 runs")]
    NoMaster {
        /// The number of ranks.
        world_size: usize,
    },
    /// Not a number of the expected range.
    #[error("{name} is {value:?}: expected a whole number from {least} to {most}")]
    Number {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// Smallest number accepted.
        least: usize,
        /// Largest number accepted.
        most: usize,
    },
    /// Two variables contradict each other.
    #[error("{name} is {value} but {bound_name} is {bound}: {name} must be {relation} {bound_name}")]
    Contradiction {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The variable that bounds it.
        bound_name: &'static str,
        /// That one's value.
        bound: usize,
        /// How they should compare.
        relation: &'static str,
    },
    /// A text that is no text.
    #[error("{0} is not valid UTF-8: set it to plain text")]
    NotText(&'static str),
}

/// Ranks beyond this are a typing error rather than a cluster; the limit keeps later sizes within bounds.
const MOST_RANKS: usize = 1 << 20;

impl LaunchedRank {
    /// This process's place; `None` when neither `RANK` nor `WORLD_SIZE` is set. Blank counts as not set.
    pub fn from_environment() -> Result<Option<Self>, EnvironmentError> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// The same from any source of variables.
    ///
    /// ```
    /// use enmasse_launch::LaunchedRank;
    /// let rank = LaunchedRank::from_lookup(|name| match name {
    ///     "RANK" => Some("0".into()),
    ///     "WORLD_SIZE" => Some("1".into()),
    ///     _ => None,
    /// });
    /// assert_eq!(rank.unwrap().unwrap().local_world_size, 1);
    /// assert_eq!(LaunchedRank::from_lookup(|_| None), Ok(None));
    /// ```
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, EnvironmentError> {
        let text = |name: &'static str| match lookup(name).map(OsString::into_string) {
            Some(Ok(value)) => Ok(Some(value.trim().to_owned()).filter(|value| !value.is_empty())),
            Some(Err(_)) => Err(EnvironmentError::NotText(name)),
            None => Ok(None),
        };
        let number = |name: &'static str, least: usize, most: usize| match text(name)? {
            Some(value) => match value.parse() {
                Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
                _ => Err(EnvironmentError::Number { name, value, least, most }),
            },
            None => Ok(None),
        };

        let pair = (number(RANK, 0, MOST_RANKS - 1)?, number(WORLD_SIZE, 1, MOST_RANKS)?);
        let Some((rank, world_size)) = both(pair, RANK, WORLD_SIZE)? else { return Ok(None) };
        below(RANK, rank, WORLD_SIZE, world_size)?;

        // Without local variables all ranks are taken to share this machine: `env://` by hand mostly means that.
        let pair = (number(LOCAL_RANK, 0, MOST_RANKS - 1)?, number(LOCAL_WORLD_SIZE, 1, MOST_RANKS)?);
        let (local_rank, local_world_size) = match pair {
            (None, None) => (rank, world_size),
            pair => both(pair, LOCAL_RANK, LOCAL_WORLD_SIZE)?.unwrap_or((rank, world_size)),
        };
        below(LOCAL_RANK, local_rank, LOCAL_WORLD_SIZE, local_world_size)?;
        at_most(LOCAL_WORLD_SIZE, local_world_size, WORLD_SIZE, world_size)?;
        at_most(LOCAL_RANK, local_rank, RANK, rank)?;

        let pair = (number(GROUP_RANK, 0, MOST_RANKS - 1)?, number(GROUP_WORLD_SIZE, 1, MOST_RANKS)?);
        let (node, node_count) = both(pair, GROUP_RANK, GROUP_WORLD_SIZE)?.unwrap_or((0, 1));
        below(GROUP_RANK, node, GROUP_WORLD_SIZE, node_count)?;
        at_most(GROUP_WORLD_SIZE, node_count, WORLD_SIZE, world_size)?;

        let pair = (text(MASTER_ADDR)?, number(MASTER_PORT, 1, u16::MAX.into())?);
        // A stray address alone harms nobody who is alone; two ranks without a whole one would never meet.
        let master = match pair {
            (Some(host), Some(port)) => u16::try_from(port).ok().map(|port| (host, port)),
            _ if world_size == 1 => None,
            (None, None) => return Err(EnvironmentError::NoMaster { world_size }),
            pair => both(pair, MASTER_ADDR, MASTER_PORT)?.and(None),
        };

        Ok(Some(LaunchedRank {
            rank,
            world_size,
            local_rank,
            local_world_size,
            node,
            node_count,
            master,
            restart_count: number(RESTART_COUNT, 0, usize::MAX)?.unwrap_or(0),
            max_restarts: number(MAX_RESTARTS, 0, usize::MAX)?.unwrap_or(0),
            run_id: text(RUN_ID)?.unwrap_or_default(),
        }))
    }

    /// The variables that tell a process it is this rank, as torchrun sets them.
    ///
    /// `TORCHELASTIC_USE_AGENT_STORE=False` says that rank 0 opens the store itself. A worker without `OMP_NUM_THREADS`
    /// among several would take every core, so `omp_is_set` decides whether it gets one thread.
    pub fn variables(&self, omp_is_set: bool) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            (RANK, self.rank.to_string()),
            (WORLD_SIZE, self.world_size.to_string()),
            (LOCAL_RANK, self.local_rank.to_string()),
            (LOCAL_WORLD_SIZE, self.local_world_size.to_string()),
            (GROUP_RANK, self.node.to_string()),
            (GROUP_WORLD_SIZE, self.node_count.to_string()),
            // One role: every rank trains.
            ("ROLE_NAME", "default".into()),
            ("ROLE_RANK", self.rank.to_string()),
            ("ROLE_WORLD_SIZE", self.world_size.to_string()),
            (RESTART_COUNT, self.restart_count.to_string()),
            (MAX_RESTARTS, self.max_restarts.to_string()),
            (RUN_ID, self.run_id.clone()),
            ("TORCHELASTIC_USE_AGENT_STORE", "False".into()),
        ];
        if let Some((host, port)) = &self.master {
            variables.extend([(MASTER_ADDR, host.clone()), (MASTER_PORT, port.to_string())]);
        }
        if !omp_is_set && self.world_size > 1 {
            variables.push(("OMP_NUM_THREADS", "1".into()));
        }
        variables
    }
}

fn both<A, B>(
    pair: (Option<A>, Option<B>),
    first: &'static str,
    second: &'static str,
) -> Result<Option<(A, B)>, EnvironmentError> {
    match pair {
        (Some(a), Some(b)) => Ok(Some((a, b))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(EnvironmentError::HalfSet { present: first, missing: second }),
        (None, Some(_)) => Err(EnvironmentError::HalfSet { present: second, missing: first }),
    }
}

fn below(name: &'static str, value: usize, bound_name: &'static str, bound: usize) -> Result<(), EnvironmentError> {
    if value < bound {
        return Ok(());
    }
    Err(EnvironmentError::Contradiction { name, value, bound_name, bound, relation: "less than" })
}

fn at_most(name: &'static str, value: usize, bound_name: &'static str, bound: usize) -> Result<(), EnvironmentError> {
    if value <= bound {
        return Ok(());
    }
    Err(EnvironmentError::Contradiction { name, value, bound_name, bound, relation: "at most" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt;

    /// Reads `"RANK=1 WORLD_SIZE=2"`.
    fn read(variables: &str) -> Result<Option<LaunchedRank>, EnvironmentError> {
        LaunchedRank::from_lookup(|name| {
            variables
                .split(' ')
                .filter_map(|pair| pair.split_once('='))
                .find(|&(n, _)| n == name)
                .map(|(_, v)| v.into())
        })
    }

    const ADDRESS: &str = "MASTER_ADDR=h MASTER_PORT=2000";

    #[test]
    fn places() {
        let check = |variables: &str, expected: Option<[usize; 6]>| {
            let place = read(variables).unwrap_or_else(|e| panic!("{variables}: {e}"));
            let place = place.map(|p| [p.rank, p.world_size, p.local_rank, p.local_world_size, p.node, p.node_count]);
            assert_eq!(place, expected, "{variables}");
        };
        check("", None);
        check("RANK= WORLD_SIZE=", None);
        // What a batch script may export before anything is launched.
        check("MASTER_ADDR=h", None);
        check("LOCAL_RANK=1", None);
        check("RANK=\t WORLD_SIZE=", None);
        check("RANK=0 WORLD_SIZE=1", Some([0, 1, 0, 1, 0, 1]));
        check("RANK=0 WORLD_SIZE=1 MASTER_ADDR=h", Some([0, 1, 0, 1, 0, 1]));
        check(&format!("RANK=1 WORLD_SIZE=2 {ADDRESS}"), Some([1, 2, 1, 2, 0, 1]));
        check(
            &format!("RANK=5 WORLD_SIZE=6 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=2 GROUP_WORLD_SIZE=3 {ADDRESS}"),
            Some([5, 6, 1, 2, 2, 3]),
        );
    }

    #[test]
    fn contradictions() {
        let check = |variables: &str, expected: &str| assert_eq!(read(variables).unwrap_err().to_string(), expected);
        let half =
            |present: &str, missing: &str| format!("{missing} is not set although {present} is: set both or neither");
        check("RANK=0", &half("RANK", "WORLD_SIZE"));
        check("RANK=0 WORLD_SIZE=", &half("RANK", "WORLD_SIZE"));
        check("WORLD_SIZE=2", &half("WORLD_SIZE", "RANK"));
        check(
            "RANK=0 WORLD_SIZE=2",
            "WORLD_SIZE is 2 but MASTER_ADDR and MASTER_PORT are not set: set them to where rank 0 runs",
        );
        check("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h", &half("MASTER_ADDR", "MASTER_PORT"));
        check("RANK=0 WORLD_SIZE=2 MASTER_PORT=1", &half("MASTER_PORT", "MASTER_ADDR"));
        check("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", &half("LOCAL_RANK", "LOCAL_WORLD_SIZE"));
        check("RANK=0 WORLD_SIZE=1 GROUP_WORLD_SIZE=1", &half("GROUP_WORLD_SIZE", "GROUP_RANK"));
        check("RANK=2 WORLD_SIZE=2", "RANK is 2 but WORLD_SIZE is 2: RANK must be less than WORLD_SIZE");
        check(
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3",
            "LOCAL_WORLD_SIZE is 3 but WORLD_SIZE is 2: LOCAL_WORLD_SIZE must be at most WORLD_SIZE",
        );
        check(
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2",
            "LOCAL_RANK is 1 but RANK is 0: LOCAL_RANK must be at most RANK",
        );
        check("RANK=x WORLD_SIZE=2", "RANK is \"x\": expected a whole number from 0 to 1048575");
        check("RANK=-1 WORLD_SIZE=2", "RANK is \"-1\": expected a whole number from 0 to 1048575");
        check("RANK=0 WORLD_SIZE=0", "WORLD_SIZE is \"0\": expected a whole number from 1 to 1048576");
        check(
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=70000",
            "MASTER_PORT is \"70000\": expected a whole number from 1 to 65535",
        );
    }

    #[test]
    fn bytes_that_are_no_text() {
        let place = LaunchedRank::from_lookup(|name| (name == RANK).then(|| OsString::from_vec(vec![0xff])));
        assert_eq!(place, Err(EnvironmentError::NotText(RANK)));
    }

    #[test]
    fn one_thread_each_unless_told() {
        let check = |world_size: usize, is_set: bool, expected: bool| {
            let variables = read(&format!("RANK=0 WORLD_SIZE={world_size} {ADDRESS}")).unwrap().unwrap();
            let omp = variables.variables(is_set).into_iter().find(|(name, _)| *name == "OMP_NUM_THREADS");
            assert_eq!(omp, expected.then(|| ("OMP_NUM_THREADS", "1".into())), "{world_size} {is_set}");
        };
        check(1, false, false);
        check(2, false, true);
        check(2, true, false);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            nodes in 1usize..4, per_node in 1usize..5, pick: prop::sample::Index, restarts in 0usize..4, port in 1u16..,
        ) {
            let (world_size, rank) = (nodes * per_node, pick.index(nodes * per_node));
            let place = LaunchedRank {
                rank,
                world_size,
                local_rank: rank % per_node,
                local_world_size: per_node,
                node: rank / per_node,
                node_count: nodes,
                master: Some(("127.0.0.1".into(), port)),
                restart_count: restarts,
                max_restarts: 3,
                run_id: "job".into(),
            };
            let variables = place.variables(false);
            let found = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
            prop_assert_eq!(LaunchedRank::from_lookup(found), Ok(Some(place)));
        }
    }
}
