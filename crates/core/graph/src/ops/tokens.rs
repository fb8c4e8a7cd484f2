//! Tokens that a model learns, before others or added to them, and some of the tokens of each sample.

use std::ops::Range;

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Init, Layout, Node, Op, Plan, Role, Tensor, ValueId};

/// `x` plus the same tokens for each sample; `y` may lie over `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddTokens;

impl Operation for AddTokens {
    const NAME: &'static str = "add_tokens";
    const SIGNATURE: &'static str = "(x [N,T,C], tokens [1,T,C]) -> (y [N,T,C])";
    const PYTORCH: Option<&'static str> = Some("torch.add");

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[1], SumTokens, vec![dy]);
        backward.add_gradient(node.inputs[0], dy);
        Ok(())
    }
}

/// The same R tokens for each sample, and then those of `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrependTokens;

impl Operation for PrependTokens {
    const NAME: &'static str = "prepend_tokens";
    const SIGNATURE: &'static str = "(x [N,T,C], tokens [1,R,C]) -> (y [N,R+T,C])";
    const PYTORCH: Option<&'static str> = Some("torch.cat");

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let [x, tokens] = [node.inputs[0], node.inputs[1]];
        backward.emit_gradient(tokens, SumTokens, vec![dy]);
        let first = backward.shape(tokens)[1];
        backward.emit_gradient(x, SelectTokens { first }, vec![dy]);
        Ok(())
    }
}

/// The gradient of tokens that all samples share: the sum over samples of their first R tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumTokens;

impl Operation for SumTokens {
    const NAME: &'static str = "sum_tokens";
    const SIGNATURE: &'static str = "(dy [N,T,C]) -> (dtokens [1,R,C])";
}

/// R tokens of each sample, from the one at index `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectTokens {
    /// Tokens before them.
    pub first: usize,
}

impl Operation for SelectTokens {
    const NAME: &'static str = "select_tokens";
    const SIGNATURE: &'static str = "(x [N,T,C]) -> (y [N,R,C])";
    const PYTORCH: Option<&'static str> = Some("torch.narrow");

    fn attributes(&self) -> String {
        format!("first {}", self.first)
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], SelectTokensBackward { first: self.first }, vec![dy]);
        Ok(())
    }
}

/// The gradient of [`SelectTokens`]: 0 for all other tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectTokensBackward {
    /// As in [`SelectTokens`].
    pub first: usize,
}

impl Operation for SelectTokensBackward {
    const NAME: &'static str = "select_tokens_backward";
    const SIGNATURE: &'static str = "(dy [N,R,C]) -> (dx [N,T,C])";

    fn attributes(&self) -> String {
        format!("first {}", self.first)
    }
}

impl Tensor {
    /// The tokens of each sample plus trained ones, one for each place, which are normal with this std at first: a position
    /// embedding. The parameter is `NAME`.
    ///
    /// # Shapes
    /// `[N,T,C]`, and the same.
    pub fn add_tokens(self, name: &str, std: f32) -> Tensor {
        let Some((tokens, [n, t, c])) = self.trained_tokens("add_tokens", name, None, std) else { return self };
        self.record(AddTokens, &[tokens], [n, t, c].into())
    }

    /// `count` trained tokens, which are normal with this std at first, before those of each sample: a class token, registers.
    /// The parameter is `NAME`.
    ///
    /// # Shapes
    /// `[N,T,C]` to `[N,count+T,C]`.
    pub fn prepend_tokens(self, name: &str, count: usize, std: f32) -> Tensor {
        let Some((tokens, [n, t, c])) = self.trained_tokens("prepend_tokens", name, Some(count), std) else {
            return self;
        };
        self.record(PrependTokens, &[tokens], [n, count + t, c].into())
    }

    /// Some of the tokens of each sample.
    ///
    /// # Shapes
    /// `[N,T,C]` to `[N,range,C]`.
    pub fn select_tokens(self, range: Range<usize>) -> Tensor {
        let Some([n, t, c]) = self.token_dims("select_tokens") else { return self };
        if range.is_empty() || range.end > t {
            let place = self.place("select_tokens");
            let shape = self.shape();
            let reason = format!("there are no tokens {}..{}", range.start, range.end);
            return self.fail(GraphError::Shape { place, shape, reason });
        }
        self.record(SelectTokens { first: range.start }, &[], [n, range.len(), c].into())
    }

    /// One token of each sample, as features.
    ///
    /// # Shapes
    /// `[N,T,C]` to `[N,C]`.
    pub fn token(self, index: usize) -> Tensor {
        self.select_tokens(index..index + 1).mean_tokens()
    }

    /// A parameter of as many tokens as those of a sample, or `count`, and the dimensions of the samples' tokens. Sets an error if
    /// there are no tokens.
    fn trained_tokens(
        &self,
        operation: &'static str,
        name: &str,
        count: Option<usize>,
        std: f32,
    ) -> Option<(ValueId, [usize; 3])> {
        self.enter(name);
        let dims = self.token_dims(operation)?;
        let count = count.unwrap_or(dims[1]);
        if count == 0 || !(std.is_finite() && std >= 0.0) {
            let reason = format!("has {count} tokens of std {std}, which must be at least one, and finite");
            self.set_error(GraphError::Attribute { place: self.layer(operation), reason });
            return None;
        }
        let tokens = self.parameter(name.into(), [1, count, dims[2]].into(), Layout::Plain, Init::Normal { std });
        Some((tokens, dims))
    }
}

/// A position embedding: tokens that are added to the patches of images, in the order of their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionEmbedding {
    /// The parameter, `[1, before + height * width, channels]`.
    pub tokens: ValueId,
    /// Tokens before the patches.
    pub before: usize,
    /// Rows and columns of patches.
    pub grid: [usize; 2],
}

impl Plan {
    /// The model's position embedding, if it has one.
    pub fn position_embedding(&self) -> Option<PositionEmbedding> {
        let is_own = |node: &Node| !matches!(self.value(node.inputs[1]).role, Role::Teacher { .. });
        let added = self.instructions.iter().find(|node| matches!(node.op, Op::AddTokens(_)) && is_own(node))?;
        let mut id = added.inputs[0];
        let mut before = 0;
        loop {
            let node = self.instructions.iter().find(|node| node.outputs.contains(&id))?;
            id = node.inputs[0];
            match (&node.op, &self.shape(id)[..]) {
                (Op::PrependTokens(_), _) => before += self.shape(node.inputs[1])[1],
                (Op::Reshape(_), &[_, height, width, _]) => {
                    return Some(PositionEmbedding { tokens: added.inputs[1], before, grid: [height, width] });
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PositionEmbedding;
    use crate::{CompileOptions, Conv, Tensor, compile};

    #[test]
    fn positions_of_patches_are_found() {
        let check = |embed: fn(Tensor) -> Tensor, expected: Option<(usize, [usize; 2])>| {
            let model = |x: Tensor| embed(x.patches("patch_embed", 8, 2)).mean_tokens().linear("fc", 5);
            let options = CompileOptions { size: [4, 6], ..CompileOptions::new("tokens", 2, 4, 5) };
            let plan = compile(&model, &options).unwrap().evaluate;
            let found = plan.position_embedding();
            assert_eq!(found.map(|PositionEmbedding { before, grid, .. }| (before, grid)), expected);
            assert!(found.is_none_or(|found| plan.value(found.tokens).name == "pos_embed"));
        };
        check(|x| x.add_tokens("pos_embed", 0.1).prepend_tokens("reg_token", 4, 0.1), Some((0, [2, 3])));
        check(|x| x.prepend_tokens("cls_token", 1, 0.1).add_tokens("pos_embed", 0.1), Some((1, [2, 3])));
        check(|x| x.prepend_tokens("cls_token", 1, 0.1), None);
        check(|x| x.gelu().add_tokens("bias", 0.1), None);
    }

    #[test]
    fn what_is_wrong_with_tokens_is_said() {
        let check = |layer: fn(Tensor) -> Tensor, expected: &str| {
            let model = |x: Tensor| {
                let x = x.conv2d("patches", Conv::new(12, 2).stride(2)).tokens();
                layer(x).mean_tokens().linear("fc", 5)
            };
            let found = compile(&model, &CompileOptions::new("tokens", 2, 4, 5)).map(|_| ()).unwrap_err().to_string();
            assert!(found.contains(expected) && !found.contains('\n'), "{found}");
        };
        check(|x| x.attention(3), "12 channels are not queries, keys and values of 3 heads");
        check(|x| x.attention(0), "of 0 heads");
        check(|x| x.linear("qkv", 13).attention(1), "13 channels");
        check(|x| x.select_tokens(1..5), "there are no tokens 1..5");
        check(|x| x.select_tokens(2..2), "there are no tokens 2..2");
        check(|x| x.prepend_tokens("cls_token", 0, 0.0), "has 0 tokens");
        check(|x| x.add_tokens("pos_embed", f32::NAN), "std NaN");
        check(|x| x.mean_tokens().add_tokens("pos_embed", 0.02), "it needs [batch,tokens,channels]");
        check(|x| x.images([2, 2]).patches("patch_embed", 8, 3), "it needs multiples of its patches' 3 pixels");
    }
}
