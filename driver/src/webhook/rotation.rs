//! Decides the next write, so that the API server always trusts the certificate that it is presented. Pure.
//!
//! A pair is a server certificate with the certificate authority that signed it; the authority's key is thrown away
//! with the signature. The Secret holds the pair in use and, during a rotation, the next one. The `caBundle` of the
//! MutatingWebhookConfiguration holds the authorities that the API server trusts.
//!
//! ```text
//!  no usable pair, or an old one ─Issue─► Secret: next ─Trust─► caBundle: old and next ─(SETTLE)─Promote─► Secret: current
//!                                                                    │ a day later
//!                                                                    └─Trust─► caBundle without the old one
//! ```
//!
//! Each step is one write and is decided from the two objects alone, so if a leader ends between two steps, the next
//! one continues from there. Both writes have the version that was read as a precondition.
//!
//! How it could fail, and what is then guaranteed (each is a test below):
//! - **A crash between two writes:** a pair that is issued but not trusted is not in use yet; one that is trusted but
//!   not promoted is promoted by the next leader.
//! - **Two leaders, or replicas that start without a certificate:** the preconditions let only one of two writes of the
//!   same version succeed. A late write to the caBundle by a leader that has not seen the newest pair must not remove
//!   its authority: a young authority is never removed.
//! - **The Secret is deleted, or its content damaged:** running replicas continue with what they have loaded. A new
//!   pair is issued, and trusted in addition to the old one, before anybody uses it.
//! - **A replica with the old certificate:** its authority stays trusted for [`KEEP`] after a new pair was issued. If a
//!   pair comes into use in another way (a Secret from a backup), it stays trusted for [`SETTLE`].
//! - **The caBundle is emptied** (a forced upgrade of the chart): it is written again.
//! - **The clock jumps:** the API server checks the certificates, so its time is used, not this machine's. A pair that
//!   is not valid at that time is replaced; certificates are valid from [`BACKDATED`] before they are issued, so that
//!   API servers whose clocks differ agree.

use std::time::Duration;

/// How long a pair is valid from its issue on.
pub(super) const LIFETIME: Duration = Duration::from_secs(90 * DAY);
/// The age at which the next pair is issued.
const RENEW: Duration = Duration::from_secs(60 * DAY);
/// How long before its issue a pair becomes valid.
pub(super) const BACKDATED: Duration = Duration::from_secs(DAY);
/// How long an authority stays trusted that is no longer in any pair of the Secret.
const KEEP: Duration = Duration::from_secs(DAY);
/// How long API servers take at most to see a new caBundle, and replicas a new Secret.
const SETTLE: Duration = Duration::from_secs(30);
/// The most authorities in a caBundle in addition to those in the Secret.
const MOST_OTHERS: usize = 4;
const DAY: u64 = 24 * 60 * 60;

/// Seconds since 1970 by the API server's clock.
pub(super) type Seconds = i64;

/// The parts of a certificate authority that are needed here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    /// In PEM, as a caBundle has it.
    pub(super) pem: String,
    /// The beginning and the end of its validity.
    pub(super) from: Seconds,
    pub(super) until: Seconds,
}

impl Authority {
    fn is_valid(&self, now: Seconds) -> bool {
        (self.from..self.until).contains(&now)
    }

    fn age(&self, now: Seconds) -> Seconds {
        now.saturating_sub(self.from).saturating_sub(seconds(BACKDATED))
    }
}

/// The authorities of the pairs in the Secret. A pair that this webhook cannot serve with is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) current: Option<Authority>,
    pub(super) next: Option<Authority>,
}

/// The next write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Store a new pair as the next one.
    Issue,
    /// Write these authorities as the caBundle.
    Trust(Vec<Authority>),
    /// Store the next pair as the current one.
    Promote,
    /// Nothing, or nothing yet.
    Wait,
}

/// What one leader remembers between two checks, by its own clock.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    /// Since when it has seen this pair in use.
    used: Since,
    /// Since when it has seen this next pair trusted.
    trusted: Since,
}

/// An authority, and since when it has been in this state.
#[derive(Debug, Default)]
struct Since(Option<(String, Duration)>);

impl Since {
    /// Returns how long it has been the same authority.
    fn look(&mut self, ca: Option<&Authority>, elapsed: Duration) -> Duration {
        let since = match (self.0.take(), ca) {
            (Some((pem, since)), Some(ca)) if pem == ca.pem => since,
            _ => elapsed,
        };
        self.0 = ca.map(|ca| (ca.pem.clone(), since));
        elapsed.saturating_sub(since)
    }
}

impl Rotation {
    /// Decides from what was read: the Secret first, then the caBundle. `elapsed` is this process's monotonic time.
    pub(super) fn step(&mut self, stored: &Stored, bundle: &[Authority], now: Seconds, elapsed: Duration) -> Step {
        let current = stored.current.as_ref().filter(|ca| ca.is_valid(now));
        let next = stored.next.as_ref().filter(|ca| is_fresh(ca, now));
        let is_trusted = |ca: &Authority| bundle.iter().any(|trusted| trusted.pem == ca.pem);
        let used_for = self.used.look(current, elapsed);
        let trusted_for = self.trusted.look(next.filter(|ca| is_trusted(ca)), elapsed);
        // The pair that is currently in use comes first.
        let in_use = current.is_none_or(is_trusted);
        if in_use && next.is_none() && current.is_none_or(|ca| !is_fresh(ca, now)) {
            return Step::Issue;
        }
        // Older pairs may still be in use somewhere.
        let is_new = next.is_some() || used_for < SETTLE || current.is_none_or(|ca| is_young(ca, now));
        let wanted = wanted(current, next, bundle, is_new, now);
        if !same(&wanted, bundle) {
            return Step::Trust(wanted);
        }
        let Some(next) = next else {
            return Step::Wait;
        };
        // Without another authority nobody serves, so there is nobody to wait for.
        let others = bundle.iter().any(|ca| ca.pem != next.pem && ca.is_valid(now));
        match others && trusted_for < SETTLE {
            true => Step::Wait,
            false => Step::Promote,
        }
    }
}

fn is_fresh(ca: &Authority, now: Seconds) -> bool {
    ca.is_valid(now) && ca.age(now) < seconds(RENEW)
}

fn is_young(ca: &Authority, now: Seconds) -> bool {
    ca.age(now) < seconds(KEEP)
}

/// The wanted caBundle: the authorities of the Secret, and those that somebody may still use: young ones, and all valid
/// ones if the current pair is new.
fn wanted(
    current: Option<&Authority>,
    next: Option<&Authority>,
    bundle: &[Authority],
    is_new: bool,
    now: Seconds,
) -> Vec<Authority> {
    let stored: Vec<&Authority> = current.into_iter().chain(next).collect();
    let mut others: Vec<&Authority> = bundle
        .iter()
        .filter(|ca| stored.iter().all(|known| known.pem != ca.pem))
        .filter(|ca| ca.is_valid(now) && (is_new || is_young(ca, now)))
        .collect();
    others.sort_by_key(|ca| std::cmp::Reverse(ca.from));
    others.dedup_by_key(|ca| ca.pem.as_str());
    others.truncate(MOST_OTHERS);
    stored.into_iter().chain(others).cloned().collect()
}

/// Compares without regard to order.
fn same(wanted: &[Authority], bundle: &[Authority]) -> bool {
    let has = |all: &[Authority], ca: &Authority| all.iter().any(|other| other.pem == ca.pem);
    wanted.len() == bundle.len() && wanted.iter().all(|ca| has(bundle, ca))
}

fn seconds(duration: Duration) -> Seconds {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "rotation_test.rs"]
mod tests;
