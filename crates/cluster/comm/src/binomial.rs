//! The binomial tree in which the data of one node reach all others.
//!
//! In round k every node that has the data sends them to the node at distance 2^k, counted from the sender, so after k rounds
//! 2^k nodes have them. A node's parent has its number without the highest bit.

/// The node from which `node` gets what `root` sends to `nodes` nodes; `None` for the root itself.
pub(crate) fn parent(node: usize, root: usize, nodes: usize) -> Option<usize> {
    let distance = distance(node, root, nodes);
    let round = distance.checked_ilog2()?;
    Some((root + distance - (1 << round)) % nodes)
}

/// How many nodes the data of `root` leave before they reach `node`.
pub(crate) fn depth(node: usize, root: usize, nodes: usize) -> u32 {
    distance(node, root, nodes).count_ones()
}

fn distance(node: usize, root: usize, nodes: usize) -> usize {
    (node + nodes - root) % nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_reached_from_one_that_has_the_data() {
        for (nodes, root) in (1..40).flat_map(|nodes| (0..nodes).map(move |root| (nodes, root))) {
            assert_eq!((parent(root, root, nodes), depth(root, root, nodes)), (None, 0));
            for node in (0..nodes).filter(|&node| node != root) {
                let above = parent(node, root, nodes).unwrap();
                assert_eq!(depth(above, root, nodes) + 1, depth(node, root, nodes), "{node} of {nodes}, root {root}");
            }
            let rounds = nodes.next_power_of_two().ilog2();
            assert!((0..nodes).all(|node| depth(node, root, nodes) <= rounds), "{nodes}");
            let children = |node| (0..nodes).filter(|&other| parent(other, root, nodes) == Some(node)).count();
            let most = (0..nodes).map(children).max().unwrap();
            assert_eq!(most, rounds as usize, "{nodes}");
        }
    }
}
