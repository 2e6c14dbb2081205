//! Reads from the API server that were requested and have no answer yet.

use std::collections::HashMap;
use std::time::Duration;

use crate::change::Read;
use crate::time::Time;

/// After how long a read without an answer is requested again.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The open reads.
#[derive(Debug, Default)]
pub(crate) struct OpenReads(HashMap<Read, Open>);

/// When an open read was requested first and last.
#[derive(Debug, Clone, Copy)]
struct Open {
    first: Time,
    last: Time,
}

impl OpenReads {
    /// Records that a read is requested now.
    ///
    /// # Errors
    /// It was requested a moment ago and its answer may still come: the time from which to request it again.
    pub(crate) fn open(&mut self, read: &Read, now: Time) -> Result<(), Time> {
        let known = self.0.get(read).copied();
        if let Some(again) = known
            .map(|known| known.last.after(RETRY_AFTER))
            .filter(|again| now < *again)
        {
            return Err(again);
        }
        // A read that was not requested for a while counts as a new one.
        let goes_on = known.filter(|known| now.since(known.last) < RETRY_AFTER * 2);
        let first = goes_on.map_or(now, |known| known.first);
        self.0.insert(read.clone(), Open { first, last: now });
        Ok(())
    }

    pub(crate) fn is_open(&self, read: &Read) -> bool {
        self.0.contains_key(read)
    }

    /// Returns true if the read has been without an answer for that long.
    pub(crate) fn is_late(&self, read: &Read, patience: Duration, now: Time) -> bool {
        self.0.get(read).is_some_and(|open| open.first.after(patience) <= now)
    }

    pub(crate) fn answered(&mut self, read: &Read) {
        self.0.remove(read);
    }

    /// Drops the reads that were not requested again.
    pub(crate) fn drop_abandoned(&mut self, now: Time) {
        self.0.retain(|_, open| now.since(open.last) < RETRY_AFTER);
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
        let mut reads = OpenReads::default();
        assert_eq!(reads.open(&Read::Claims, at(0)), Ok(()));
        assert_eq!(reads.open(&Read::Claims, at(4_999)), Err(at(5_000)));
        assert_eq!(reads.open(&Read::Claims, at(5_000)), Ok(()));
        assert!(
            reads.is_late(&Read::Claims, Duration::from_secs(5), at(5_000)),
            "since the first time"
        );
        assert_eq!(reads.open(&Read::Claims, at(15_000)), Ok(()));
        assert!(
            !reads.is_late(&Read::Claims, Duration::from_secs(5), at(15_000)),
            "another question"
        );
        reads.drop_abandoned(at(19_999));
        assert!(reads.is_open(&Read::Claims));
        reads.drop_abandoned(at(20_000));
        assert!(!reads.is_open(&Read::Claims));
        assert_eq!(reads.open(&Read::Claims, at(20_001)), Ok(()));
        reads.answered(&Read::Claims);
        assert!(!reads.is_open(&Read::Claims));
    }
}
