//! Attention of tokens to each other, in several heads.

use enmasse_tensor::DType;

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// Of each head with its D = C / heads channels, `softmax(q k' / sqrt(D)) v`, with the softmax over the keys.
///
/// A token of `qkv` has the C channels of its query, then those of its key, then those of its value, and each has one head after
/// another, as one linear layer computes them. H is the number of heads. The result `log_sum_exp` has the logarithm of the
/// softmax's denominator for every sample, head and query: with it the gradient computes the same probabilities again, so that no
/// matrix `[T,T]` is kept.
///
/// Source: T. Dao, "FlashAttention-2", 2023 (arXiv:2307.08691).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// The number of heads, which divides the channels.
    pub heads: usize,
}

impl Operation for Attention {
    const NAME: &'static str = "attention";
    const SIGNATURE: &'static str = "(qkv [N,T,3C]) -> (y [N,T,C], log_sum_exp [N*H*T])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.functional.scaled_dot_product_attention");

    fn attributes(&self) -> String {
        format!("heads {}", self.heads)
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let qkv = node.inputs[0];
        let [y, log_sum_exp] = [0, 1].map(|i| node.outputs[i]);
        backward.emit_gradient(qkv, AttentionBackward { heads: self.heads }, vec![dy, qkv, y, log_sum_exp]);
        Ok(())
    }
}

/// The gradient of [`Attention`]. With the probabilities `p = exp(q k' / sqrt(D) - log_sum_exp)` of a head and
/// `ds = p * (dy v' - sum of dy * y over the head) / sqrt(D)` it is `dq = ds k`, `dk = ds' q` and `dv = p' dy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionBackward {
    /// As in [`Attention`].
    pub heads: usize,
}

impl Operation for AttentionBackward {
    const NAME: &'static str = "attention_backward";
    const SIGNATURE: &'static str = "(dy [N,T,C], qkv [N,T,3C], y [N,T,C], log_sum_exp [N*H*T]) -> (dqkv [N,T,3C])";

    fn attributes(&self) -> String {
        format!("heads {}", self.heads)
    }
}

impl Tensor {
    /// Attention of the tokens of each sample to each other, in `heads` heads of equally many channels: PyTorch's
    /// `scaled_dot_product_attention`. The input has queries, keys and values, as `linear(name, 3 * channels)` gives them.
    ///
    /// # Shapes
    /// `[N,T,3C]` to `[N,T,C]`.
    pub fn attention(self, heads: usize) -> Tensor {
        let Some([n, t, packed]) = self.token_dims("attention") else { return self };
        let channels = packed / 3;
        if heads == 0 || packed != 3 * channels || !channels.is_multiple_of(heads) {
            let place = self.place("attention");
            let shape = self.shape();
            let reason = format!("{packed} channels are not queries, keys and values of {heads} heads");
            return self.fail(GraphError::Shape { place, shape, reason });
        }
        let y = self.record(Attention { heads }, &[], [n, t, channels].into());
        y.add_result("log_sum_exp", [n * heads * t].into(), DType::F32);
        y
    }
}
