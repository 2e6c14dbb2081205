//! Time of day, and the time that a process measures.

use std::time::Duration;

/// Time since the start of the process.
pub type Now = Duration;

/// Milliseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub i64);

impl Wall {
    /// RFC 3339, as Kubernetes writes it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self(text.parse::<jiff::Timestamp>().ok()?.as_millisecond()))
    }

    #[must_use]
    pub fn text(self) -> String {
        jiff::Timestamp::from_millisecond(self.0)
            .map_or_else(|_| "1970-01-01T00:00:00Z".to_owned(), |at| at.to_string())
    }

    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)),
        )
    }

    /// Milliseconds since an earlier time; 0 if it is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        let at = Wall::parse("2026-11-24T01:02:03.250Z").unwrap();
        assert_eq!(at.text(), "2026-11-24T01:02:03.25Z");
        assert_eq!(at.after(Duration::from_millis(50)).since(at), 50);
        assert_eq!(at.since(at.after(Duration::from_secs(1))), 0);
        assert_eq!(Wall::parse("yesterday"), None);
    }
}
