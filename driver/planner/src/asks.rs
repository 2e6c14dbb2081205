//! Reads that were asked for and have no answer yet.

use std::collections::HashMap;
use std::time::Duration;

use crate::change::Ask;
use crate::time::Time;

/// After how long a read without an answer is asked for again.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// The open reads.
#[derive(Debug, Default)]
pub(crate) struct Asks(HashMap<Ask, Open>);

/// Since when a read is asked for in vain, and when it was last.
#[derive(Debug, Clone, Copy)]
struct Open {
    first: Time,
    last: Time,
}

impl Asks {
    /// Notes that a read is asked for now.
    ///
    /// # Errors
    /// An answer may still come; ask again at this time.
    pub(crate) fn open(&mut self, ask: &Ask, now: Time) -> Result<(), Time> {
        let known = self.0.get(ask).copied();
        if let Some(again) = known.map(|known| known.last.after(ANSWER)).filter(|again| now < *again) {
            return Err(again);
        }
        // After a while in which nobody asked it is another question.
        let goes_on = known.filter(|known| now.since(known.last) < ANSWER * 2);
        let first = goes_on.map_or(now, |known| known.first);
        self.0.insert(ask.clone(), Open { first, last: now });
        Ok(())
    }

    pub(crate) fn is_open(&self, ask: &Ask) -> bool {
        self.0.contains_key(ask)
    }

    /// Whether it has been asked for in vain for that long.
    pub(crate) fn is_late(&self, ask: &Ask, patience: Duration, now: Time) -> bool {
        self.0.get(ask).is_some_and(|open| open.first.after(patience) <= now)
    }

    pub(crate) fn answered(&mut self, ask: &Ask) {
        self.0.remove(ask);
    }

    /// Drops the reads that nobody has asked for again.
    pub(crate) fn drop_abandoned(&mut self, now: Time) {
        self.0.retain(|_, open| now.since(open.last) < ANSWER);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_asked_for_again_until_it_is_answered_or_nobody_wants_it() {
        let at = Time::from_millis;
        let mut asks = Asks::default();
        assert_eq!(asks.open(&Ask::Claims, at(0)), Ok(()));
        assert_eq!(asks.open(&Ask::Claims, at(4_999)), Err(at(5_000)));
        assert_eq!(asks.open(&Ask::Claims, at(5_000)), Ok(()));
        assert!(
            asks.is_late(&Ask::Claims, Duration::from_secs(5), at(5_000)),
            "since the first time"
        );
        assert_eq!(asks.open(&Ask::Claims, at(15_000)), Ok(()));
        assert!(
            !asks.is_late(&Ask::Claims, Duration::from_secs(5), at(15_000)),
            "another question"
        );
        asks.drop_abandoned(at(19_999));
        assert!(asks.is_open(&Ask::Claims));
        asks.drop_abandoned(at(20_000));
        assert!(!asks.is_open(&Ask::Claims));
        assert_eq!(asks.open(&Ask::Claims, at(20_001)), Ok(()));
        asks.answered(&Ask::Claims);
        assert!(!asks.is_open(&Ask::Claims));
    }
}
