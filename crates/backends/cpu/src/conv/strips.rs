//! Convolutions of which each reads the one before, a strip of rows at a time: what is between them stays in the cache of a thread.
//!
//! Windows of a pixel and depthwise ones come in such chains. Their results have the same bits whichever rows are computed together.
//! Rows that two strips read are computed twice.

use std::ops::Range;

use super::gather::Gather;
use super::geometry::ConvShape;
use super::grouped::Grouped;
use super::{Epilogue, pairs};
use crate::batch_norm::{self, Forward};
use crate::element::Element;
use crate::isa::Isa;
use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// Words between the convolutions of a strip, where possible: half of a second-level cache of 1 MiB.
const STRIP_WORDS: usize = 1 << 17;
/// Minimum number of strips of a batch, where rows are enough: for that many threads.
const STRIPS: usize = 16;
/// Minimum rows of a strip's result, but for what fits.
const ROWS: usize = 4;

/// A convolution whose weights are packed once for many runs, each by one thread.
pub(crate) trait Packed<E>: Send + Sync {
    /// Workspace: shared for the packed weights, and private.
    fn workspace(&self) -> Workspace;

    /// Packs the weights into `shared`.
    ///
    /// # Safety
    /// The regions are valid, and no other code uses `shared`.
    unsafe fn pack(&self, context: &mut Context, weights: Region<f32>, shared: Region<f32>);

    /// Computes the convolution, and does something with each piece of the result.
    ///
    /// # Safety
    /// The regions are valid, of the shapes that the convolution was prepared for, and only this thread uses `private` and `result`. The
    /// epilogue is valid for each element of the result.
    unsafe fn run_packed(
        &self,
        private: Region<f32>,
        source: Region<E>,
        packed: Region<f32>,
        result: Region<E>,
        epilogue: &dyn Epilogue,
    );
}

/// A convolution, and the batch norm after it, whose `x` and `y` are used only of the last one. So is its residual.
#[derive(Clone, Copy)]
pub(crate) struct Link<E> {
    pub shape: ConvShape,
    pub weights: Region<f32>,
    pub norm: Forward<E>,
}

/// A link of a chain with its places in the workspace.
struct Placed<E> {
    link: Link<E>,
    /// Packed weights and scales among what is shared.
    packed: Range<usize>,
    scale: Range<usize>,
    /// The result in words of a thread's workspace; empty for the last one.
    result: Range<usize>,
}

/// Rows of an image that are computed together.
struct Strip<E> {
    /// Those of the source, and of each link's result.
    rows: Vec<Range<usize>>,
    convolutions: Vec<Box<dyn Packed<E>>>,
}

/// A prepared chain.
pub(crate) struct Strips<E> {
    links: Vec<Placed<E>>,
    strips: Vec<Strip<E>>,
    workspace: Workspace,
    /// The private workspace of one convolution.
    own: Range<usize>,
}

impl<E: Element> Strips<E> {
    /// A chain of at least one link.
    pub(crate) fn new(links: Vec<Link<E>>, isa: Isa) -> Self {
        Strips::within(STRIP_WORDS, links, isa)
    }

    fn within(words: usize, links: Vec<Link<E>>, isa: Isa) -> Self {
        let shapes: Vec<ConvShape> = links.iter().map(|link| link.shape).collect();
        let strips: Vec<Strip<E>> = cut(&shapes, words * E::PER_WORD)
            .into_iter()
            .map(|rows| {
                let pieces = shapes.iter().zip(rows.windows(2)).map(|(shape, ends)| piece(shape, &ends[0], &ends[1]));
                Strip { convolutions: pieces.map(|shape| convolution(&shape, isa)).collect(), rows }
            })
            .collect();
        let (mut shared, mut private, mut own) = (0, 0, 0);
        let place = |end: &mut usize, values: usize| {
            let start = *end;
            *end += values.next_multiple_of(16);
            start..start + values
        };
        let last = links.len() - 1;
        let placed = links.into_iter().enumerate().map(|(index, link)| {
            let of_strips = strips.iter().map(|strip| strip.convolutions[index].workspace());
            let workspace = of_strips.fold(Workspace::default(), Workspace::max);
            own = own.max(workspace.private);
            let values = strips.iter().map(|strip| results(&link.shape, &strip.rows[index + 1])).max().unwrap_or(0);
            Placed {
                packed: place(&mut shared, workspace.shared),
                scale: place(&mut shared, link.shape.output[2]),
                result: place(&mut private, if index < last { values.div_ceil(E::PER_WORD) } else { 0 }),
                link,
            }
        });
        let links = placed.collect();
        let own = private..private + own;
        Strips { links, strips, workspace: Workspace { shared, private: own.end }, own }
    }

    /// Workspace for [`Strips::run`].
    pub(crate) fn workspace(&self) -> Workspace {
        self.workspace
    }

    /// Computes the last link's `y` from the source of the first.
    ///
    /// # Safety
    /// The regions are valid, of the links' shapes, and not written by other code; `y` overlaps no operand.
    pub(crate) unsafe fn run(&self, context: &mut Context, source: Region<E>) {
        let shared = context.shared;
        for (index, Placed { link: Link { weights, norm, .. }, packed, scale, .. }) in self.links.iter().enumerate() {
            // SAFETY: the caller's promise; the workspace is this instruction's. Any strip's weights are packed alike.
            unsafe {
                self.strips[0].convolutions[index].pack(context, *weights, of(shared, packed));
                batch_norm::scales(norm.moments.variance, norm.weight, norm.epsilon, of(shared, scale));
            }
        }
        let private = &context.private;
        let shape = &self.links[0].link.shape;
        context.pool.run(shape.batch * self.strips.len(), |task, thread| {
            let image = task / self.strips.len();
            let strip = &self.strips[task % self.strips.len()];
            let source = rows_of(source, shape.input, image, &strip.rows[0]);
            // SAFETY: the caller's promise; each task has its own rows of the result, and each thread its workspace.
            unsafe { self.strip(strip, image, source, shared, private[thread]) }
        });
    }

    /// Computes a strip of an image from its rows of the source.
    unsafe fn strip(
        &self,
        strip: &Strip<E>,
        image: usize,
        mut source: Region<E>,
        shared: Region<f32>,
        private: Region<f32>,
    ) {
        let links = self.links.iter().zip(&strip.convolutions).zip(&strip.rows[1..]);
        for ((Placed { link: Link { shape, norm, .. }, packed, scale, result }, convolution), rows) in links {
            let of_image = |all| rows_of(all, shape.output, image, rows);
            let y = match result.is_empty() {
                true => of_image(norm.y),
                false => of(private, result).cast().part(0, results(shape, rows)),
            };
            let norm = Forward { x: y, y, residual: norm.residual.map(of_image), ..*norm };
            let own = of(private, &self.own);
            let packed = of(shared, packed);
            let scale = of(shared, scale);
            // SAFETY: the caller's promise.
            unsafe {
                batch_norm::scaled_pieces(&norm, scale, |epilogue| {
                    convolution.run_packed(own, source, packed, y, epilogue);
                });
            }
            source = y;
        }
    }
}

fn of(workspace: Region<f32>, range: &Range<usize>) -> Region<f32> {
    workspace.part(range.start, range.len())
}

/// Rows of an image.
fn rows_of<E>(all: Region<E>, [height, width, channels]: [usize; 3], image: usize, rows: &Range<usize>) -> Region<E> {
    let row = width * channels;
    all.part((image * height + rows.start) * row, rows.len() * row)
}

/// Values of rows of a convolution's result.
fn results(shape: &ConvShape, rows: &Range<usize>) -> usize {
    rows.len() * shape.output[1] * shape.output[2]
}

/// The rows of each strip, so that what is between the convolutions has at most `most` values, where possible.
fn cut(shapes: &[ConvShape], most: usize) -> Vec<Vec<Range<usize>>> {
    let (batch, height) = shapes.last().map_or((1, 1), |shape| (shape.batch, shape.output[0]));
    let strips = |count: usize| (0..count).map(move |i| rows(shapes, height * i / count..height * (i + 1) / count));
    let between = |rows: Vec<Range<usize>>| -> usize {
        let inner = shapes.len() - 1;
        shapes[..inner].iter().zip(&rows[1..]).map(|(shape, rows)| results(shape, rows)).sum()
    };
    let least = STRIPS.div_ceil(batch.max(1)).min(height / ROWS).max(1);
    let fits = |&count: &usize| strips(count).map(between).max() <= Some(most);
    strips((least..height).find(fits).unwrap_or(height)).collect()
}

/// The rows of the source, and of each convolution's result, that rows of the last one need.
fn rows(shapes: &[ConvShape], result: Range<usize>) -> Vec<Range<usize>> {
    let mut all = vec![result];
    for shape in shapes.iter().rev() {
        let Range { start, end } = all[all.len() - 1];
        let [first, last] = [0, shape.conv.window.kernel[0] - 1].map(|tap| shape.displacement(0, tap));
        let stride = shape.conv.window.stride[0];
        let [start, end] = [(start * stride) as isize + first, ((end - 1) * stride) as isize + last + 1];
        all.push(start.max(0) as usize..(end as usize).min(shape.input[0]));
    }
    all.reverse();
    all
}

/// The convolution of rows of an image, with the padding that they have in it.
fn piece(shape: &ConvShape, source: &Range<usize>, result: &Range<usize>) -> ConvShape {
    let mut piece = ConvShape { batch: 1, ..*shape };
    (piece.input[0], piece.output[0]) = (source.len(), result.len());
    let window = &mut piece.conv.window;
    let [top, _] = window.padding[0];
    let end = (result.end - 1) * window.stride[0] + (window.kernel[0] - 1) * window.dilation[0] + 1;
    window.padding[0] = [source.start + top - result.start * window.stride[0], end - top - source.end];
    piece
}

fn convolution<E: Element>(shape: &ConvShape, isa: Isa) -> Box<dyn Packed<E>> {
    if shape.is_depthwise() {
        Box::new(Grouped::undivided(shape, isa))
    } else if pairs(shape, false) {
        Box::new(Gather::<E, E>::new(shape, isa, false))
    } else {
        Box::new(Gather::<E, f32>::new(shape, isa, false))
    }
}

#[cfg(test)]
mod tests {
    use enmasse_graph::ops::Conv2d;
    use enmasse_graph::{Activation, Window};
    use enmasse_tensor::Bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::conv::{Gather, Start};
    use crate::guard::{Edge, Guarded, GuardedContext};
    use crate::statistics::Moments;
    use crate::sweep::Rows;
    use crate::test_support::{available, noise};

    /// A convolution of the whole batch, with its batch norm.
    unsafe fn apart<E: Element>(edge: Edge, isa: Isa, link: &Link<E>, x: Region<E>) {
        macro_rules! run {
            ($conv:expr) => {{
                let conv = $conv;
                let Workspace { shared, private } = conv.workspace();
                let channels = link.shape.output[2];
                let context = &mut GuardedContext::new(edge, 1, isa, Workspace { shared: shared + channels, private });
                // SAFETY: the caller's promise.
                unsafe {
                    batch_norm::normalize_pieces(&link.norm, context.shared.part(shared, channels), |epilogue| {
                        conv.run(context, x, link.weights, link.norm.y, Start::Zero, Some(epilogue));
                    });
                }
            }};
        }
        match link.shape.is_depthwise() {
            true => run!(Grouped::new(&link.shape, isa, false)),
            false if pairs(&link.shape, false) => run!(Gather::<E, E>::new(&link.shape, isa, false)),
            false => run!(Gather::<E, f32>::new(&link.shape, isa, false)),
        }
    }

    /// Compares chains in strips of several sizes with one convolution after the other. The last adds a residual.
    fn check<E: Element>(shapes: &[ConvShape], words: usize) {
        let stored = |edge, key, n| Guarded::new(edge, &noise(key, n).into_iter().map(E::of).collect::<Vec<E>>());
        let size = |[height, width, channels]: [usize; 3]| shapes[0].batch * height * width * channels;
        let taps = |shape: &ConvShape| shape.conv.window.kernel.iter().product::<usize>() * shape.input[2];
        for (isa, edge) in available().flat_map(|isa| Edge::BOTH.map(|edge| (isa, edge))) {
            let x = stored(edge, 0, size(shapes[0].input));
            let last = &shapes[shapes.len() - 1];
            let residual = stored(edge, 1, size(last.output));
            let operands: Vec<_> = (2..)
                .zip(shapes)
                .map(|(key, shape)| {
                    let channels = shape.output[2];
                    let weights = noise(10 * key, taps(shape) / shape.conv.groups * channels);
                    let positive = noise(10 * key + 2, channels).into_iter().map(|v| v.abs() + 0.1).collect();
                    let [mean, weight, bias] = [1, 3, 4].map(|i| noise(10 * key + i, channels));
                    [weights, mean, positive, weight, bias].map(|values: Vec<f32>| Guarded::new(edge, &values))
                })
                .collect();
            let links = |results: &mut [Guarded<E>]| -> Vec<Link<E>> {
                let all = shapes.iter().zip(&operands).zip(results).enumerate();
                all.map(|(index, ((shape, operands), y))| {
                    let [weights, mean, variance, weight, bias] = operands.each_ref().map(|values| Region::of(values));
                    let y = Region::of_mut(y);
                    let residual = (index + 1 == shapes.len()).then(|| Region::of(&residual));
                    let size = Rows { rows: y.len() / shape.output[2], channels: shape.output[2] };
                    let moments = Moments { mean, variance };
                    let activation = Some(Activation::Relu);
                    let norm = Forward { size, x: y, moments, weight, bias, residual, y, epsilon: 1e-3, activation };
                    Link { shape: *shape, weights, norm }
                })
                .collect()
            };
            let results = || shapes.iter().map(|shape| Guarded::filled(edge, E::of(f32::NAN), size(shape.output)));
            let (mut expected, mut found): (Vec<_>, Vec<_>) = (results().collect(), results().collect());
            let mut source = Region::of(&x);
            for link in links(&mut expected) {
                // SAFETY: the buffers have the shapes' sizes.
                unsafe { apart(edge, isa, &link, source) }
                source = link.norm.y;
            }
            let strips = Strips::within(words, links(&mut found), isa);
            for threads in [1, 2] {
                let context = &mut GuardedContext::new(edge, threads, isa, strips.workspace());
                // SAFETY: as above.
                unsafe { strips.run(context, Region::of(&x)) }
                let bits = |results: &[Guarded<E>]| -> Vec<u32> {
                    results[shapes.len() - 1].iter().map(|value| value.get().to_bits()).collect()
                };
                assert!(bits(&found) == bits(&expected), "{isa} {} {threads} threads {shapes:?}", E::DTYPE);
            }
        }
    }

    #[derive(Clone, Debug)]
    struct Chain {
        batch: usize,
        size: [usize; 2],
        channels: [usize; 3],
        window: Window,
        /// Whether a convolution of pixels is before the depthwise one, and after it.
        pixels: [bool; 2],
        words: usize,
    }

    impl Chain {
        fn shapes(&self) -> Option<Vec<ConvShape>> {
            let Chain { batch, size, channels: [first, inner, last], window, pixels: [before, after], .. } = *self;
            let pixel = Window { kernel: [1; 2], stride: [1; 2], padding: [[0; 2]; 2], dilation: [1; 2] };
            let reduced = [window.output(0, size[0])?, window.output(1, size[1])?];
            let shape = |input: [usize; 2], output: [usize; 2], channels: [usize; 2], window, groups| {
                let ([h, w], [oh, ow]) = (input, output);
                let conv = Conv2d { window, groups };
                ConvShape { batch, input: [h, w, channels[0]], output: [oh, ow, channels[1]], conv, normalized: false }
            };
            let links = [
                before.then(|| shape(size, size, [first, inner], pixel, 1)),
                Some(shape(size, reduced, [inner; 2], window, inner)),
                after.then(|| shape(reduced, reduced, [inner, last], pixel, 1)),
            ];
            Some(links.into_iter().flatten().collect())
        }
    }

    fn chains() -> impl Strategy<Value = Chain> {
        let side = || (1usize..6, 1usize..4, 1usize..3, [0usize..5, 0usize..5]);
        let channels = prop_oneof![[1usize..20, 2usize..20, 1usize..20], [30usize..70, 30usize..100, 30usize..70]];
        let window = (side(), side()).prop_map(|((k, s, d, p), (l, t, e, q))| Window {
            kernel: [k, l],
            stride: [s, t],
            padding: [p.map(|p| p.min(k - 1)), q.map(|q| q.min(l - 1))],
            dilation: [d, e],
        });
        (1usize..4, [1usize..16, 1usize..14], channels, window, [any::<bool>(), any::<bool>()], 0usize..2000).prop_map(
            |(batch, size, channels, window, pixels, words)| Chain { batch, size, channels, window, pixels, words },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn chains_have_the_bits_of_one_convolution_after_the_other(chain in chains()) {
            if let Some(shapes) = chain.shapes() {
                check::<f32>(&shapes, chain.words);
                check::<Bf16>(&shapes, chain.words);
            }
        }
    }

    #[test]
    fn strips_fit_where_rows_are_enough() {
        let window = Window { kernel: [3; 2], stride: [1; 2], padding: [[1; 2]; 2], dilation: [1; 2] };
        let chain = Chain { batch: 16, size: [20, 10], channels: [4, 8, 4], window, pixels: [true; 2], words: 0 };
        let check = |batch: usize, most: usize, strips: usize, second: [Range<usize>; 4]| {
            let found = cut(&Chain { batch, ..chain.clone() }.shapes().unwrap(), most);
            assert_eq!((found.len(), &found[1][..]), (strips, &second[..]), "{batch} {most}");
        };
        // Ten rows, with one of the strip before, of which both results between have 80 values each.
        check(16, 80 * 21, 2, [9..20, 9..20, 10..20, 10..20]);
        check(16, 80 * 20, 3, [5..14, 5..14, 6..13, 6..13]);
        // So few images that threads would have nothing to do.
        check(2, 80 * 21, 5, [3..9, 3..9, 4..8, 4..8]);
        check(16, 0, 20, [0..3, 0..3, 1..2, 1..2]);
    }
}
