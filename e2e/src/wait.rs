//! Waits whose errors name the condition that was not met.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::patience;

/// Time between two checks of a condition.
const POLL: Duration = Duration::from_millis(100);

/// Checks a condition until it returns a value. An error of a single check is only returned when the time is up.
/// `limit` is for a machine of ordinary speed, and is stretched on a slower one.
pub fn wait<T>(limit: Duration, what: &str, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    wait_just(patience::stretched(limit), what, look)
}

fn wait_just<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let seen = look();
        if let Ok(Some(found)) = seen {
            return Ok(found);
        }
        if Instant::now() > deadline {
            let text = format!("waited {} s for {what}", limit.as_secs());
            return match seen {
                Err(error) => Err(error.context(text)),
                Ok(_) => bail!("{text}"),
            };
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_wait_that_fails_says_what_it_waited_for() {
        let error = wait(Duration::ZERO, "rain", || Ok(None::<()>)).unwrap_err();
        assert_eq!(error.to_string(), "waited 0 s for rain");
        let error = wait(Duration::ZERO, "rain", || Err::<Option<()>, _>(anyhow!("no clouds"))).unwrap_err();
        assert_eq!(format!("{error:#}"), "waited 0 s for rain: no clouds");
    }
}
