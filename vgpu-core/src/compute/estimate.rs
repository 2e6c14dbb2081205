//! How long a launch takes, by its shape: a fixed table of estimates that measurements correct.
//!
//! An estimate moves towards what a measurement says and is never multiplied by an error: multiplication once a chunk
//! made 2 s out of 50 us.

use super::Ns;

/// A function with its grid and block, or an executable graph, as a number that is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape(pub u64);

const PLACES: usize = 4096;
/// Places that are tried for a shape. If all are taken, it replaces the one whose turn it is.
const TRIES: usize = 4;
/// After so many launches, one is measured by itself again; sooner if there is reason to.
const CHECK: u32 = 64;
const CHECK_SUSPECT: u32 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    shape: u64,
    /// 0: not measured yet.
    ns: Ns,
    launches: u32,
    /// How many there were when the last one was sent to be measured by itself.
    checked: u32,
    /// A chunk with it took much longer than expected, or the GPU may have waited for it.
    is_suspect: bool,
}

/// The estimates of one process on one GPU.
#[derive(Debug)]
pub struct Estimates(Box<[Estimate]>);

/// How much a measurement is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Nothing else ran meanwhile.
    Alone,
    /// Another share may have been on the GPU, so it may have taken longer than it takes.
    Overlapped,
    /// Other work of this share was on the GPU all the time, so it took longer than it takes.
    Beside,
}

impl Default for Estimates {
    fn default() -> Self {
        Self(vec![Estimate::default(); PLACES].into_boxed_slice())
    }
}

impl Estimates {
    /// Returns the estimate for a shape, if one of its launches was measured.
    #[must_use]
    pub fn get(&self, shape: Shape) -> Option<Ns> {
        let found = self.places(shape).map(|at| &self.0[at]).find(|e| e.shape == shape.0);
        found.map(|e| e.ns).filter(|ns| *ns != 0)
    }

    /// Counts launches and returns which one of its shape the last of them is: 1 for the first.
    pub fn count(&mut self, shape: Shape, launches: u32) -> u32 {
        let entry = self.entry(shape);
        entry.launches = entry.launches.saturating_add(launches);
        entry.launches
    }

    /// Returns true if a launch of this shape should be measured by itself.
    #[must_use]
    pub fn is_due(&self, shape: Shape) -> bool {
        let found = self.places(shape).map(|at| &self.0[at]).find(|e| e.shape == shape.0);
        found.is_some_and(|e| {
            let after = if e.is_suspect { CHECK_SUSPECT } else { CHECK };
            e.ns != 0 && e.launches.saturating_sub(e.checked) >= after
        })
    }

    /// A launch of this shape is measured by itself: until the result is there, the others are not. If it gets lost, the
    /// next check comes in its turn.
    pub fn checking(&mut self, shape: Shape) {
        let entry = self.entry(shape);
        entry.checked = entry.launches;
    }

    /// The estimate of this shape may be wrong: it is checked soon.
    pub fn suspect(&mut self, shape: Shape) {
        self.entry(shape).is_suspect = true;
    }

    /// Learns from a launch that was measured by itself.
    pub fn learn_single(&mut self, shape: Shape, measured: Ns, trust: Trust) {
        let entry = self.entry(shape);
        (entry.checked, entry.is_suspect) = (entry.launches, false);
        if trust == Trust::Alone && entry.ns != 0 && measured > 2 * entry.ns {
            entry.ns = measured; // it has become another kernel
        } else {
            self.learn_one(shape, 1, measured, trust);
        }
    }

    /// Learns from one launch that was measured by itself, or from `launches` equal ones in a row.
    pub fn learn_one(&mut self, shape: Shape, launches: u32, measured: Ns, trust: Trust) {
        let measured = measured / Ns::from(launches.max(1));
        let entry = self.entry(shape);
        if entry.ns == 0 {
            entry.ns = measured.max(1);
        } else if measured < entry.ns {
            entry.ns = towards(entry.ns, measured, 50); // no kernel is faster than it is
        } else if trust == Trust::Alone {
            entry.ns = towards(entry.ns, measured, 15);
        } else if trust == Trust::Overlapped && measured < 2 * entry.ns {
            entry.ns = towards(entry.ns, measured, 5);
        }
    }

    /// Learns from launches of several shapes that were measured together.
    pub fn learn_mixed(&mut self, launches: &[(Shape, u32)], measured: Ns, trust: Trust) {
        let known: Ns = launches
            .iter()
            .map(|(s, n)| self.get(*s).unwrap_or(0) * Ns::from(*n))
            .sum();
        let is_new = |(shape, _): &&(Shape, u32)| self.get(*shape).is_none();
        let unknown: u32 = launches.iter().filter(is_new).map(|(_, n)| *n).sum();
        if unknown > 0 {
            // What the known ones leave. At least 1: the next measurement corrects it.
            let each = (measured.saturating_sub(known) / Ns::from(unknown)).max(1);
            let new: Vec<Shape> = launches.iter().filter(is_new).map(|(s, _)| *s).collect();
            for shape in new {
                self.entry(shape).ns = each;
            }
            return;
        }
        let percent = match trust {
            Trust::Alone => 30,
            Trust::Overlapped => 5,
            Trust::Beside if measured < known => 5,
            Trust::Beside => return,
        };
        for (shape, _) in launches {
            let entry = self.entry(*shape);
            let target = u128::from(entry.ns) * u128::from(measured) / u128::from(known.max(1));
            entry.ns = towards(entry.ns, Ns::try_from(target).unwrap_or(Ns::MAX), percent).max(1);
        }
    }

    fn places(&self, shape: Shape) -> impl Iterator<Item = usize> + use<> {
        let first = (shape.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize;
        (0..TRIES).map(move |n| (first + n) % PLACES)
    }

    fn entry(&mut self, shape: Shape) -> &mut Estimate {
        let found = self.places(shape).find(|at| self.0[*at].shape == shape.0);
        let at = found.or_else(|| self.places(shape).find(|at| self.0[*at].shape == 0));
        let at = at.unwrap_or_else(|| {
            let victim = (shape.0 >> 7) as usize % TRIES;
            let at = self.places(shape).nth(victim).unwrap_or(0);
            self.0[at] = Estimate::default();
            at
        });
        self.0[at].shape = shape.0;
        &mut self.0[at]
    }
}

/// Moves `from` by a part of its distance to `to`.
fn towards(from: Ns, to: Ns, percent: u64) -> Ns {
    if to >= from {
        from + (to - from) / 100 * percent + (to - from) % 100 * percent / 100
    } else {
        from - ((from - to) / 100 * percent + (from - to) % 100 * percent / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Shape = Shape(1);
    const B: Shape = Shape(2);

    #[test]
    fn the_first_measurement_counts_whole_and_later_ones_in_part() {
        let mut estimates = Estimates::default();
        assert_eq!(estimates.get(A), None);
        estimates.learn_one(A, 1, 1000, Trust::Alone);
        assert_eq!(estimates.get(A), Some(1000));
        estimates.learn_one(A, 1, 2000, Trust::Alone);
        assert_eq!(estimates.get(A), Some(1150));
        estimates.learn_one(A, 1, 50, Trust::Overlapped);
        assert_eq!(estimates.get(A), Some(600));
    }

    #[test]
    fn chunks_that_overlap_others_teach_little() {
        let mut estimates = Estimates::default();
        estimates.learn_one(A, 1, 50_000, Trust::Alone);
        for _ in 0..100 {
            estimates.learn_one(A, 4, 4_000_000, Trust::Overlapped); // 20 times as long as it takes
        }
        assert_eq!(estimates.get(A), Some(50_000));
    }

    #[test]
    fn work_beside_other_work_of_the_share_makes_no_estimate_longer() {
        let mut estimates = Estimates::default();
        estimates.learn_one(A, 1, 50_000, Trust::Beside);
        for _ in 0..100 {
            estimates.learn_one(A, 1, 90_000, Trust::Beside);
            estimates.learn_mixed(&[(A, 2)], 190_000, Trust::Beside);
        }
        assert_eq!(estimates.get(A), Some(50_000));
        estimates.learn_one(A, 1, 40_000, Trust::Beside);
        assert_eq!(estimates.get(A), Some(45_000));
    }

    #[test]
    fn of_shapes_together_the_new_one_is_what_the_others_leave() {
        let mut estimates = Estimates::default();
        estimates.learn_one(A, 1, 1000, Trust::Alone);
        estimates.learn_mixed(&[(A, 3), (B, 2)], 7000, Trust::Alone);
        assert_eq!((estimates.get(A), estimates.get(B)), (Some(1000), Some(2000)));
        for _ in 0..200 {
            estimates.learn_mixed(&[(A, 3), (B, 2)], 14_000, Trust::Alone);
        }
        let (a, b) = (estimates.get(A).unwrap(), estimates.get(B).unwrap());
        assert!((13_860..=14_000).contains(&(3 * a + 2 * b)), "{a} {b}");
    }

    #[test]
    fn a_full_table_forgets_and_goes_on() {
        let mut estimates = Estimates::default();
        let shapes = if cfg!(miri) { 300 } else { 20_000 };
        for shape in 1..shapes {
            estimates.learn_one(Shape(shape), 1, shape, Trust::Alone);
            assert_eq!(estimates.get(Shape(shape)), Some(shape));
        }
    }
}
