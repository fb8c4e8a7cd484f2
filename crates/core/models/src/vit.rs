//! Vision transformers, as timm builds them: ViT, DeiT and DINOv2.
//!
//! Sources: A. Dosovitskiy et al., "An image is worth 16x16 words: Transformers for image recognition at scale", ICLR 2021;
//! H. Touvron et al., "Training data-efficient image transformers & distillation through attention", ICML 2021; M. Oquab et al.,
//! "DINOv2: Learning robust visual features without supervision", TMLR 2024; T. Darcet et al., "Vision transformers need
//! registers", ICLR 2024.

use enmasse_graph::{Linear, Tensor};

const EPSILON: f32 = 1e-6;
/// Of linear layers and position embeddings at first.
const STD: f32 = 0.02;
/// Of class tokens and registers at first.
const TOKEN_STD: f32 = 1e-6;

/// A class token and patches as tokens, and blocks of attention and of two linear layers, each after a layer norm and beside a
/// shortcut.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::ViT;
/// let narrow = ViT::new(16, 48, 3).depth(2);
/// let plans = compile(&|x| narrow.forward(x, 10), &CompileOptions::new("vit/4", 2, 64, 10)).unwrap();
/// assert_eq!(*plans.find("blocks.1.attn.qkv.weight").unwrap().shape, [48, 144]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ViT {
    patch: usize,
    channels: usize,
    heads: usize,
    depth: usize,
    layer_scale: Option<f32>,
    registers: usize,
    drop_path: f32,
}

impl ViT {
    /// Square patches of `patch` pixels, as tokens of `channels` in `heads` heads: 12 blocks.
    pub const fn new(patch: usize, channels: usize, heads: usize) -> Self {
        ViT { patch, channels, heads, depth: 12, layer_scale: None, registers: 0, drop_path: 0.0 }
    }

    /// ViT-Ti.
    pub const fn tiny(patch: usize) -> Self {
        ViT::new(patch, 192, 3)
    }

    /// ViT-S.
    pub const fn small(patch: usize) -> Self {
        ViT::new(patch, 384, 6)
    }

    /// ViT-B.
    pub const fn base(patch: usize) -> Self {
        ViT::new(patch, 768, 12)
    }

    /// Number of blocks.
    pub const fn depth(self, depth: usize) -> Self {
        ViT { depth, ..self }
    }

    /// Scales the channels of each branch by trained factors, which are `initial` at first.
    pub const fn layer_scale(self, initial: f32) -> Self {
        ViT { layer_scale: Some(initial), ..self }
    }

    /// Puts registers between the class token and the patches, and adds no positions to either.
    pub const fn registers(self, registers: usize) -> Self {
        ViT { registers, ..self }
    }

    /// Probability of leaving out each branch of the last block; those of the blocks before it have less, in proportion to their
    /// place.
    pub const fn drop_path(self, drop_path: f32) -> Self {
        ViT { drop_path, ..self }
    }

    /// Images to logits. Height and width must be multiples of the patches'.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        // Of the tokens after the last block only the first counts.
        self.blocks(x).token(0).layer_norm("norm", EPSILON).linear("head", Linear::new(classes).normal(STD))
    }

    /// Images to tokens, after the last norm: the class token, registers, and the patches row by row.
    pub fn tokens(&self, x: Tensor) -> Tensor {
        self.blocks(x).layer_norm("norm", EPSILON)
    }

    fn blocks(&self, x: Tensor) -> Tensor {
        let x = x.patches("patch_embed.proj", self.channels, self.patch);
        let x = match self.registers {
            0 => x.prepend_tokens("cls_token", 1, TOKEN_STD).add_tokens("pos_embed", STD),
            registers => {
                let x = x.add_tokens("pos_embed", STD).prepend_tokens("reg_token", registers, TOKEN_STD);
                x.prepend_tokens("cls_token", 1, TOKEN_STD)
            }
        };
        (0..self.depth).fold(x.checkpoint(), |x, index| self.block(x, index).checkpoint())
    }

    fn block(&self, x: Tensor, index: usize) -> Tensor {
        let name = format!("blocks.{index}");
        let drop_path = x.drop_path_rate(self.drop_path) * index as f32 / self.depth.saturating_sub(1).max(1) as f32;
        let part = |part: &str| format!("{name}.{part}");
        let linear = |outputs| Linear::new(outputs).normal(STD);
        let scale = |x: Tensor, name| match self.layer_scale {
            Some(initial) => x.scale_channels(&part(name), initial),
            None => x,
        };
        // Without a rate the sum stays in the layer before it.
        let drop = |y: Tensor, name| if drop_path != 0.0 { y.drop_path(&part(name), drop_path) } else { y };
        let y = x.clone().layer_norm(&part("norm1"), EPSILON).linear(&part("attn.qkv"), linear(3 * self.channels));
        let y = y.attention(self.heads).linear(&part("attn.proj"), linear(self.channels));
        let x = x + drop(scale(y, "ls1.gamma"), "drop_path1");
        let y = x.clone().layer_norm(&part("norm2"), EPSILON).linear(&part("mlp.fc1"), linear(4 * self.channels));
        let y = y.gelu().linear(&part("mlp.fc2"), linear(self.channels));
        x + drop(scale(y, "ls2.gamma"), "drop_path2")
    }
}
