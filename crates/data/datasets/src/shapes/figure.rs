//! The ten figures, as signed distances: negative inside, in units of the figure's size.
//!
//! They use only additions, products, quotients and square roots, which are exact everywhere, so every machine draws
//! the same bytes.

use std::f32::consts::FRAC_1_SQRT_2;

/// A point or direction.
pub(super) type Point = [f32; 2];

/// A figure; its position in [`Figure::ALL`] is its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Arrow,
    Bars,
    Circle,
    Crescent,
    Cross,
    Heart,
    Ring,
    Square,
    Star,
    Triangle,
}

impl Figure {
    /// All figures, by name.
    pub const ALL: [Figure; 10] = [
        Figure::Arrow,
        Figure::Bars,
        Figure::Circle,
        Figure::Crescent,
        Figure::Cross,
        Figure::Heart,
        Figure::Ring,
        Figure::Square,
        Figure::Star,
        Figure::Triangle,
    ];

    /// The name of its class folder.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Arrow => "arrow",
            Figure::Bars => "bars",
            Figure::Circle => "circle",
            Figure::Crescent => "crescent",
            Figure::Cross => "cross",
            Figure::Heart => "heart",
            Figure::Ring => "ring",
            Figure::Square => "square",
            Figure::Star => "star",
            Figure::Triangle => "triangle",
        }
    }

    /// Signed distance of `p` from the outline. Every figure lies within the unit circle around the origin.
    pub fn distance(self, p: Point) -> f32 {
        match self {
            Figure::Arrow => polygon(&ARROW, p),
            // Three bars: the outer two mirror each other.
            Figure::Bars => rectangle(p, [0.8, 0.15]).min(rectangle([p[0], p[1].abs() - 0.5], [0.8, 0.15])),
            Figure::Circle => length(p) - 0.82,
            Figure::Crescent => (length(p) - 0.95).max(0.75 - length([p[0] - 0.42, p[1]])),
            Figure::Cross => rectangle(p, [0.95, 0.27]).min(rectangle(p, [0.27, 0.95])),
            Figure::Heart => heart(p),
            Figure::Ring => (length(p) - 0.74).abs() - 0.2,
            Figure::Square => rectangle(p, [0.7, 0.7]),
            Figure::Star => polygon(&STAR, p),
            Figure::Triangle => polygon(&TRIANGLE, p),
        }
    }
}

const ARROW: [Point; 7] =
    [[-0.92, -0.2], [0.1, -0.2], [0.1, -0.62], [0.95, 0.0], [0.1, 0.62], [0.1, 0.2], [-0.92, 0.2]];

const TRIANGLE: [Point; 3] = [[0.0, -1.0], [0.866_025_4, 0.5], [-0.866_025_4, 0.5]];

/// Five points on the unit circle, five at 0.42 between them.
const STAR: [Point; 10] = [
    [0.0, -1.0],
    [0.246_870, -0.339_787],
    [0.951_057, -0.309_017],
    [0.399_444, 0.129_787],
    [0.587_785, 0.809_017],
    [0.0, 0.42],
    [-0.587_785, 0.809_017],
    [-0.399_444, 0.129_787],
    [-0.951_057, -0.309_017],
    [-0.246_870, -0.339_787],
];

/// A square standing on its corner, and a disc on each of its upper sides.
fn heart(p: Point) -> f32 {
    const HALF_SIDE: f32 = 0.46;
    let p = [p[0].abs(), p[1] - 0.22];
    let turned = [(p[0] + p[1]) * FRAC_1_SQRT_2, (p[1] - p[0]) * FRAC_1_SQRT_2];
    let offset = HALF_SIDE * FRAC_1_SQRT_2;
    rectangle(turned, [HALF_SIDE, HALF_SIDE]).min(length([p[0] - offset, p[1] + offset]) - HALF_SIDE)
}

fn length(p: Point) -> f32 {
    (p[0] * p[0] + p[1] * p[1]).sqrt()
}

fn rectangle(p: Point, half: Point) -> f32 {
    let (x, y) = (p[0].abs() - half[0], p[1].abs() - half[1]);
    length([x.max(0.0), y.max(0.0)]) + x.max(y).min(0.0)
}

/// The least distance from the edges; a ray that crosses them an odd number of times starts inside.
fn polygon(corners: &[Point], p: Point) -> f32 {
    let mut nearest = f32::MAX;
    let mut inside = false;
    let mut previous = corners[corners.len() - 1];
    for &corner in corners {
        let edge = [previous[0] - corner[0], previous[1] - corner[1]];
        let to = [p[0] - corner[0], p[1] - corner[1]];
        let along = (to[0] * edge[0] + to[1] * edge[1]) / (edge[0] * edge[0] + edge[1] * edge[1]);
        let along = along.clamp(0.0, 1.0);
        let (x, y) = (to[0] - edge[0] * along, to[1] - edge[1] * along);
        nearest = nearest.min(x * x + y * y);
        let straddles = (p[1] >= corner[1]) != (p[1] >= previous[1]);
        if straddles && (edge[0] * to[1] > edge[1] * to[0]) == (edge[1] > 0.0) {
            inside = !inside;
        }
        previous = corner;
    }
    if inside { -nearest.sqrt() } else { nearest.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_and_outside() {
        let check = |figure: Figure, p, inside| assert_eq!(figure.distance(p) < 0.0, inside, "{figure:?} {p:?}");
        for figure in Figure::ALL {
            let hollow = matches!(figure, Figure::Ring);
            check(figure, if figure == Figure::Crescent { [-0.6, 0.0] } else { [0.0, 0.05] }, !hollow);
            for far in [[1.1, 0.0], [0.0, 1.1], [-1.1, 0.0], [0.0, -1.1], [0.8, 0.8], [-0.8, -0.8]] {
                check(figure, far, false);
            }
        }
        check(Figure::Ring, [0.74, 0.0], true);
        check(Figure::Crescent, [0.3, 0.0], false);
        check(Figure::Bars, [0.0, 0.3], false);
        check(Figure::Bars, [0.0, -0.5], true);
        check(Figure::Heart, [0.0, -0.7], false);
        check(Figure::Star, [0.0, 0.6], false);
        check(Figure::Arrow, [-0.5, 0.4], false);
    }

    /// A signed distance changes by at most the distance walked (that of a union or a cut may change more slowly).
    #[test]
    fn no_figure_jumps() {
        for figure in Figure::ALL {
            for i in 0..4000 {
                let p = [(i % 63) as f32 / 25.0 - 1.25, (i / 63) as f32 / 25.0 - 1.25];
                let here = figure.distance(p);
                let there = figure.distance([p[0] + 0.006, p[1] - 0.008]);
                assert!((here - there).abs() <= 0.0101, "{figure:?} {p:?}: {here} {there}");
            }
        }
    }
}
