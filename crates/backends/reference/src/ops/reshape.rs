//! The same elements in another shape.

use enmasse_graph::ops::Reshape;

each_shard!(Reshape, |_, _, [x]| vec![x.to_vec()]);
