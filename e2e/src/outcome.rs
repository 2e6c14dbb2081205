//! Work followed by a cleanup that runs whether or not the work failed.

use anyhow::{Result, anyhow};

/// Returns the work's result after the cleanup. If both failed, the error contains both.
pub fn after<T>(work: Result<T>, followed: Result<()>) -> Result<T> {
    match (work, followed) {
        (Ok(value), Ok(())) => Ok(value),
        (Ok(_), Err(error)) | (Err(error), Ok(())) => Err(error),
        (Err(error), Err(other)) => Err(anyhow!("{error:#}; and afterwards: {other:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_is_lost() {
        let fail = |text: &'static str| Err::<(), _>(anyhow!(text));
        assert_eq!(after(Ok(3), Ok(())).unwrap(), 3);
        assert_eq!(after(fail("work"), Ok(())).unwrap_err().to_string(), "work");
        assert_eq!(after(Ok(()), fail("end")).unwrap_err().to_string(), "end");
        let both = after(fail("work"), fail("end")).unwrap_err();
        assert_eq!(both.to_string(), "work; and afterwards: end");
    }
}
