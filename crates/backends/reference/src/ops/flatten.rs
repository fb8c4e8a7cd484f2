//! Images as rows of features, and back.

use enmasse_graph::ops::{Flatten, FlattenBackward};

/// `[N,H,W,C]` to `[N, C*H*W]`, in the order in which PyTorch flattens NCHW.
pub fn flatten(x: &[f64], shape: [usize; 4]) -> Vec<f64> {
    let mut y = vec![0.0; x.len()];
    for_each_place(shape, |channels_last, channels_first| y[channels_first] = x[channels_last]);
    y
}

each_shard!(Flatten, |_, call, [x]| vec![flatten(x, call.input(0)?)]);

/// `[N, C*H*W]` back to `[N,H,W,C]`, whose shape is `shape`.
pub fn flatten_backward(dy: &[f64], shape: [usize; 4]) -> Vec<f64> {
    let mut dx = vec![0.0; dy.len()];
    for_each_place(shape, |channels_last, channels_first| dx[channels_last] = dy[channels_first]);
    dx
}

each_shard!(FlattenBackward, |_, call, [dy]| vec![flatten_backward(dy, call.output(0)?)]);

/// Calls `visit(NHWC index, NCHW index)` for every element of an `[N,H,W,C]` shape.
fn for_each_place([batch, height, width, channels]: [usize; 4], mut visit: impl FnMut(usize, usize)) {
    let pixels = height * width;
    for n in 0..batch {
        for pixel in 0..pixels {
            for c in 0..channels {
                visit((n * pixels + pixel) * channels + c, (n * channels + c) * pixels + pixel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flatten_is_channels_first() {
        // Two images of 1x2 pixels and three channels: hundreds number the image, tens the pixel, ones the channel.
        let x = [0., 1., 2., 10., 11., 12., 100., 101., 102., 110., 111., 112.];
        let y = [0., 10., 1., 11., 2., 12., 100., 110., 101., 111., 102., 112.];
        assert_eq!(flatten(&x, [2, 1, 2, 3]), y);
        assert_eq!(flatten_backward(&y, [2, 1, 2, 3]), x);
    }
}
