//! The training step as a graph: operations, shape inference, automatic differentiation, passes, and the plan.
