//! Laws of cost: least squares over measured sizes, and the simplest law that explains them.
//!
//! A law is a sum of terms in the numbers of nodes and of origins, each with a factor. Errors are
//! relative to the measured value, so that a small mesh counts as much as a large one.

use std::fmt;

/// A law explains the measurements if its error never exceeds this share.
pub(crate) const GOOD: f64 = 0.03;
/// Origins that an idle node probes as often as configured; with more, it probes each less often.
const FREELY_PROBED: f64 = 10.0;
/// Below this share of the largest one, a pivot is a rounding error.
const SINGULAR: f64 = 1e-10;

/// How large a mesh is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Size {
    pub(crate) nodes: f64,
    pub(crate) origins: f64,
}

/// The measured value of one mesh.
pub(crate) type Point = (Size, f64);

/// A term that a cost may grow with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Term {
    /// 1/n: the probability of drawing one of the few members drawn before.
    Inverse,
    /// ln n.
    Log,
    /// n.
    Nodes,
    /// o.
    Origins,
    /// min(o, 10): idle probes that a node sends.
    Probed,
    /// n min(o, 10)/o: idle probes that an origin receives.
    Probers,
}

use Term::{Inverse, Log, Nodes, Origins, Probed, Probers};

/// Sums that are tried if the number of origins is constant, simplest first.
const BY_NODES: [&[Term]; 4] = [&[], &[Inverse], &[Log], &[Nodes]];
/// Sums that are tried in addition if the number of origins varies.
const BY_BOTH: [&[Term]; 17] = [
    &[Origins],
    &[Probed],
    &[Probers],
    &[Inverse, Origins],
    &[Inverse, Probed],
    &[Inverse, Probers],
    &[Log, Origins],
    &[Log, Probed],
    &[Log, Probers],
    &[Nodes, Origins],
    &[Nodes, Probed],
    &[Nodes, Probers],
    &[Probed, Probers],
    &[Inverse, Probed, Probers],
    &[Log, Probed, Probers],
    &[Nodes, Probed, Probers],
    &[Nodes, Origins, Probers],
];

/// A law with its factors: the constant first, then one for each term.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Law {
    pub(crate) terms: &'static [Term],
    pub(crate) factors: Vec<f64>,
    /// The largest error at the fitted points, as a share.
    pub(crate) error: f64,
}

impl Term {
    fn of(self, size: Size) -> f64 {
        let Size { nodes, origins } = size;
        let probed = origins.min(FREELY_PROBED);
        match self {
            Inverse => 1.0 / nodes,
            Log => nodes.ln(),
            Nodes => nodes,
            Origins => origins,
            Probed => probed,
            Probers => nodes * probed / origins.max(1.0),
        }
    }

    /// The term in a formula.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Inverse => "/n",
            Log => " ln n",
            Nodes => " n",
            Origins => " o",
            Probed => " min(o,10)",
            Probers => " n min(o,10)/o",
        }
    }
}

impl Law {
    /// The predicted value for a size.
    pub(crate) fn at(&self, size: Size) -> f64 {
        let terms = self.terms.iter().map(|term| term.of(size));
        [1.0].into_iter().chain(terms).zip(&self.factors).map(|(term, by)| term * by).sum()
    }

    /// A law must not extrapolate a shrinking value to zero or below.
    fn is_sound(&self) -> bool {
        let grow = self.terms.iter().zip(&self.factors[1..]);
        grow.into_iter().all(|(term, by)| *term == Inverse || *by >= 0.0)
    }
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", figures(self.factors[0]))?;
        for (term, by) in self.terms.iter().zip(&self.factors[1..]) {
            let sign = if *by < 0.0 { '-' } else { '+' };
            write!(f, " {sign} {}{}", figures(by.abs()), term.words())?;
        }
        Ok(())
    }
}

/// A number with three significant digits.
pub(crate) fn figures(value: f64) -> String {
    let size = value.abs();
    match size {
        0.0 => "0".into(),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        _ if size >= 0.1 => format!("{value:.3}"),
        _ if size >= 0.001 => format!("{value:.5}"),
        _ => format!("{value:.2e}"),
    }
}

/// The error of a law, as a share of the measured value.
pub(crate) fn error(said: f64, measured: f64) -> f64 {
    (said - measured).abs() / scale(measured)
}

/// The simplest law that explains the points: among those with the fewest terms that are within
/// [`GOOD`] everywhere, the closest. If none is that good, the one with the least error at each
/// point when fitted to the others. None without points.
pub(crate) fn simplest(points: &[Point]) -> Option<Law> {
    let origins = points.first()?.0.origins;
    let varies = points.iter().any(|(size, _)| (size.origins - origins).abs() > 0.5);
    let more: &[&[Term]] = if varies { &BY_BOTH } else { &[] };
    // Up to that number of origins the two are equal, and one of them has a bound.
    let is_free = points.iter().all(|(size, _)| size.origins <= FREELY_PROBED);
    let known = BY_NODES.iter().chain(more).filter(|it| !(is_free && it.contains(&Origins)));
    // A law with as many factors as points explains anything.
    let laws: Vec<Law> = known
        .filter(|terms| terms.len() + 1 < points.len() || terms.is_empty())
        .filter_map(|terms| fit(terms, points))
        .filter(Law::is_sound)
        .collect();
    let most = laws.iter().map(|law| law.terms.len()).max()?;
    for terms in 0..=most {
        let those = laws.iter().filter(|law| law.terms.len() == terms && law.error <= GOOD);
        if let Some(law) = those.min_by(|a, b| a.error.total_cmp(&b.error)) {
            return Some(law.clone());
        }
    }
    let left_out = |law: &Law| left_out(law.terms, points);
    laws.into_iter().min_by(|a, b| left_out(a).total_cmp(&left_out(b)))
}

/// The mean error about each point of the law that is fitted to all others.
fn left_out(terms: &'static [Term], points: &[Point]) -> f64 {
    let mut sum = 0.0;
    for (index, (size, measured)) in points.iter().enumerate() {
        let others: Vec<Point> = [&points[..index], &points[index + 1..]].concat();
        let law = fit(terms, &others);
        sum += law.map_or(f64::INFINITY, |law| error(law.at(*size), *measured));
    }
    sum
}

/// Least squares of the relative errors; `None` if the points cannot distinguish the terms.
fn fit(terms: &'static [Term], points: &[Point]) -> Option<Law> {
    let rows: Vec<(Vec<f64>, f64)> = points
        .iter()
        .map(|(size, measured)| {
            let by = 1.0 / scale(*measured);
            let row = [1.0].into_iter().chain(terms.iter().map(|term| term.of(*size)));
            (row.map(|value| value * by).collect(), measured * by)
        })
        .collect();
    // The largest of each column is 1, so that no term counts for more because of its unit.
    let width = terms.len() + 1;
    let units: Vec<f64> = (0..width)
        .map(|at| rows.iter().map(|(row, _)| row[at].abs()).fold(f64::MIN_POSITIVE, f64::max))
        .collect();
    let mut normal = vec![vec![0.0; width + 1]; width];
    for (row, measured) in &rows {
        for (at, line) in normal.iter_mut().enumerate() {
            let value = row[at] / units[at];
            for (other, sum) in line.iter_mut().enumerate() {
                let next = row.get(other).map_or(*measured, |value| value / units[other]);
                *sum += value * next;
            }
        }
    }
    let factors = solve(normal)?;
    let factors = factors.iter().zip(&units).map(|(factor, unit)| factor / unit).collect();
    let mut law = Law { terms, factors, error: 0.0 };
    let errors = points.iter().map(|(size, measured)| error(law.at(*size), *measured));
    law.error = errors.fold(0.0, f64::max);
    Some(law)
}

/// Gauss's elimination with the largest pivot; the last column is the right side.
fn solve(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let width = rows.len();
    let largest = rows.iter().flatten().fold(0.0_f64, |most, value| most.max(value.abs()));
    for at in 0..width {
        let pivot = (at..width).max_by(|a, b| rows[*a][at].abs().total_cmp(&rows[*b][at].abs()))?;
        rows.swap(at, pivot);
        if rows[at][at].abs() <= largest * SINGULAR {
            return None;
        }
        let row = rows[at].clone();
        for (_, other) in rows.iter_mut().enumerate().filter(|(index, _)| *index != at) {
            let by = other[at] / row[at];
            for (value, mine) in other.iter_mut().zip(&row) {
                *value -= by * mine;
            }
        }
    }
    Some((0..width).map(|at| rows[at][width] / rows[at][at]).collect())
}

/// The denominator of a relative error.
fn scale(measured: f64) -> f64 {
    if measured == 0.0 { 1.0 } else { measured.abs() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [f64; 5] = [100.0, 200.0, 500.0, 1000.0, 2000.0];

    fn size(nodes: f64, origins: f64) -> Size {
        Size { nodes, origins }
    }

    /// Points of a law of nodes, each slightly off, up and down alternately.
    fn points(of: impl Fn(f64) -> f64, off: f64) -> Vec<Point> {
        let signs = [1.0, -1.0].into_iter().cycle();
        let made = SIZES.iter().zip(signs);
        made.map(|(n, sign)| (size(*n, 5.0), of(*n) * (1.0 + sign * off))).collect()
    }

    fn near(law: &Law, nodes: f64, expected: f64, within: f64) {
        let said = law.at(size(nodes, 5.0));
        assert!(error(said, expected) < within, "{law}: {said} at {nodes}, not {expected}");
    }

    #[test]
    fn the_simplest_law_that_explains_is_taken_and_carries() {
        type Case = (fn(f64) -> f64, &'static [Term]);
        let cases: [Case; 4] = [
            (|_| 580.0, &[]),
            (|n| 193.0 - 6200.0 / n, &[Inverse]),
            (|n| 2.0 + 1.5 * n.ln(), &[Log]),
            (|n| 40.0 + 0.9 * n, &[Nodes]),
        ];
        for (of, terms) in cases {
            let law = simplest(&points(of, 0.005)).expect("points");
            assert_eq!(law.terms, terms, "{law}");
            near(&law, 10_000.0, of(10_000.0), 0.02);
            assert!(law.error < 0.01, "{law}: {}", law.error);
        }
    }

    #[test]
    fn the_cost_of_an_origin_is_distinguished_from_that_of_every_node() {
        let of = |Size { nodes, origins }: Size| {
            let probed = origins.min(10.0);
            100.0 + 24.0 * probed + 23.6 * nodes * probed / origins
        };
        let mut all = Vec::new();
        for nodes in SIZES {
            all.extend([5.0, 10.0, 25.0, 50.0].map(|o| (size(nodes, o), of(size(nodes, o)))));
        }
        let law = simplest(&all).expect("points");
        let large = size(100_000.0, 200.0);
        assert!(error(law.at(large), of(large)) < 0.02, "{law}: {}", law.at(large));
        // Results with few origins are not extrapolated beyond the bound of idle probes.
        let probes = |origins: f64| 100.0 + 24.0 * origins;
        let few = SIZES.map(|n| [2.0, 4.0].map(|o| (size(n, o), probes(o))));
        let law = simplest(few.as_flattened()).expect("points");
        assert_eq!(law.terms, [Probed], "{law}");
        // A law of nodes alone cannot show it.
        let few: Vec<Point> = all.iter().copied().filter(|(it, _)| it.origins < 6.0).collect();
        let law = simplest(&few).expect("points");
        assert!(law.terms.iter().all(|term| BY_NODES.concat().contains(term)), "{law}");
    }

    #[test]
    fn what_no_law_explains_is_still_not_explained_by_all_terms() {
        let noise = [1.0, 1.4, 0.7, 1.3, 0.8];
        let made = SIZES.iter().zip(noise).map(|(n, by)| (size(*n, 5.0), 100.0 * by)).collect();
        let made: Vec<Point> = made;
        let law = simplest(&made).expect("points");
        assert!(law.error > GOOD, "{law}");
        near(&law, 100_000.0, 100.0, 0.5);
        // A law needs more points than terms.
        let law = simplest(&made[..2]).expect("points");
        assert!(law.terms.is_empty(), "{law}");
        assert_eq!(simplest(&[]), None);
    }

    #[test]
    fn laws_are_written_as_formulas() {
        let law =
            Law { terms: &[Inverse, Probers], factors: vec![193.2, -6200.0, 0.0236], error: 0.0 };
        assert_eq!(law.to_string(), "193 - 6200/n + 0.02360 n min(o,10)/o");
    }
}
