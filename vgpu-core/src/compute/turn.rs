//! Whose turn it is: reads the pages of one GPU's shares, clamps their values, and orders the shares that wait.
//!
//! Another share's page may contain anything. So its times are clamped to at most [`FAR`] from now; its start tag moves the
//! virtual time no faster than the share with the least weight could ([`Tag::lifted`]); weights and priorities come from the
//! node's page. A share that lies keeps others waiting at most until their override ([`super::limiter`]), after which they
//! ignore its page for a while. If it lies only about tags and wishes, every share still gets turns, but not in the right
//! proportions.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use vgpu_abi::arbitration::{Entry, LEAST_WEIGHT, NodePage, SLOTS, SlotPage, entry_flags, want_flags};

use super::bucket::WHOLE;
use super::{MS, Ns};

/// How long a turn lasts if others wait.
pub const QUANTUM: Ns = 10 * MS;
/// After this long, a share that is behind, or of high priority, cuts the turn.
pub const CUT: Ns = 2 * MS;
/// How long others wait at most for what is in flight at the end of a turn.
pub const DRAIN: Ns = 100 * MS;
/// A share of low priority that has waited this long goes as one of high priority, for one quantum.
pub const FLOOR: Ns = 1000 * MS;
const FAR: Ns = 100 * MS;

/// A virtual time, which advances by charge divided by weight. Tags wrap, so compare them only by [`Tag::before`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag(pub u64);

impl Tag {
    #[must_use]
    pub fn ahead_of(self, charge: Ns, weight: u32) -> Self {
        Self(self.0.wrapping_sub(scaled(charge, weight)))
    }

    /// Returns by how much this tag is later than the other.
    #[must_use]
    pub fn since(self, other: Self) -> i64 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    #[must_use]
    pub fn before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// Returns this tag raised to the virtual time, but by no more than can have passed in `elapsed`. A share that was
    /// away returns at the virtual time; any other share is near it anyway.
    #[must_use]
    pub fn lifted(self, virtual_time: Self, elapsed: Ns) -> Self {
        let lift = u64::try_from(virtual_time.since(self)).unwrap_or(0);
        Self(self.0.wrapping_add(lift.min(scaled(elapsed, LEAST_WEIGHT))))
    }
}

/// Converts a charge to virtual time: unchanged for the weight of the whole GPU, more for less weight.
pub(super) fn scaled(charge: Ns, weight: u32) -> u64 {
    (u128::from(charge) * u128::from(WHOLE) / u128::from(weight.max(1))) as u64
}

/// The pages of one GPU, and the slot of this share's own.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    pub node: &'a NodePage,
    /// Pages by slot, up to the last one in use.
    pub slots: &'a [Option<&'a SlotPage>],
    pub own: usize,
}

/// A wish for a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub since: Ns,
    pub tag: Tag,
    pub behind: bool,
    pub sibling: bool,
}

/// The values of a slot, clamped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub index: usize,
    pub weight: u32,
    pub high: bool,
    /// 0: never had a turn.
    pub began: Ns,
    /// When its quantum ends. 0: the turn is over.
    pub ends: Ns,
    /// Until when it needs the GPU.
    pub until: Ns,
    pub start_tag: Tag,
    pub wish: Option<Wish>,
}

impl Slot {
    pub(super) fn read(index: usize, entry: Entry, page: &SlotPage, now: Ns) -> Self {
        let tag = |word: &std::sync::atomic::AtomicU64| Tag(word.load(Relaxed));
        let soon = |word: &std::sync::atomic::AtomicU64| word.load(Acquire).min(now.saturating_add(FAR));
        let since = page.want.since.load(Acquire).min(now);
        let is_wanted = since != 0 && page.want.valid_until.load(Relaxed) > now;
        let flags = page.want.flags.load(Relaxed);
        Self {
            index,
            weight: entry.weight,
            high: entry.flags & entry_flags::HIGH != 0,
            began: page.turn.began.load(Acquire).min(now),
            ends: soon(&page.turn.ends),
            until: soon(&page.turn.until),
            start_tag: tag(&page.start_tag),
            wish: is_wanted.then(|| Wish {
                since,
                tag: tag(&page.want.tag),
                behind: flags & want_flags::BEHIND != 0,
                sibling: flags & want_flags::SIBLING != 0,
            }),
        }
    }

    /// Returns true if this share has a turn that began after `began`, or at the same moment and with a higher slot.
    pub(super) fn took_over(&self, began: Ns, slot: usize) -> bool {
        self.ends != 0 && (self.began, self.index) > (began, slot)
    }

    /// Returns until when others wait for this share.
    pub(super) fn free_at(&self) -> Ns {
        if self.ends == 0 {
            self.until
        } else {
            self.until.min(self.ends + DRAIN)
        }
    }

    /// Returns true if the share has high priority, or has waited so long that it is treated as such.
    fn waits_high(&self, wish: &Wish, now: Ns) -> bool {
        self.high || now.saturating_sub(wish.since.max(self.began)) >= FLOOR
    }

    /// Orders the shares that wait: the first in this order goes next.
    fn comes_before(&self, other: &Self, now: Ns) -> bool {
        let (Some(own), Some(others)) = (&self.wish, &other.wish) else {
            return self.wish.is_some();
        };
        let (own_high, other_high) = (self.waits_high(own, now), other.waits_high(others, now));
        if own_high != other_high {
            return own_high;
        }
        let lead = self.tag_to_go(own).since(other.tag_to_go(others));
        lead < 0 || lead == 0 && self.index < other.index
    }

    /// Returns the tag that decides the order: two quanta earlier if the share has a turn on another GPU, because its
    /// ranks wait for each other.
    fn tag_to_go(&self, wish: &Wish) -> Tag {
        if wish.sibling {
            wish.tag.ahead_of(2 * QUANTUM, self.weight)
        } else {
            wish.tag
        }
    }
}

impl<'a> Pages<'a> {
    /// Returns this share's entry, or None if the node's page has none.
    #[must_use]
    pub fn entry(&self) -> Option<Entry> {
        self.node.entry(self.own).filter(|entry| entry.weight != 0)
    }

    #[must_use]
    pub fn page(&self) -> Option<&'a SlotPage> {
        self.slots.get(self.own).copied().flatten()
    }

    /// Returns true if another share of this GPU takes no turns.
    pub(super) fn has_others_without_turns(&self) -> bool {
        const WITHOUT: u32 = entry_flags::IGNORED | entry_flags::UNLIMITED;
        let entries = (0..self.slots.len()).filter(|slot| *slot != self.own);
        entries
            .filter_map(|slot| self.node.entry(slot))
            .any(|entry| entry.weight != 0 && entry.flags & WITHOUT != 0)
    }

    pub(super) fn is_of_high_priority(&self, slot: usize) -> bool {
        let entry = self.node.entry(slot);
        entry.is_some_and(|entry| entry.flags & entry_flags::HIGH != 0)
    }

    /// The other shares of the GPU that take turns.
    pub(super) fn others(&self, now: Ns) -> impl Iterator<Item = Slot> {
        let (node, slots, own) = (self.node, self.slots, self.own);
        slots
            .iter()
            .enumerate()
            .filter(move |(slot, _)| *slot != own)
            .filter_map(move |(slot, page)| {
                let page = (*page)?;
                let entry = node.entry(slot)?;
                let takes_part =
                    entry.weight != 0 && entry.flags & (entry_flags::IGNORED | entry_flags::UNLIMITED) == 0;
                takes_part.then(|| Slot::read(slot, entry, page, now))
            })
    }
}

/// What one read of the other shares' pages shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// The virtual time: the start tag of the last turn of any share.
    pub virtual_time: Tag,
    /// Another share waits.
    pub wanted: bool,
    /// A share that may cut a turn waits.
    pub cut_wanted: bool,
    /// Another share has taken a turn that began after ours.
    pub taken_over: bool,
    /// Until when others need the GPU.
    pub free_at: Ns,
    /// The share that needs the GPU longest.
    pub held_by: Option<usize>,
    /// No waiting share comes before this one.
    pub is_next: bool,
}

/// `own`: this share's slot, with its wish if it waits. `distrusted`: until when the page of each slot is ignored.
pub(super) fn look(pages: &Pages<'_>, own: &Slot, distrusted: &[Ns; SLOTS], now: Ns) -> View {
    let mut view = View {
        virtual_time: own.start_tag,
        wanted: false,
        cut_wanted: false,
        taken_over: false,
        free_at: 0,
        held_by: None,
        is_next: true,
    };
    let mut last = own.began;
    for other in pages.others(now).filter(|other| distrusted[other.index] <= now) {
        if other.began > last {
            (last, view.virtual_time) = (other.began, other.start_tag);
        }
        view.taken_over |= other.took_over(own.began, own.index);
        if other.free_at() > view.free_at {
            (view.free_at, view.held_by) = (other.free_at(), Some(other.index));
        }
        if let Some(wish) = &other.wish {
            view.wanted = true;
            view.cut_wanted |= wish.behind && own.high <= other.high || other.waits_high(wish, now) && !own.high;
            view.is_next &= !other.comes_before(own, now);
        }
    }
    view
}
