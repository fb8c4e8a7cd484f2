//! Converts the machine's objects to values, inner ones first and without recursion.

use crate::node::{Kind, Node, NodeId};
use crate::{Call, Limits, Object, PickleError};

/// The state of an object's conversion.
enum State {
    New,
    /// In progress; reaching it again inside itself means a cycle.
    Open,
    Done {
        value: Object,
        depth: usize,
        /// The number of values in it, counting shared ones at every occurrence.
        count: usize,
    },
}

/// The value of `root`. Each object becomes one value, however often it is shared.
pub(crate) fn freeze(mut nodes: Vec<Node>, root: NodeId, limits: &Limits) -> Result<Object, PickleError> {
    let mut states: Vec<State> = nodes.iter().map(|_| State::New).collect();
    let mut path = vec![(root, 0)];
    while let Some((id, next)) = path.last_mut() {
        let node = &nodes[*id as usize];
        states[*id as usize] = State::Open;
        let state = match node.kind {
            Kind::Call { state, .. } => state,
            Kind::Leaf(_) | Kind::List | Kind::Tuple | Kind::Set | Kind::Dict | Kind::Persistent => None,
        };
        let child = node.children.get(*next).copied().or(state.filter(|_| *next == node.children.len()));
        let Some(child) = child else {
            let id = *id as usize;
            let node = std::mem::replace(&mut nodes[id], Node { kind: Kind::List, children: Vec::new() });
            states[id] = finish(node, &states, limits)?;
            path.pop();
            continue;
        };
        *next += 1;
        match states[child as usize] {
            State::New => path.push((child, 0)),
            State::Open => return Err(PickleError::Cycle),
            State::Done { .. } => {}
        }
    }
    match states.swap_remove(root as usize) {
        State::Done { value, .. } => Ok(value),
        State::New | State::Open => Err(PickleError::Cycle),
    }
}

/// The value of an object whose parts are done.
fn finish(node: Node, states: &[State], limits: &Limits) -> Result<State, PickleError> {
    let (mut deepest, mut total) = (0, 1usize);
    let mut part = |id: NodeId| match &states[id as usize] {
        State::Done { value, depth, count } => {
            deepest = deepest.max(*depth);
            total = total.saturating_add(*count);
            Ok(value.clone())
        }
        State::New | State::Open => Err(PickleError::Cycle),
    };
    let mut parts = Vec::with_capacity(node.children.len());
    for &child in &node.children {
        parts.push(part(child)?);
    }
    let state = match node.kind {
        Kind::Call { state: Some(state), .. } => Some(part(state)?),
        _ => None,
    };
    if total > limits.values {
        return Err(PickleError::TooMany(limits.values));
    }
    if deepest >= limits.depth {
        return Err(PickleError::TooDeep(limits.depth));
    }
    let mut parts = parts.into_iter();
    let value = match node.kind {
        Kind::Leaf(value) => value,
        Kind::List => Object::List(parts.collect()),
        Kind::Tuple => Object::Tuple(parts.collect()),
        Kind::Set => Object::Set(parts.collect()),
        Kind::Dict => Object::Dict(pairs(parts).into()),
        Kind::Persistent => Object::Persistent(parts.next().unwrap_or(Object::None).into()),
        Kind::Call { pairs: as_pairs, .. } => {
            let function = parts.next().unwrap_or(Object::None);
            let arguments = parts.next().unwrap_or(Object::None);
            let (elements, entries) = if as_pairs { (Vec::new(), pairs(parts)) } else { (parts.collect(), Vec::new()) };
            Object::Call(Call { function, arguments, state, elements, entries }.into())
        }
    };
    Ok(State::Done { value, depth: deepest + 1, count: total })
}

fn pairs(mut parts: impl Iterator<Item = Object>) -> Vec<(Object, Object)> {
    std::iter::from_fn(|| parts.next().zip(parts.next())).collect()
}
