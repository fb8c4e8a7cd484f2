//! Images that are near to each other by the cosine of their features: they tell classes without a classifier, and which labels, and which
//! images, are unlike all others.

use crate::Features;
use crate::features::dot;

/// An image and its nearest others.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighborhood {
    /// Its number in the data set.
    pub index: usize,
    /// Its class.
    pub label: usize,
    /// The others, the nearest first.
    pub near: Vec<Neighbor>,
}

/// An image near another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbor {
    /// Its number in the data set.
    pub index: usize,
    /// Its class.
    pub label: usize,
    /// The cosine of the features of both.
    pub cosine: f64,
}

impl Neighborhood {
    /// The probability of each class by the votes of the others, each with the weight exp(cosine / 0.07), as in the evaluation of DINO. The
    /// image's own label has no part in it. All are 0 where there are no others.
    pub fn probabilities(&self, classes: usize) -> Vec<f64> {
        const TEMPERATURE: f64 = 0.07;
        let mut votes = vec![0.0; classes];
        for near in &self.near {
            if let Some(votes) = votes.get_mut(near.label) {
                *votes += (near.cosine / TEMPERATURE).exp();
            }
        }
        let all: f64 = votes.iter().sum();
        votes.iter_mut().for_each(|vote| *vote /= all.max(f64::MIN_POSITIVE));
        votes
    }

    /// The mean distance to the others: 1 less the cosine.
    pub fn distance(&self) -> f64 {
        self.near.iter().map(|near| 1.0 - near.cosine).sum::<f64>() / self.near.len().max(1) as f64
    }
}

/// An image that can be read.
struct Row<'a> {
    index: usize,
    label: usize,
    values: &'a [f32],
    norm: f64,
}

impl Row<'_> {
    /// The nearest of others, the nearest first; of equally near ones those that come first.
    fn nearest<'a>(&self, others: impl Iterator<Item = &'a Row<'a>>, count: usize) -> Vec<Neighbor> {
        let near = |other: &Row| {
            let cosine = f64::from(dot(self.values, other.values)) / (self.norm * other.norm);
            Neighbor { index: other.index, label: other.label, cosine }
        };
        let order = |a: &Neighbor, b: &Neighbor| b.cosine.total_cmp(&a.cosine).then(a.index.cmp(&b.index));
        let mut found: Vec<Neighbor> = others.map(near).collect();
        if count < found.len() {
            found.select_nth_unstable_by(count, order);
            found.truncate(count);
        }
        found.sort_unstable_by(order);
        found
    }
}

impl Features {
    fn with_norms(&self) -> Vec<Row<'_>> {
        let rows = self.values.chunks_exact(self.width.max(1)).zip(&self.labels).enumerate();
        let row = |(index, (values, label)): (usize, (&'_ [f32], &i64))| {
            let label = usize::try_from(*label).ok()?;
            Some((index, label, f64::from(dot(values, values)).sqrt().max(f64::MIN_POSITIVE)))
        };
        let width = self.width.max(1);
        let found = rows.filter_map(row);
        let with_values =
            |(index, label, norm)| Row { index, label, norm, values: &self.values[index * width..(index + 1) * width] };
        found.map(with_values).collect()
    }

    /// The `count` images nearest to one with these features, the nearest first, among those that can be read. None is near to features of
    /// another width.
    pub fn nearest(&self, features: &[f32], count: usize) -> Vec<Neighbor> {
        if features.len() != self.width {
            return Vec::new();
        }
        let norm = f64::from(dot(features, features)).sqrt().max(f64::MIN_POSITIVE);
        // It has no number in the data set, and nothing asks for it.
        let row = Row { index: usize::MAX, label: 0, values: features, norm };
        row.nearest(self.with_norms().iter(), count)
    }

    /// The share of the images whose class is that of their `neighbors` nearest ones in `known`, by their votes:
    /// see [`Neighborhood::probabilities`].
    pub fn accuracy_by_neighbors(&self, known: &Features, neighbors: usize) -> f64 {
        let known = known.with_norms();
        let classes = known.iter().map(|known| known.label + 1).max().unwrap_or(0);
        let (mut hits, mut images) = (0, 0);
        for row in self.with_norms() {
            let near = row.nearest(known.iter(), neighbors);
            let votes = Neighborhood { index: row.index, label: row.label, near }.probabilities(classes);
            let voted = (0..classes).max_by(|&a, &b| votes[a].total_cmp(&votes[b]).then(b.cmp(&a)));
            hits += usize::from(voted == Some(row.label));
            images += 1;
        }
        hits as f64 / f64::from(images.max(1))
    }

    /// The `neighbors` nearest others of each image that can be read, on `threads` threads. This takes `images² * width` products.
    pub fn neighborhoods(&self, neighbors: usize, threads: usize) -> Vec<Neighborhood> {
        let rows = self.with_norms();
        let of_row = |row: &Row| {
            let others = rows.iter().filter(|other| other.index != row.index);
            Neighborhood { index: row.index, label: row.label, near: row.nearest(others, neighbors) }
        };
        let each = rows.len().div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            let piece = |piece: &'_ [Row<'_>]| piece.iter().map(of_row).collect::<Vec<_>>();
            let pieces: Vec<_> = rows.chunks(each).map(|rows| scope.spawn(move || piece(rows))).collect();
            let joined =
                pieces.into_iter().map(|piece| piece.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.flatten().collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(rows: &[[f32; 2]], labels: &[i64]) -> Features {
        Features { width: 2, values: rows.concat(), labels: labels.to_vec() }
    }

    #[test]
    fn neighbours_vote_by_their_cosine() {
        let known = features(&[[1.0, 0.0], [9.0, 1.0], [0.0, 2.0], [0.0, 0.0], [-1.0, 0.0]], &[0, 0, 1, -1, 2]);
        let check = |rows: &[[f32; 2]], labels: &[i64], neighbors: usize, expected: f64| {
            assert_eq!(features(rows, labels).accuracy_by_neighbors(&known, neighbors), expected, "{rows:?}");
        };
        check(&[[5.0, 0.0], [0.1, 3.0], [-2.0, 0.1]], &[0, 1, 2], 1, 1.0);
        check(&[[5.0, 0.0], [0.1, 3.0]], &[1, 1], 1, 0.5);
        // More neighbours than there are: the nearest have the largest votes.
        check(&[[0.1, 3.0]], &[1], 9, 1.0);
        // An image that cannot be read counts nowhere.
        check(&[[0.0, 1.0], [1.0, 0.0]], &[1, -1], 1, 1.0);
        check(&[], &[], 1, 0.0);
    }

    #[test]
    fn the_nearest_images_are_those_of_a_plain_loop() {
        let value = |place: usize| ((place * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0;
        for (width, images) in [(1, 1), (3, 7), (16, 20), (37, 101)] {
            let values: Vec<f32> = (0..width * images).map(value).collect();
            let label = |image: usize| if image % 5 == 4 { -1 } else { (image % 3) as i64 };
            let known = Features { width, values, labels: (0..images).map(label).collect() };
            let asked: Vec<f32> = (0..width).map(|place| value(place + 7919)).collect();
            let product = |a: &[f32], b: &[f32]| {
                let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
                products.sum::<f64>()
            };
            let mut expected: Vec<(usize, f64)> = (0..images)
                .filter(|image| label(*image) >= 0)
                .map(|image| {
                    let row = &known.values[image * width..(image + 1) * width];
                    (image, product(row, &asked) / (product(row, row) * product(&asked, &asked)).sqrt())
                })
                .collect();
            expected.sort_by(|a, b| b.1.total_cmp(&a.1));
            let found = known.nearest(&asked, 6);
            assert_eq!(found.len(), expected.len().min(6));
            for (near, (_, cosine)) in found.iter().zip(&expected) {
                let own = expected.iter().find(|(image, _)| *image == near.index).unwrap().1;
                // Each product has an error of 2^-24 of itself, and each sum of `width` again.
                let most = (width + 8) as f64 / f64::from(1 << 23);
                assert!((near.cosine - cosine).abs() < most && (own - cosine).abs() < most, "{near:?}, not {cosine}");
                assert_eq!(near.label as i64, label(near.index));
            }
        }
        let known = features(&[[0.0, 0.0], [2.0, 0.0]], &[0, 1]);
        let near = |asked: &[f32]| known.nearest(asked, 2).iter().map(|near| near.index).collect::<Vec<_>>();
        assert_eq!((near(&[1.0, 0.0]), near(&[-1.0, 0.0]), near(&[1.0])), (vec![1, 0], vec![0, 1], vec![]));
    }

    #[test]
    fn neighborhoods_do_not_depend_on_threads() {
        let rows = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 2.0], [5.0, 0.2], [-1.0, -1.0]];
        let known = features(&rows, &[0, 0, 1, -1, 1, 0]);
        let found = known.neighborhoods(2, 1);
        assert!([2, 3, 16].iter().all(|&threads| known.neighborhoods(2, threads) == found));
        let near: Vec<_> = found
            .iter()
            .map(|found| (found.index, found.near.iter().map(|near| near.index).collect::<Vec<_>>()))
            .collect();
        let expected = [(0, vec![4, 1]), (1, vec![4, 0]), (2, vec![1, 4]), (4, vec![0, 1]), (5, vec![0, 2])];
        assert_eq!(near, expected);
        // The image 4 lies among images of another class, and the image 5 far from all.
        let probabilities = found[3].probabilities(2);
        assert!(probabilities[0] == 1.0 && probabilities[1] == 0.0, "{probabilities:?}");
        assert!(found[4].distance() > 1.5 && found[0].distance() < 0.01);
        assert_eq!(features(&[], &[]).neighborhoods(3, 2), []);
        assert_eq!(features(&[[1.0, 0.0]], &[0]).neighborhoods(3, 2)[0].probabilities(2), [0.0, 0.0]);
    }
}
