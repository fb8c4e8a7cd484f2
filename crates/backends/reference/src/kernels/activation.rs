//! Element-wise operations and changes of order.

use enmasse_graph::Activation;

fn ceiling(activation: Activation) -> f64 {
    match activation {
        Activation::Relu => f64::INFINITY,
        Activation::Relu6 => 6.0,
    }
}

/// `max(x, 0)`, and `min(_, 6)` of that for ReLU6. NaN stays NaN: a broken activation must reach the loss, so that the
/// check stops the step.
pub fn activate(x: &[f64], activation: Activation) -> Vec<f64> {
    let ceiling = ceiling(activation);
    let element = |&x: &f64| match x {
        x if x <= 0.0 => 0.0,
        x if x >= ceiling => ceiling,
        x => x,
    };
    x.iter().map(element).collect()
}

/// `dy` where `y` is above 0 and below the ceiling, if there is one; else 0.
pub fn activate_backward(dy: &[f64], y: &[f64], activation: Activation) -> Vec<f64> {
    let open = |y: f64| y > 0.0 && y < ceiling(activation);
    dy.iter().zip(y).map(|(&dy, &y)| if open(y) { dy } else { 0.0 }).collect()
}

/// `a + b`.
pub fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// `a * b`, element by element.
pub fn multiply(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// `[N,H,W,C]` to `[N, C*H*W]`, in the order in which PyTorch flattens NCHW.
pub fn flatten(x: &[f64], shape: [usize; 4]) -> Vec<f64> {
    let mut y = vec![0.0; x.len()];
    for_each_place(shape, |channels_last, channels_first| y[channels_first] = x[channels_last]);
    y
}

/// `[N, C*H*W]` back to `[N,H,W,C]`, whose shape is `shape`.
pub fn flatten_backward(dy: &[f64], shape: [usize; 4]) -> Vec<f64> {
    let mut dx = vec![0.0; dy.len()];
    for_each_place(shape, |channels_last, channels_first| dx[channels_last] = dy[channels_first]);
    dx
}

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
    fn element_wise_by_hand() {
        let x = [-1.0, -0.0, 0.0, 2.0, 6.0, 7.0, f64::INFINITY];
        assert_eq!(activate(&x, Activation::Relu), [0.0, 0.0, 0.0, 2.0, 6.0, 7.0, f64::INFINITY]);
        assert_eq!(activate(&x, Activation::Relu6), [0.0, 0.0, 0.0, 2.0, 6.0, 6.0, 6.0]);
        for activation in [Activation::Relu, Activation::Relu6] {
            assert!(activate(&[f64::NAN], activation)[0].is_nan());
        }
        let (dy, y) = ([1.0, 2.0, 3.0, 4.0], [0.0, 5.0, -1.0, 6.0]);
        assert_eq!(activate_backward(&dy, &y, Activation::Relu), [0.0, 2.0, 0.0, 4.0]);
        assert_eq!(activate_backward(&dy, &y, Activation::Relu6), [0.0, 2.0, 0.0, 0.0]);
        assert_eq!(add(&[1.0, 2.0], &[10.0, 20.0]), [11.0, 22.0]);
        assert_eq!(multiply(&[3.0, 2.0], &[10.0, -0.5]), [30.0, -1.0]);
    }

    #[test]
    fn flatten_is_channels_first() {
        // Two images of 1x2 pixels and three channels: hundreds number the image, tens the pixel, ones the channel.
        let x = [0., 1., 2., 10., 11., 12., 100., 101., 102., 110., 111., 112.];
        let y = [0., 10., 1., 11., 2., 12., 100., 110., 101., 111., 102., 112.];
        assert_eq!(flatten(&x, [2, 1, 2, 3]), y);
        assert_eq!(flatten_backward(&y, [2, 1, 2, 3]), x);
    }
}
