//! Reads variables: texts and numbers, where a blank one counts as not set, and comparisons between them.

use std::ffi::OsString;

use super::error::EnvironmentError;

/// More ranks are a typing error rather than a cluster. The limit keeps later sizes within bounds.
pub(super) const MAX_RANKS: usize = 1 << 20;

/// A source of variables.
#[derive(Clone, Copy)]
pub(super) struct Variables<'a>(pub &'a dyn Fn(&str) -> Option<OsString>);

/// A rank's numbers among all ranks, and among those of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub rank: usize,
    pub world_size: usize,
    pub local_rank: usize,
    pub local_world_size: usize,
}

/// The variables that hold [`Numbers`].
pub(super) struct Names {
    pub rank: &'static str,
    pub world_size: &'static str,
    pub local_rank: &'static str,
    pub local_world_size: &'static str,
}

impl Variables<'_> {
    pub fn text(&self, name: &'static str) -> Result<Option<String>, EnvironmentError> {
        match (self.0)(name).map(OsString::into_string) {
            Some(Ok(value)) => Ok(Some(value.trim().to_owned()).filter(|value| !value.is_empty())),
            Some(Err(_)) => Err(EnvironmentError::NotText(name)),
            None => Ok(None),
        }
    }

    pub fn is_set(&self, name: &'static str) -> bool {
        !matches!(self.text(name), Ok(None))
    }

    pub fn number(&self, name: &'static str, least: usize, most: usize) -> Result<Option<usize>, EnvironmentError> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        match value.parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(EnvironmentError::Number { name, value, least, most }),
        }
    }

    /// An index, from 0.
    pub fn index(&self, name: &'static str) -> Result<Option<usize>, EnvironmentError> {
        self.number(name, 0, MAX_RANKS - 1)
    }

    /// A count, from 1.
    pub fn count(&self, name: &'static str) -> Result<Option<usize>, EnvironmentError> {
        self.number(name, 1, MAX_RANKS)
    }

    /// A port.
    pub fn port(&self, name: &'static str) -> Result<Option<u16>, EnvironmentError> {
        let port = self.number(name, 1, u16::MAX.into())?;
        Ok(port.and_then(|port| u16::try_from(port).ok()))
    }

    /// A rank's numbers, checked against each other; `None` if neither rank nor world size is set.
    ///
    /// Without local variables all ranks are assumed to share this machine, which is usually true of `env://` set by
    /// hand.
    pub fn numbers(&self, names: &Names) -> Result<Option<Numbers>, EnvironmentError> {
        let pair = (self.index(names.rank)?, self.count(names.world_size)?);
        let Some((rank, world_size)) = both(pair, names.rank, names.world_size)? else { return Ok(None) };
        let pair = (self.index(names.local_rank)?, self.count(names.local_world_size)?);
        let local = both(pair, names.local_rank, names.local_world_size)?;
        let (local_rank, local_world_size) = local.unwrap_or((rank, world_size));
        let numbers = Numbers { rank, world_size, local_rank, local_world_size };
        // A rank beyond the world size is the clearer error.
        below((names.rank, rank), (names.world_size, world_size))?;
        numbers.check(names).map(|()| Some(numbers))
    }
}

impl Numbers {
    pub fn check(&self, names: &Names) -> Result<(), EnvironmentError> {
        let rank = (names.rank, self.rank);
        let world_size = (names.world_size, self.world_size);
        let local_rank = (names.local_rank, self.local_rank);
        let local_world_size = (names.local_world_size, self.local_world_size);
        below(rank, world_size)?;
        below(local_rank, local_world_size)?;
        at_most(local_world_size, world_size)?;
        at_most(local_rank, rank)
    }

    /// The node of this rank and the number of nodes, if the launcher gives neither. Ranks are assumed to fill one node
    /// after another.
    pub fn nodes_by_block(&self) -> (usize, usize) {
        let node_count = self.world_size.div_ceil(self.local_world_size);
        ((self.rank / self.local_world_size).min(node_count - 1), node_count)
    }

    pub fn share_a_node(&self) -> bool {
        self.local_world_size == self.world_size
    }
}

pub(super) fn both<A, B>(
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

/// A variable and its number.
type Named = (&'static str, usize);

pub(super) fn below(own: Named, bound: Named) -> Result<(), EnvironmentError> {
    require(own.1 < bound.1, own, "less than", bound)
}

pub(super) fn at_most(own: Named, bound: Named) -> Result<(), EnvironmentError> {
    require(own.1 <= bound.1, own, "at most", bound)
}

/// An error unless the relation holds.
pub(super) fn require(
    holds: bool,
    (name, value): Named,
    relation: &'static str,
    (bound_name, bound): Named,
) -> Result<(), EnvironmentError> {
    if holds { Ok(()) } else { Err(EnvironmentError::Contradiction { name, value, bound_name, bound, relation }) }
}
