//! The geometry that convolution and pooling share: the input pixel under each tap of each output pixel.

use enmasse_graph::Window;

/// Calls `visit(output pixel, input pixel, tap)` for every tap of every output pixel that lies on the input rather than on
/// padding.
///
/// `input` and `output` are `[batch, height, width, channels]`. A pixel is an index over the first three dimensions. Taps are
/// numbered row by row, and those of one output pixel come in that order.
pub fn visit(input: [usize; 4], output: [usize; 4], window: &Window, mut visit: impl FnMut(usize, usize, usize)) {
    let [_, in_h, in_w, _] = input;
    let [batch, out_h, out_w, _] = output;
    // The padded coordinate of a tap, moved back onto the input; `None` on padding.
    let place = |axis: usize, output: usize, tap: usize, size: usize| {
        (output * window.stride[axis] + tap * window.dilation[axis])
            .checked_sub(window.padding[axis][0])
            .filter(|&position| position < size)
    };
    for n in 0..batch {
        for oy in 0..out_h {
            for ox in 0..out_w {
                for ky in 0..window.kernel[0] {
                    let Some(iy) = place(0, oy, ky, in_h) else { continue };
                    for kx in 0..window.kernel[1] {
                        let Some(ix) = place(1, ox, kx, in_w) else { continue };
                        let out_pixel = (n * out_h + oy) * out_w + ox;
                        let in_pixel = (n * in_h + iy) * in_w + ix;
                        visit(out_pixel, in_pixel, ky * window.kernel[1] + kx);
                    }
                }
            }
        }
    }
}

/// Calls `visit_element(output element, input element, tap)` for every channel of these pixels. Both have the same channels.
pub fn visit_elements(
    input: [usize; 4],
    output: [usize; 4],
    window: &Window,
    mut visit_element: impl FnMut(usize, usize, usize),
) {
    let channels = output[3];
    visit(input, output, window, |out_pixel, in_pixel, tap| {
        (0..channels).for_each(|c| visit_element(out_pixel * channels + c, in_pixel * channels + c, tap));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_on_the_input_in_order() {
        let check = |input: [usize; 2], output: [usize; 2], window: Window, expected: &[(usize, usize, usize)]| {
            let mut seen = Vec::new();
            visit([1, input[0], input[1], 1], [1, output[0], output[1], 1], &window, |o, i, t| seen.push((o, i, t)));
            assert_eq!(seen, expected);
        };
        let plain = Window { kernel: [1, 2], stride: [1, 1], padding: [[0; 2]; 2], dilation: [1, 1] };
        check([1, 3], [1, 2], plain, &[(0, 0, 0), (0, 1, 1), (1, 1, 0), (1, 2, 1)]);
        // Padding hides tap 0 of the first output and tap 1 of the last.
        let padded = Window { padding: [[0, 0], [1, 1]], ..plain };
        check([1, 2], [1, 3], padded, &[(0, 0, 1), (1, 0, 0), (1, 1, 1), (2, 1, 0)]);
        let padded = Window { padding: [[0, 0], [0, 1]], ..plain };
        check([1, 2], [1, 2], padded, &[(0, 0, 0), (0, 1, 1), (1, 1, 0)]);
        let strided = Window { stride: [1, 2], ..plain };
        check([1, 4], [1, 2], strided, &[(0, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 1)]);
        let dilated = Window { dilation: [1, 2], ..plain };
        check([1, 3], [1, 1], dilated, &[(0, 0, 0), (0, 2, 1)]);
        // Rows: the second output row reads input rows 1 and 2.
        let tall = Window { kernel: [2, 1], stride: [1, 1], padding: [[0; 2]; 2], dilation: [1, 1] };
        check([3, 1], [2, 1], tall, &[(0, 0, 0), (0, 1, 1), (1, 1, 0), (1, 2, 1)]);
    }
}
